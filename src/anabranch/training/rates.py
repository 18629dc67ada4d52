"""A learning rate of their own for a few rows of the embeddings.

An optimizer has one rate per tensor. The rows' step is taken with all others and then scaled by
the ratio of the two rates, which is what AdamW and SGD would have done at the other rate, weight
decay included. It keeps no state, so a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def scale_rows(
    optimizer: torch.optim.Optimizer,
    weights: Callable[[], Sequence[Tensor]],
    rows: Sequence[int] | None,
    ratio: float,
) -> None:
    """From now on every step of these rows counts ``ratio`` times.

    Args:
        optimizer: that updates the weights.
        weights: gives the tensors ``[vocabulary, hidden]`` as they stand; they may be sharded by
            FSDP along the rows.
        rows: numbers of the rows; None is all of them.
        ratio: of the rows' rate to the optimizer's.
    """
    before: list[tuple[Tensor, Any, Tensor]] = []

    def keep(*_: Any) -> None:
        before.clear()
        for weight in weights():
            local, at = _here(weight.detach(), rows)
            before.append((local, at, local[at].clone()))

    def scale(*_: Any) -> None:
        with torch.no_grad():
            for local, at, old in before:
                local[at] = old + ratio * (local[at] - old)
        before.clear()

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(scale)


def _here(weight: Any, rows: Sequence[int] | None) -> tuple[Tensor, Any]:
    """The part of a tensor that this process holds, and where the rows are in it."""
    first = 0
    if hasattr(weight, "to_local"):
        mesh, total = weight.device_mesh, weight.shape[0]
        weight = weight.to_local()
        # Shards are cut as torch.chunk does: all alike but for the last ones.
        first = -(-total // mesh.size()) * mesh.get_local_rank()
    if rows is None:
        return weight, slice(None)
    mine = [row - first for row in rows if 0 <= row - first < len(weight)]
    return weight, torch.tensor(mine, dtype=torch.long, device=weight.device)
