"""Parallel-R1's structured variant: siblings hidden from each other, with shared positions.

The finished text stands once, in its own order. A branch's tokens see what stood before the fork
and their own branch; all branches of a block begin at the same position; what follows the join
sees everything and goes on behind the longest branch. No stock engine computes that: it decodes
the text behind a join with ordinary positions, and with branches that are read one after another.
:func:`mismatch` measures the difference; the tree of :mod:`anabranch.training.layout` has none.

A :class:`TreeLayout` holds intervals, which cannot say "hidden from the siblings and visible after
the join". So here ``subtree_end`` of a branch's token is the end of its branch, and
:func:`structured_attention` shows closed branches to what stands behind their join. The mask is
dense (length × length): a baseline for rows of ordinary length. Blocks inside branches are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from anabranch.errors import ModelError
from anabranch.records import Trajectory
from anabranch.training.attention import dense_allowed
from anabranch.training.layout import LayoutError, TreeLayout, build_layout
from anabranch.training.loss import edge_logits, edge_logprobs, to_tensors
from anabranch.training.packing import collate


def structured_layout(trajectory: Trajectory) -> TreeLayout:
    """The finished text of a trajectory with hidden siblings and shared starts.

    Targets are the same as in the tree: every token that was sampled, once.

    Raises:
        LayoutError: blocks inside branches, branches that did not close, or no target.
    """
    scopes = _scopes(trajectory)
    ids: list[int] = []
    positions: list[int] = []
    spans: list[tuple[int, int]] = []
    starts: dict[int, int] = {}
    fork = deepest = 0
    for index, scope in zip(trajectory.final, scopes, strict=True):
        segment = trajectory.segments[index]
        starts[index] = len(ids)
        position = _next_position(scope, spans, positions, fork, deepest)
        if scope is not None and (not spans or spans[-1] != scope):
            if scope[1] == 1:
                fork = deepest = position
            position = fork
        spans.extend([scope or (0, 0)] * len(segment))
        positions.extend(range(position, position + len(segment)))
        ids.extend(segment.ids)
        deepest = max(deepest, position + len(segment))
    rows, requests = _targets(trajectory, starts)
    if not rows:
        raise LayoutError(f"{trajectory.id or 'trajectory'}: no request sampled anything")
    tokens = np.array(ids, dtype=np.int64)
    targets = np.array(rows, dtype=np.int64) + 1
    return TreeLayout(
        name=trajectory.id,
        ids=tokens,
        positions=np.array(positions, dtype=np.int64),
        subtree_end=_ends(spans),
        rows=targets - 1,
        tokens=tokens[targets],
        weights=np.ones(len(rows), dtype=np.float32),
        trajectory=np.zeros(len(rows), dtype=np.int64),
        request=np.array(requests, dtype=np.int64),
        logprobs=np.full(len(rows), np.nan, dtype=np.float32),
        raw_tokens=len(ids),
    )


@contextmanager
def structured_attention(model: Any) -> Iterator[None]:
    """While active, a ``"tree"`` model given structured rows shows closed branches after the join.

    Rows that are trees stay as they are: in a tree every position is the number of tokens seen
    before, and only behind a join of a structured row it is larger.

    Raises:
        ModelError: from the forward pass, when the mask is one of flex_attention.
    """

    def open_joins(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if mask is None or positions is None:
            return None
        if isinstance(mask, BlockMask):
            raise ModelError("the structured variant needs a dense mask: set attention = 'sdpa'")
        intervals = mask.dtype == torch.int64
        allowed = dense_allowed(mask[:, 0, 0]) if intervals else mask[:, 0] == 0
        opened = after_joins(allowed, positions)
        dtype = next(module.parameters()).dtype if intervals else mask.dtype
        dense = torch.zeros(opened.shape, dtype=dtype, device=opened.device)
        dense.masked_fill_(~opened, torch.finfo(dtype).min)
        return args, {**kwargs, "attention_mask": dense[:, None]}

    handle = model.register_forward_pre_hook(open_joins, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def after_joins(allowed: Tensor, positions: Tensor) -> Tensor:
    """Who sees whom once closed branches are visible behind their joins.

    Args:
        allowed: ``[B, L, L]`` (query, key) by the intervals alone.
        positions: ``[B, L]``.

    Returns:
        ``[B, L, L]``; equal to ``allowed`` for trees.
    """
    batch, length = positions.shape
    index = torch.arange(length, device=positions.device)
    root = allowed.to(torch.int8).argmax(-1)
    joined = (positions + 1 > allowed.sum(-1)).to(torch.int64)
    nothing = torch.zeros(batch, length, dtype=torch.int64, device=positions.device)
    structured = nothing.scatter_reduce(1, root, joined, "amax").gather(1, root).bool()
    last = nothing.scatter_reduce(1, root, index.expand(batch, -1), "amax").gather(1, root)
    # The main line is what the last token of a row sees: branches end before it.
    main = allowed.gather(1, last[:, :, None].expand(-1, -1, length))
    main = main.diagonal(dim1=1, dim2=2)
    rank = main.to(torch.int64).cumsum(-1)
    same = root[:, :, None] == root[:, None, :]
    behind = (rank[:, :, None] > rank[:, None, :]) & (index[:, None] > index[None, :])
    return allowed | (same & behind & structured[:, :, None])


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far log-probs behind the joins differ from those that a stock engine computes.

    Attributes:
        tokens: sampled tokens behind a join that were compared.
        structured_mean, structured_max: of the absolute differences, structured computation.
        tree_mean, tree_max: the same for the tree layout.
    """

    tokens: int
    structured_mean: float
    structured_max: float
    tree_mean: float
    tree_max: float


