"""Cross-entropy over explicit edges, and the forward pass that only makes the logits it needs.

The divisor is the sum of the weights of the whole global batch, so the value and gradient do not
depend on micro-batches or ranks. Policy-gradient losses take the same log-probs and are not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.training.attention import Backend, tree_mask
from anabranch.training.packing import TreeBatch


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """A :class:`~anabranch.training.packing.TreeBatch` on a device: ``[B, L]`` and ``[E]``."""

    ids: Tensor
    positions: Tensor
    subtree_end: Tensor
    rows: Tensor
    tokens: Tensor
    weights: Tensor


def to_tensors(batch: TreeBatch, device: torch.device | str = "cpu") -> BatchTensors:
    """Move what the model and the loss need."""
    names = ("ids", "positions", "subtree_end", "rows", "tokens", "weights")
    return BatchTensors(**{n: torch.from_numpy(getattr(batch, n)).to(device) for n in names})


def edge_logits(
    model: nn.Module,
    batch: BatchTensors,
    *,
    dtype: torch.dtype | None = None,
    backend: Backend = "auto",
    gather: bool = True,
) -> Tensor:
    """Logits ``[E, vocab]`` of the rows that predict the batch's targets, in their order.

    The hidden states of those rows are picked in front of the output layer, inside the model's
    own forward: whatever the model does with its logits (caps, scales) is done, and wrappers such
    as DDP see an ordinary forward call.

    Args:
        model: a causal LM with implementation ``"tree"``, possibly wrapped.
        batch: on the model's device.
        dtype: of the activations; default the parameters'.
        backend: see :func:`anabranch.training.attention.tree_mask`.
        gather: False computes all logits and picks afterwards.
    """
    if dtype is None:
        dtype = next(model.parameters()).dtype
    inputs: dict[str, Any] = {
        "input_ids": batch.ids,
        "position_ids": batch.positions,
        "attention_mask": tree_mask(batch.subtree_end, dtype, backend),
        "use_cache": False,
    }
    if not gather:
        logits: Tensor = model(**inputs).logits
        return logits.flatten(0, 1)[batch.rows]
    with only_rows(model, batch.rows):
        logits = model(**inputs).logits
    return logits[0]


def edge_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probs ``[E]`` of the targets, in fp32."""
    return -nn.functional.cross_entropy(logits.float(), tokens, reduction="none")


def edge_loss(logits: Tensor, batch: BatchTensors, total_weight: float) -> Tensor:
    """This micro-batch's part of the loss: the parts of a global batch add up to its mean.

    Without any target it is 0 with a graph, so ``backward`` works and gives zeros.

    Args:
        logits: from :func:`edge_logits`.
        batch: the same batch.
        total_weight: sum of the weights over the whole global batch.
    """
    logprobs = edge_logprobs(logits, batch.tokens)
    return -(logprobs * batch.weights).sum() / max(total_weight, 1e-8)


@contextmanager
def only_rows(model: nn.Module, rows: Tensor) -> Iterator[None]:
    """While active, the output layer sees ``[1, E, hidden]``: the flattened rows given."""

    def pick(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = args
        return (hidden.flatten(0, 1)[rows][None], *rest)

    handle = output_layer(model).register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def output_layer(model: nn.Module) -> nn.Module:
    """The module that makes logits of hidden states, under wrappers too."""
    layer: nn.Module = unwrapped(model).get_output_embeddings()
    return layer


def unwrapped(model: Any) -> Any:
    """The transformers model inside of wrappers such as DDP's."""
    while not hasattr(model, "get_output_embeddings") and hasattr(model, "module"):
        model = model.module
    return model
