"""Tree attention on the CPU without a mask of length × length, and without the work it hides.

Queries are taken in blocks. A block's keys are the tokens whose subtree reaches into it: the common
prefix and the block's own branches, not the siblings before them. Only those are multiplied, with
torch's own flash kernel; the backward pass gathers them again, so memory is linear in the length.
Attention dropout is left out, and other devices have flex_attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

#: Queries of one block: below, the calls cost more than the work that they save.
QUERIES = 256
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Block:
    """One block of queries of one row.

    Attributes:
        row: of the batch.
        start, stop: the queries.
        keys: ``[K]`` the tokens that they see; None for all up to ``stop``.
        mask: ``[1, 1, groups * Q, K]`` additive; the queries of all heads that share keys, in turn.
    """

    row: int
    start: int
    stop: int
    keys: Tensor | None
    mask: Tensor

    def of(self, states: Tensor) -> Tensor:
        """The block's keys or values: ``[B, H, L, D]`` to ``[1, H, K, D]``."""
        mine = states[self.row : self.row + 1]
        return mine[:, :, : self.stop] if self.keys is None else mine.index_select(2, self.keys)


class Plan:
    """The blocks of a batch of trees; made once, used by every layer.

    Args:
        subtree_end: ``[B, L]`` on the CPU.
        groups: query heads that share one head of keys.
        dtype: of queries and keys.
        queries: of one block.
    """

    def __init__(
        self, subtree_end: Tensor, groups: int, dtype: torch.dtype, queries: int = QUERIES
    ) -> None:
        self.groups, self.dtype = groups, dtype
        self.blocks = list(_blocks(subtree_end, groups, dtype, queries))


def _blocks(ends: Tensor, groups: int, dtype: torch.dtype, queries: int) -> Iterator[Block]:
    length = ends.shape[1]
    index = torch.arange(length)
    for row in range(ends.shape[0]):
        for start in range(0, length, queries):
            stop = min(start + queries, length)
            seen = (ends[row, :stop] > start).nonzero().squeeze(1)
            every = len(seen) == stop
            query = index[start:stop, None]
            allowed = (seen <= query) & (query < ends[row, seen])
            mask = torch.zeros(allowed.shape, dtype=dtype)
            mask.masked_fill_(~allowed, torch.finfo(dtype).min)
            mask = mask.repeat(groups, 1)[None, None]
            yield Block(row, start, stop, None if every else seen, mask)


class _BlockAttention(torch.autograd.Function):
    """Softmax attention over the blocks of a plan."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float
    ) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        sums = []
        for block in plan.blocks:
            found, logsumexp = _forward(
                _folded(query, block, plan.groups),
                block.of(key),
                block.of(value),
                attn_mask=block.mask,
                scale=scale,
            )
            _unfold(output, found, block)
            sums.append(logsumexp)
        ctx.save_for_backward(query, key, value, output, *sums)
        ctx.plan, ctx.scale = plan, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, *sums = ctx.saved_tensors
        plan: Plan = ctx.plan
        d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
        for block, logsumexp in zip(plan.blocks, sums, strict=True):
            dq, dk, dv = _backward(
                _folded(gradients[0], block, plan.groups),
                _folded(query, block, plan.groups),
                block.of(key),
                block.of(value),
                _folded(output, block, plan.groups),
                logsumexp,
                0.0,
                False,
                attn_mask=block.mask,
                scale=ctx.scale,
            )
            _unfold(d_query, dq, block)
            for total, part in ((d_key, dk), (d_value, dv)):
                if block.keys is None:
                    total[block.row, :, : block.stop] += part[0]
                else:
                    total[block.row].index_add_(1, block.keys, part[0])
        return d_query, d_key, d_value, None, None


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None = None
) -> Tensor:
    """Attention ``[B, Hq, L, D]`` of queries over keys and values ``[B, Hk, L, D]``.

    Args:
        query, key, value: on the CPU, of the plan's type.
        plan: of the batch.
        scale: of the scores; default ``D ** -0.5``.
    """
    if scale is None:
        scale = float(query.shape[-1]) ** -0.5
    found = _BlockAttention.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def _folded(states: Tensor, block: Block, groups: int) -> Tensor:
    """A block's queries as ``[1, Hk, groups * Q, D]``: heads that share keys behind one another."""
    mine = states[block.row, :, block.start : block.stop]
    heads, queries, width = mine.shape
    return mine.reshape(1, heads // groups, groups * queries, width)


def _unfold(total: Tensor, part: Tensor, block: Block) -> None:
    mine = total[block.row, :, block.start : block.stop]
    mine.copy_(part.reshape(mine.shape))
