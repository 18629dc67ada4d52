"""What becomes of a sample that is too long: a named policy, and a list of what was lost.

Two limits: the tokens of a row, for the whole tree, and the model's window, for each request.
Requests are kept or left out as wholes; nothing is ever cut. Copies of a later request's context
are part of that request, so leaving it out frees them.

``skip`` leaves the sample out, ``error`` stops. ``drop`` leaves out requests until the rest fits:
the last request of the main line first, the isolated copies of branches last. ``split`` makes
several trees of one: each takes whole blocks, in order, with the context they were written in, so
every target stays, once, but for requests that do not fit by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.records import Trajectory
from anabranch.training.layout import (
    LayoutError,
    Path,
    TreeLayout,
    Weight,
    layout_paths,
    paths_of,
)

Policy = Literal["error", "skip", "drop", "split"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest tree and longest request, in tokens; None is no limit."""

    row: int | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """The trees of one sample.

    Attributes:
        layouts: none when the sample is left out.
        lost: what was left out and why, or None when everything is there.
    """

    layouts: tuple[TreeLayout, ...]
    lost: str | None = None


def fit(
    layout: TreeLayout,
    group: Sequence[Trajectory] | None,
    limits: Limits,
    policy: Policy,
    *,
    weight: Weight | None = None,
) -> Fitted:
    """Bring one sample under the limits.

    Args:
        layout: of the whole sample.
        group: its trajectories; None for a ready layout, which can only be used whole.
        limits: of tree and request.
        policy: see the module.
        weight: of a request's edges, as the layout was made with.

    Raises:
        LayoutError: it is too long and the policy is ``error``.
    """
    reason = _excess(layout, limits)
    if reason is None:
        return Fitted((layout,))
    if policy == "error":
        raise LayoutError(reason)
    if policy == "skip" or group is None:
        return Fitted((), reason)
    paths = [p for number, one in enumerate(group) for p in paths_of(one, number, weight)]
    kinds = [_kind(group, path) for path in paths]
    short = [n for n, path in enumerate(paths) if _within(path, limits.window)]
    if policy == "drop":
        parts = [_dropped(paths, kinds, short, limits.row)]
    else:
        parts = list(_split(paths, kinds, short, limits.row))
    parts = [part for part in parts if part]
    kept = {n for part in parts for n in part}
    lost = [n for n in range(len(paths)) if n not in kept]
    listed = ", ".join(f"{kinds[n]} request {paths[n].request}" for n in lost)
    if not parts:
        return Fitted((), f"{reason}, and none of its requests fits by itself")
    layouts = tuple(layout_paths([paths[n] for n in part], name=layout.name) for part in parts)
    if not lost:
        return Fitted(layouts, f"{reason}: split into {len(parts)} trees")
    parted = f"split into {len(parts)} trees, " if policy == "split" else ""
    return Fitted(layouts, f"{reason}: {parted}left out {listed}")


def _excess(layout: TreeLayout, limits: Limits) -> str | None:
    name = layout.name or "trajectory"
    if limits.row is not None and len(layout) > limits.row:
        return f"{name}: the tree has {len(layout)} tokens, a row only {limits.row}"
    longest = int(layout.positions.max()) + 1
    if limits.window is not None and longest > limits.window:
        return f"{name}: a request has {longest} tokens, the model's window only {limits.window}"
    return None


def _kind(group: Sequence[Trajectory], path: Path) -> str:
    return group[path.trajectory].requests[path.request].kind


def _length(path: Path) -> int:
    return sum(map(len, path.context)) + len(path.completion)


def _within(path: Path, limit: int | None) -> bool:
    return limit is None or _length(path) <= limit


def _fits(paths: Sequence[Path], chosen: Sequence[int], row: int | None) -> bool:
    if row is None:
        return True
    # Each request alone is a lower bound, which saves laying out what cannot fit.
    if any(_length(paths[n]) > row for n in chosen):
        return False
    return len(layout_paths([paths[n] for n in chosen])) <= row


def _dropped(
    paths: Sequence[Path], kinds: Sequence[str], chosen: list[int], row: int | None
) -> list[int]:
    left = list(chosen)
    while left and not _fits(paths, left, row):
        ends = _ends(paths, left)
        main = [n for n in ends if kinds[n] != "branch"]
        left.remove((main or ends)[-1])
    return left


def _ends(paths: Sequence[Path], chosen: Sequence[int]) -> list[int]:
    """Requests that no other one goes on from: only leaving out these frees tokens."""
    runs = {n: (*filter(None, paths[n].context), paths[n].completion) for n in chosen}
    inner = {(run[:cut]) for run in runs.values() for cut in range(1, len(run))}
    return [n for n in chosen if runs[n] not in inner]


def _split(
    paths: Sequence[Path], kinds: Sequence[str], chosen: list[int], row: int | None
) -> Iterator[list[int]]:
    part: list[int] = []
    for block in _blocks(paths, kinds, chosen):
        if _fits(paths, [*part, *block], row):
            part += block
            continue
        yield part
        part = []
        # A block that does not fit goes request by request; one that does is one step.
        pieces = [block] if _fits(paths, block, row) else [[n] for n in block]
        for piece in pieces:
            if not _fits(paths, piece, row):
                continue
            if part and not _fits(paths, [*part, *piece], row):
                yield part
                part = []
            part += piece
    yield part


def _blocks(
    paths: Sequence[Path], kinds: Sequence[str], chosen: Sequence[int]
) -> Iterator[list[int]]:
    """A request of the main line and the branches that it opened."""
    block: list[int] = []
    for n in chosen:
        new = kinds[n] == "main" or (block and paths[block[0]].trajectory != paths[n].trajectory)
        if new and block:
            yield block
            block = []
        block.append(n)
    if block:
        yield block
