"""Several trees in rows of bounded length, and rows as one padded batch of numpy arrays.

Trees in one row are separate roots, so the intervals of the layout isolate them by construction;
a padding token sees itself alone, so no query is left without a key. Which trees go into which
optimizer step is in :mod:`anabranch.training.batches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.training.layout import Floats, Ints, LayoutError, TreeLayout


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """``B`` rows padded to ``L`` tokens, with the edges of all rows.

    Attributes:
        ids, positions, subtree_end: ``[B, L]``.
        rows: ``[E]`` indices into the flattened ``[B * L]`` tokens.
        tokens, weights, trajectory, request, logprobs: ``[E]``, see :class:`TreeLayout`;
            ``trajectory`` counts through the batch.
        real_tokens: tokens that are not padding.
    """

    ids: Ints
    positions: Ints
    subtree_end: Ints
    rows: Ints
    tokens: Ints
    weights: Floats
    trajectory: Ints
    request: Ints
    logprobs: Floats
    real_tokens: int


def plan_rows(lengths: Sequence[int], max_len: int) -> list[list[int]]:
    """Which trees share a row: first fit, longest first; ties keep their order.

    Args:
        lengths: of the trees; none may exceed ``max_len``.
        max_len: the row's length.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        need = lengths[index]
        for row, room in enumerate(free):
            if need <= room:
                rows[row].append(index)
                free[row] -= need
                break
        else:
            rows.append([index])
            free.append(max_len - need)
    return rows


def pack(layouts: Sequence[TreeLayout], max_len: int) -> list[TreeLayout]:
    """Fill rows of at most ``max_len`` tokens.

    Raises:
        LayoutError: a tree is longer than a row; the message names it and both lengths.
    """
    for layout in layouts:
        if len(layout) > max_len:
            raise LayoutError(
                f"{layout.name or 'trajectory'}: the tree has {len(layout)} tokens, "
                f"a row only {max_len}"
            )
    plan = plan_rows([len(layout) for layout in layouts], max_len)
    return [join([layouts[index] for index in row]) for row in plan]


def by_length(layouts: Sequence[TreeLayout]) -> list[TreeLayout]:
    """Every tree as a row of its own, longest first; ties keep their order."""
    return sorted(layouts, key=lambda layout: -len(layout))


def join(layouts: Sequence[TreeLayout]) -> TreeLayout:
    """Several layouts behind one another as one forest."""
    if len(layouts) == 1:
        return layouts[0]
    token_offset = _offsets([len(layout) for layout in layouts])
    group_offset = _offsets([_groups(layout) for layout in layouts])

    def moved(name: str, offsets: Sequence[int]) -> Ints:
        return np.concatenate(
            [getattr(x, name) + offset for x, offset in zip(layouts, offsets, strict=True)]
        )

    def joined(name: str) -> Ints:
        return np.concatenate([getattr(layout, name) for layout in layouts])

    return TreeLayout(
        name="+".join(layout.name for layout in layouts),
        ids=joined("ids"),
        positions=joined("positions"),
        subtree_end=moved("subtree_end", token_offset),
        rows=moved("rows", token_offset),
        tokens=joined("tokens"),
        weights=np.concatenate([layout.weights for layout in layouts]),
        trajectory=moved("trajectory", group_offset),
        request=joined("request"),
        logprobs=np.concatenate([layout.logprobs for layout in layouts]),
        raw_tokens=sum(layout.raw_tokens for layout in layouts),
    )


def collate(rows: Sequence[TreeLayout], *, pad_id: int = 0, multiple: int = 1) -> TreeBatch:
    """Pad rows to one length. No rows at all give one row of padding without targets.

    Args:
        rows: as from :func:`pack`.
        pad_id: token id of padding.
        multiple: the padded length is a multiple of this.
    """
    longest = max((len(row) for row in rows), default=1)
    width = -(-longest // multiple) * multiple
    shape = (max(len(rows), 1), width)
    ids = np.full(shape, pad_id, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    subtree_end = np.broadcast_to(np.arange(1, width + 1, dtype=np.int64), shape).copy()
    for number, row in enumerate(rows):
        count = len(row)
        ids[number, :count] = row.ids
        positions[number, :count] = row.positions
        subtree_end[number, :count] = row.subtree_end
    groups = _offsets([_groups(row) for row in rows])
    return TreeBatch(
        ids=ids,
        positions=positions,
        subtree_end=subtree_end,
        rows=_concatenate([row.rows + n * width for n, row in enumerate(rows)]),
        tokens=_concatenate([row.tokens for row in rows]),
        weights=_floats([row.weights for row in rows]),
        trajectory=_concatenate([r.trajectory + g for r, g in zip(rows, groups, strict=True)]),
        request=_concatenate([row.request for row in rows]),
        logprobs=_floats([row.logprobs for row in rows]),
        real_tokens=sum(len(row) for row in rows),
    )


def _groups(layout: TreeLayout) -> int:
    return int(layout.trajectory.max()) + 1 if len(layout.trajectory) else 0


def _offsets(counts: Sequence[int]) -> list[int]:
    offsets, total = [], 0
    for count in counts:
        offsets.append(total)
        total += count
    return offsets


def _concatenate(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _floats(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
