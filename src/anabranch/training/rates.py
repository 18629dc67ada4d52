"""A learning rate of their own for a few rows of the embeddings.

An optimizer has one rate per tensor. The rows' step is taken with all others and then scaled by
the ratio of the two rates, which is what AdamW and SGD would have done at the other rate, weight
decay included. It keeps no state, so a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scale_rows(
    optimizer: torch.optim.Optimizer,
    weights: Sequence[Tensor],
    rows: Sequence[int] | None,
    ratio: float,
) -> None:
    """From now on every step of these rows counts ``ratio`` times.

    Args:
        optimizer: that updates the weights.
        weights: ``[vocabulary, hidden]`` each.
        rows: numbers of the rows; None is all of them.
        ratio: of the rows' rate to the optimizer's.
    """
    before: list[Tensor] = []

    def at(weight: Tensor) -> Any:
        return slice(None) if rows is None else torch.tensor(rows, device=weight.device)

    def keep(*_: Any) -> None:
        before[:] = [weight.detach()[at(weight)].clone() for weight in weights]

    def scale(*_: Any) -> None:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight[at(weight)] = old + ratio * (weight[at(weight)] - old)
        before.clear()

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(scale)