def mismatch(model: Any, trajectories: Sequence[Trajectory]) -> Mismatch:
    """Compare both layouts with ordinary decoding, on what was sampled behind joins.

    Args:
        model: with implementation ``"tree"``.
        trajectories: answers with at least one block among them.

    Raises:
        LayoutError: none of them has anything behind a join, or one has no structured form.
    """
    structured: list[Tensor] = []
    tree: list[Tensor] = []
    for one in trajectories:
        behind = _behind_joins(one)
        if not behind:
            continue
        layout = structured_layout(one)
        flat = np.arange(len(layout), dtype=np.int64)
        plain = replace(layout, positions=flat, subtree_end=np.full_like(flat, len(layout)))
        with structured_attention(model):
            ours = _logprobs(model, layout, behind)
        stock = _logprobs(model, plain, behind)
        structured.append((ours - stock).abs())
        tree.append((_logprobs(model, build_layout(one), behind) - stock).abs())
    if not structured:
        raise LayoutError("nothing was sampled behind a join")
    all_structured, all_tree = torch.cat(structured), torch.cat(tree)
    return Mismatch(
        tokens=len(all_structured),
        structured_mean=float(all_structured.mean()),
        structured_max=float(all_structured.max()),
        tree_mean=float(all_tree.mean()),
        tree_max=float(all_tree.max()),
    )


def _logprobs(model: Any, layout: TreeLayout, requests: Sequence[int]) -> Tensor:
    """Log-probs of what some requests sampled, in the order of requests and tokens."""
    batch = to_tensors(collate([layout]), next(model.parameters()).device)
    with torch.no_grad():
        found = edge_logprobs(edge_logits(model, batch, backend="sdpa"), batch.tokens)
    order = torch.from_numpy(layout.request).to(found.device)
    return torch.cat([found[order == number] for number in requests])


def _behind_joins(trajectory: Trajectory) -> list[int]:
    """Requests of the main line that saw a joined block and sampled something."""
    branches = {r.output for r in trajectory.requests if r.kind == "branch"}
    return [
        number
        for number, request in enumerate(trajectory.requests)
        if request.kind != "branch"
        and branches & set(request.context)
        and trajectory.segments[request.output].ids
    ]


def _scopes(trajectory: Trajectory) -> list[tuple[int, int] | None]:
    """Of each segment of the finished text the block and branch it stands in; None: main line."""
    owner: dict[int, tuple[int, int]] = {}
    last: set[int] = set()
    for number, block in enumerate(trajectory.blocks, start=1):
        if len(block.path) > 1:
            raise LayoutError(f"{trajectory.id}: the structured variant has no nested blocks")
        for branch in block.branches:
            if branch.outcome != "closed":
                raise LayoutError(f"{trajectory.id}: branch {branch.number} is {branch.outcome}")
            request = trajectory.requests[branch.requests[-1]]
            owner[request.context[-1]] = (number, branch.number)
            owner[request.output] = (number, branch.number)
        last.add(trajectory.requests[block.branches[-1].requests[-1]].output)
    scopes: list[tuple[int, int] | None] = []
    current: tuple[int, int] | None = None
    for index in trajectory.final:
        # What separates two branches belongs to the first of them.
        current = owner.get(index, current)
        scopes.append(current)
        if index in last:
            current = None
    return scopes


def _next_position(
    scope: tuple[int, int] | None,
    spans: Sequence[tuple[int, int]],
    positions: Sequence[int],
    fork: int,
    deepest: int,
) -> int:
    """Where the next segment begins: behind the last token, or behind the longest branch."""
    if not positions:
        return 0
    joins = scope is None and spans[-1] != (0, 0)
    return max(fork, deepest) if joins else positions[-1] + 1


def _ends(spans: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    ends = np.full(len(spans), len(spans), dtype=np.int64)
    for at in range(len(spans) - 1, -1, -1):
        if spans[at] != (0, 0):
            same = at + 1 < len(spans) and spans[at + 1] == spans[at]
            ends[at] = ends[at + 1] if same else at + 1
    return ends


def _targets(trajectory: Trajectory, starts: dict[int, int]) -> tuple[list[int], list[int]]:
    """Rows that predict sampled tokens, and the request of each."""
    rows: list[int] = []
    numbers: list[int] = []
    for number, request in enumerate(trajectory.requests):
        output = trajectory.segments[request.output]
        if request.output not in starts or output.origin != "sampled":
            continue
        begin = starts[request.output]
        rows += range(begin - 1, begin - 1 + len(output))
        numbers += [number] * len(output)
    return rows, numbers
