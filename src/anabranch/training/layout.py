"""Trajectories as one tree laid out in depth-first order, with explicit target edges.

Every request that decoding made is a path ``context → completion``. Paths that begin alike share
their tokens, so a prompt, a plan or a first branch is computed once. The result is plain numpy:
how attention reads it is in :mod:`anabranch.training.attention`, how rows are filled in
:mod:`anabranch.training.packing`. Tokens are shared by whole segments, never by parts of one.

``allowed(q, k) = k <= q < subtree_end[k]``: a token sees its ancestors and itself, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anabranch.errors import AnabranchError
from anabranch.records import Request, Trajectory

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Weight = Callable[[Trajectory, Request], float]


class LayoutError(AnabranchError):
    """A trajectory cannot be laid out as a tree, or does not fit where it should."""


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """A forest in one sequence of ``N`` tokens, with ``E`` target edges.

    Attributes:
        name: which trajectory or group this is, for messages.
        ids: ``[N]`` token ids in depth-first order.
        positions: ``[N]`` depth of each token: its position in every request that contains it.
        subtree_end: ``[N]`` exclusive end of each token's subtree.
        rows: ``[E]`` the token whose output predicts the target; several edges may share a row.
        tokens: ``[E]`` the token to be predicted.
        weights: ``[E]`` what the edge counts in the loss.
        trajectory, request: ``[E]`` which trajectory of the group, and which of its requests,
            sampled the target.
        logprobs: ``[E]`` log-prob at sampling, NaN where it is not known.
        raw_tokens: how many tokens the same requests have as separate sequences.
    """

    name: str
    ids: Ints
    positions: Ints
    subtree_end: Ints
    rows: Ints
    tokens: Ints
    weights: Floats
    trajectory: Ints
    request: Ints
    logprobs: Floats
    raw_tokens: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def weight(self) -> float:
        """Sum of the weights of all edges."""
        return float(self.weights.sum(dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Path:
    """One request as token runs: what it saw, and what it sampled.

    A lighter way in than a :class:`Trajectory`: ``context`` and ``completion`` are tuples of ids.
    """

    context: tuple[tuple[int, ...], ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    trajectory: int = 0
    request: int = 0
    weight: float = 1.0


def build_layout(
    trajectories: Trajectory | Sequence[Trajectory],
    *,
    weight: Weight | None = None,
    name: str | None = None,
) -> TreeLayout:
    """Lay out one trajectory, or a group of them that share a prompt.

    Only sampled outputs are targets, each in its own request; a copy inside a later request's
    context is context only, and forced and prompt tokens never are targets.

    Args:
        trajectories: one, or the rollouts of one group.
        weight: weight of every edge of a request; 0 leaves the request out. Default 1.
        name: for messages; default the trajectory's id.

    Raises:
        LayoutError: nothing was sampled, a completion has no context, a segment is the output of
            two requests, or log-probs do not match the tokens.
    """
    group = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
    if name is None:
        name = group[0].id if group else ""
    paths: list[Path] = []
    for number, trajectory in enumerate(group):
        paths += paths_of(trajectory, number, weight)
    return layout_paths(paths, name=name)


def layout_paths(paths: Sequence[Path], *, name: str = "") -> TreeLayout:
    """Lay out requests given as token runs. Errors as in :func:`build_layout`."""
    if not any(path.completion for path in paths):
        raise LayoutError(f"{name or 'trajectory'}: no request sampled anything")
    trie = _Trie()
    used: list[tuple[Path, int]] = []
    raw = 0
    for path in paths:
        if not path.completion:
            continue
        node = 0
        for run in path.context:
            if run:
                node = trie.child(node, run)
                raw += len(run)
        if node == 0:
            raise LayoutError(
                f"{name or 'trajectory'}: request {path.request} has an empty context, so nothing "
                "can predict its first token; give it a prompt or a begin-of-text token"
            )
        if path.logprobs is not None and len(path.logprobs) != len(path.completion):
            raise LayoutError(
                f"{name or 'trajectory'}: request {path.request} has {len(path.completion)} "
                f"sampled tokens but {len(path.logprobs)} log-probs"
            )
        used.append((path, trie.child(node, path.completion)))
        raw += len(path.completion)
    return _assemble(trie, used, name, raw)


def paths_of(trajectory: Trajectory, number: int = 0, weight: Weight | None = None) -> list[Path]:
    """The requests of a trajectory that are targets, as token runs in the order of the record.

    Args:
        trajectory: the record.
        number: which of its group it is.
        weight: as in :func:`build_layout`.

    Raises:
        LayoutError: a segment is the output of two requests.
    """
    segments = trajectory.segments
    seen: dict[int, int] = {}
    paths = []
    for index, request in enumerate(trajectory.requests):
        output = segments[request.output]
        if output.origin != "sampled" or not output.ids:
            continue
        if request.output in seen:
            raise LayoutError(
                f"{trajectory.id or 'trajectory'}: segment {request.output} is the output of "
                f"requests {seen[request.output]} and {index}"
            )
        seen[request.output] = index
        value = 1.0 if weight is None else weight(trajectory, request)
        if value == 0.0:
            continue
        context = tuple(segments[i].ids for i in request.context)
        paths.append(Path(context, output.ids, output.logprobs, number, index, value))
    return paths


class _Trie:
    """Nodes are runs of tokens; a child is found by the identity of its run's ids.

    Runs are interned once, so walking a long context costs one small look-up per segment.
    """

    def __init__(self) -> None:
        self.keys: dict[tuple[int, ...], int] = {}
        self.by_object: dict[int, int] = {}
        self.runs: list[tuple[int, ...]] = []
        self.children: list[dict[int, int]] = [{}]
        self.run: list[int] = [-1]
        self.parent: list[int] = [-1]

    def child(self, node: int, run: tuple[int, ...]) -> int:
        # `runs` keeps the interned tuple alive, so its id cannot be taken by another one.
        key = self.by_object.get(id(run))
        if key is None:
            key = self.keys.setdefault(run, len(self.runs))
            if key == len(self.runs):
                self.runs.append(run)
                self.by_object[id(run)] = key
        found = self.children[node].get(key)
        if found is not None:
            return found
        new = len(self.run)
        self.children[node][key] = new
        self.children.append({})
        self.run.append(key)
        self.parent.append(node)
        return new

    def preorder(self) -> list[int]:
        order: list[int] = []
        stack = list(reversed(self.children[0].values()))
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(self.children[node].values()))
        return order


def _assemble(
    trie: _Trie, used: Sequence[tuple[Path, int]], name: str, raw_tokens: int
) -> TreeLayout:
    flat: list[int] = []
    for run in trie.runs:
        flat += run
    tokens = np.array(flat, dtype=np.int64)
    run_length = np.array([len(run) for run in trie.runs], dtype=np.int64)
    run_start = np.cumsum(run_length) - run_length

    order = np.array(trie.preorder(), dtype=np.int64)
    parent = np.array(trie.parent, dtype=np.int64)
    run_of = np.array(trie.run, dtype=np.int64)
    length = np.zeros(len(trie.run), dtype=np.int64)
    length[1:] = run_length[run_of[1:]]
    start = np.zeros_like(length)
    start[order] = np.cumsum(length[order]) - length[order]
    depth, size = np.zeros_like(length), length.copy()
    # A parent always has a smaller number than its children.
    for node in range(1, len(length)):
        depth[node] = depth[parent[node]] + length[parent[node]]
    for node in range(len(length) - 1, 0, -1):
        size[parent[node]] += size[node]

    sizes = length[order]
    within = _within(sizes)
    ids = tokens[np.repeat(run_start[run_of[order]], sizes) + within]
    positions = np.repeat(depth[order], sizes) + within
    subtree_end = np.repeat(start[order] + size[order], sizes)
    return _with_edges(name, ids, positions, subtree_end, raw_tokens, used, start, length, parent)


def _with_edges(
    name: str,
    ids: Ints,
    positions: Ints,
    subtree_end: Ints,
    raw_tokens: int,
    used: Sequence[tuple[Path, int]],
    start: Ints,
    length: Ints,
    parent: Ints,
) -> TreeLayout:
    nodes = np.array([node for _, node in used], dtype=np.int64)
    counts = length[nodes]
    targets = np.repeat(start[nodes], counts) + _within(counts)
    rows = targets - 1
    above = parent[nodes]
    rows[np.cumsum(counts) - counts] = start[above] + length[above] - 1
    logprobs: list[float] = []
    for path, _ in used:
        logprobs += path.logprobs or (math.nan,) * len(path.completion)
    return TreeLayout(
        name=name,
        ids=ids,
        positions=positions,
        subtree_end=subtree_end,
        rows=rows,
        tokens=ids[targets],
        weights=np.repeat(np.array([p.weight for p, _ in used], dtype=np.float32), counts),
        trajectory=np.repeat(np.array([p.trajectory for p, _ in used], dtype=np.int64), counts),
        request=np.repeat(np.array([p.request for p, _ in used], dtype=np.int64), counts),
        logprobs=np.array(logprobs, dtype=np.float32),
        raw_tokens=raw_tokens,
    )


def _within(counts: Ints) -> Ints:
    """``[0, 1, …, c0 - 1, 0, 1, …, c1 - 1, …]``"""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)
