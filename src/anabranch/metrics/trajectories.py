"""Figures of a trajectory, from its requests and blocks.

The critical path of a line is what was sampled in it, plus for each of its blocks the longest
branch (recursively) and the merge; the plan is sampled in the line that opens the block. A call
that was sent again counts with all its attempts, since they followed one another; so does a branch
that was cancelled, with what it had sampled by then.
"""

from __future__ import annotations

from collections import defaultdict

from anabranch.dialects import Dialect, get_dialect, parse
from anabranch.errors import DialectError
from anabranch.metrics.documents import TextFigures, text_figures
from anabranch.metrics.figures import Metrics
from anabranch.records import Trajectory

#: Kinds of branches of which one success is enough, in all shipped dialects.
OR_KINDS = frozenset({"trial", "path"})

_Path = tuple[int, ...]


def trajectory_metrics(trajectory: Trajectory, dialect: Dialect | None = None) -> Metrics:
    """The figures of a trajectory, from its requests and blocks.

    Args:
        trajectory: finished or not.
        dialect: for what is read from the text (half tags, duplicates, format); default: the
            dialect that the trajectory names, where that is known.
    """
    tokens = _Requests(trajectory)
    plans = sum(block.plan_tokens for block in trajectory.blocks)
    outer_plans = sum(block.plan_tokens for block in trajectory.blocks if len(block.path) == 1)
    by_kind = tokens.by_kind(trajectory)
    branch, merge = sum(tokens.branch.values()), sum(tokens.merge.values())
    ran = [branch for block in trajectory.blocks for branch in block.branches if branch.requests]
    text = _from_text(trajectory, dialect)
    return Metrics(
        total_tokens=tokens.main + branch + merge,
        outside_tokens=tokens.main - outer_plans,
        plan_tokens=plans,
        branch_tokens=branch - (plans - outer_plans),
        merge_tokens=merge,
        critical_path=tokens.critical_path(),
        subtask_tokens=sum(n for kind, n in by_kind.items() if kind not in OR_KINDS),
        trial_tokens=sum(n for kind, n in by_kind.items() if kind in OR_KINDS),
        forced_tokens=trajectory.forced_tokens,
        prompt_tokens=trajectory.prompt_tokens,
        **_prefill(trajectory),
        loser_tokens=_losers(trajectory),
        branches_per_block=tuple(
            sum(bool(branch.requests) for branch in block.branches) for block in trajectory.blocks
        ),
        tokens_per_branch=tuple(
            sum(len(trajectory.segments[trajectory.requests[r].output]) for r in branch.requests)
            for branch in ran
        ),
        half_tags=text.half_tags,
        duplicate_branches=text.duplicates,
        well_formed=text.well_formed,
        correct=trajectory.verdict.correct if trajectory.verdict else None,
    )


class _Requests:
    """Sampled tokens of a trajectory by line: main, ``(block, branch)``, and merges by block."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.main = 0
        self.branch: dict[tuple[_Path, int], int] = defaultdict(int)
        self.merge: dict[_Path, int] = defaultdict(int)
        for request in trajectory.requests:
            size = len(trajectory.segments[request.output])
            if request.kind == "main":
                self.main += size
            elif request.kind == "merge":
                self.merge[request.block] += size
            else:
                self.branch[request.block, request.branch or 0] += size

    def by_kind(self, trajectory: Trajectory) -> dict[str, int]:
        """Branch tokens by the kind of their branch, plans inside branches left out."""
        kinds = {(b.path, one.number): one.kind for b in trajectory.blocks for one in b.branches}
        found: dict[str, int] = defaultdict(int)
        for line, size in self.branch.items():
            found[kinds.get(line, "branch")] += size
        for block in trajectory.blocks:
            if len(block.path) > 1:
                owner = (block.path[:-2], block.path[-2])
                found[kinds.get(owner, "branch")] -= block.plan_tokens
        return found

    def critical_path(self) -> int:
        paths = {path for path, _ in self.branch} | set(self.merge)
        longest: dict[tuple[_Path, int], int] = dict(self.branch)
        main = self.main
        # The innermost blocks first, so that a branch has its own blocks before it is compared.
        for path in sorted(paths, key=len, reverse=True):
            cost = max((n for (block, _), n in longest.items() if block == path), default=0)
            cost += self.merge.get(path, 0)
            if len(path) == 1:
                main += cost
            else:
                line = (path[:-2], path[-2])
                longest[line] = longest.get(line, 0) + cost
        return main


def _losers(trajectory: Trajectory) -> int:
    """Sampled tokens of dropped branches and of the blocks inside them, each token once."""
    dropped = {
        (*block.path, branch.number)
        for block in trajectory.blocks
        for branch in block.branches
        if branch.outcome == "cancelled"
    }
    if not dropped:
        return 0
    total = 0
    for request in trajectory.requests:
        own = (request.branch,) if request.kind == "branch" and request.branch is not None else ()
        place = (*request.block, *own)
        if any(place[:end] in dropped for end in range(2, len(place) + 1, 2)):
            total += len(trajectory.segments[request.output])
    return total


def _prefill(trajectory: Trajectory) -> dict[str, int | None]:
    """Context tokens of all calls, and how many of them had to be computed."""
    size = [len(segment) for segment in trajectory.segments]
    context = sum(size[index] for request in trajectory.requests for index in request.context)
    reports = [request.cached_tokens for request in trajectory.requests]
    cached = sum(report or 0 for report in reports)
    known = bool(reports) and None not in reports
    # A prefix tree of segments. What a call decoded stands in the cache and is not computed again.
    seen: set[tuple[int, int]] = set()
    nodes: dict[tuple[int, int], int] = {}
    decoded: set[tuple[int, int]] = set()

    def follow(node: int, segment: int) -> int:
        return nodes.setdefault((node, segment), len(nodes) + 1)

    for request in trajectory.requests:
        node = 0
        for index in request.context:
            seen.add((node, index))
            node = follow(node, index)
        decoded.add((node, request.output))
        follow(node, request.output)
    computed = [index for node, index in seen - decoded]
    again = [index for index in computed if trajectory.segments[index].origin == "sampled"]
    return {
        "context_tokens": context,
        "cached_tokens": cached if known else None,
        "prefill_tokens": context - cached if known else None,
        "ideal_prefill_tokens": sum(size[index] for index in computed),
        "recomputed_tokens": sum(size[index] for index in again),
    }


def _from_text(trajectory: Trajectory, dialect: Dialect | None) -> TextFigures:
    if dialect is None:
        try:
            dialect = get_dialect(trajectory.dialect)
        except DialectError:
            return TextFigures()
    return text_figures(parse(trajectory.text, dialect))
