"""Figures of trajectories: tokens, critical path, parallelism, prefill. Pure functions.

Only sampled tokens count: prompts never enter, and what the runtime wrote is counted apart. The
**critical path** of a line is what was sampled in it, plus for each of its blocks the longest
branch (recursively) and the merge; the plan is sampled in the line that opens the block. A call
that was sent again counts with all its attempts, since they followed one another; so does a branch
that was cancelled, with what it had sampled by then. Grading and intervals are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from anabranch.dialects import Block, Branch, Dialect, Document, TextPart, get_dialect, parse
from anabranch.dialects.writer import opening
from anabranch.errors import DialectError
from anabranch.records import Trajectory

#: Kinds of branches of which one success is enough, in all shipped dialects.
OR_KINDS = frozenset({"trial", "path"})

_STUB = re.compile(r"\[[a-z]+\]")


class Metrics(BaseModel):
    """Figures of one answer, in tokens (of the counter given, for texts). None: not known.

    Attributes:
        total_tokens: everything sampled; the sum of the next four.
        outside_tokens, plan_tokens, branch_tokens, merge_tokens: where it was sampled. Opening
            tags of a block count as its plan; a plan inside a branch counts as plan.
        critical_path: the longest chain of tokens that had to follow one another.
        subtask_tokens, trial_tokens: branch tokens by kind: all needed, or one success enough.
        forced_tokens: written by the runtime.
        prompt_tokens: of the prompt, once.
        context_tokens: prompts of all calls together: the prefill without any cache.
        cached_tokens, prefill_tokens: what engines reported as cached, and the rest; None unless
            every call reported it.
        ideal_prefill_tokens: the prefill with a perfect prefix cache, the prompt included.
        recomputed_tokens: sampled tokens in that: branches which the join sees in another place.
        branches_per_block, tokens_per_branch: of blocks in order, of all branches that ran.
        half_tags, duplicate_branches: pieces of tags; branches that repeat one of their block.
    """

    model_config = ConfigDict(frozen=True)

    total_tokens: int
    outside_tokens: int
    plan_tokens: int
    branch_tokens: int
    merge_tokens: int
    critical_path: int
    subtask_tokens: int
    trial_tokens: int
    forced_tokens: int
    prompt_tokens: int | None = None
    context_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_tokens: int | None = None
    ideal_prefill_tokens: int | None = None
    recomputed_tokens: int | None = None
    branches_per_block: tuple[int, ...] = ()
    tokens_per_branch: tuple[int, ...] = ()
    half_tags: int | None = None
    duplicate_branches: int | None = None
    well_formed: bool | None = None
    correct: bool | None = None

    @property
    def blocks(self) -> int:
        return len(self.branches_per_block)

    @property
    def acceleration(self) -> float:
        """``1 − critical / total``: 0 for a sequential answer (ThreadWeaver's reward)."""
        return 1 - self.critical_path / self.total_tokens if self.total_tokens else 0.0

    @property
    def acceleration_ratio(self) -> float:
        """``total / critical``: 1 for a sequential answer (Parason's figure)."""
        return self.total_tokens / self.critical_path if self.critical_path else 1.0

    @property
    def parallel_ratio(self) -> float:
        """The share of tokens inside blocks."""
        inside = self.plan_tokens + self.branch_tokens + self.merge_tokens
        return _share(inside, self.total_tokens)

    @property
    def subtask_ratio(self) -> float:
        return _share(self.subtask_tokens, self.total_tokens)

    @property
    def trial_ratio(self) -> float:
        return _share(self.trial_tokens, self.total_tokens)


class Summary(BaseModel):
    """Figures of many answers. Shares of tokens are of all tokens together, not means of shares.

    Attributes:
        activation_ratio: share of answers with a block.
        format_correctness: share of well-formed answers; half_tag_share: with pieces of tags.
        duplicate_branch_share: of all branches.
        acceleration: mean over answers of ``1 − critical / total``.
        acceleration_ratio: mean total over mean critical path.
        mean_acceleration_ratio: mean over answers of ``total / critical``.
        accuracy: share of right answers among those graded.
    """

    rows: int
    activation_ratio: float
    format_correctness: float | None
    half_tag_share: float | None
    duplicate_branch_share: float | None
    accuracy: float | None
    total_tokens: float
    critical_path: float
    forced_tokens: float
    acceleration: float
    acceleration_ratio: float
    mean_acceleration_ratio: float
    parallel_ratio: float
    subtask_ratio: float
    trial_ratio: float
    branches_per_block: float | None
    tokens_per_branch: float | None
    prefill_tokens: float | None
    cached_tokens: float | None


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
    text = _text_figures(trajectory, dialect)
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


def document_metrics(document: Document, dialect: Dialect, count: Callable[[str], int]) -> Metrics:
    """The figures of a text, as if it had been decoded in its dialect.

    Args:
        document: what :func:`anabranch.dialects.parse` read.
        dialect: says which parts the runtime writes (branch headers, the join) and which the model.
        count: tokens of a piece of text. Pieces are counted in canonical spacing, each on its own.
    """
    tally = _Tally(dialect, count)
    critical = tally.line(document.parts, outside=True)
    inside = tally.plan + tally.subtask + tally.trial + tally.merge
    blocks = list(document.all_blocks())
    text = _document_figures(document)
    return Metrics(
        total_tokens=tally.outside + inside,
        outside_tokens=tally.outside,
        plan_tokens=tally.plan,
        branch_tokens=tally.subtask + tally.trial,
        merge_tokens=tally.merge,
        critical_path=critical,
        subtask_tokens=tally.subtask,
        trial_tokens=tally.trial,
        forced_tokens=tally.forced,
        branches_per_block=tuple(len(block.branches) for block in blocks),
        tokens_per_branch=tuple(tally.branches),
        half_tags=text.half_tags,
        duplicate_branches=text.duplicates,
        well_formed=text.well_formed,
    )


def summarise(metrics: Sequence[Metrics]) -> Summary:
    """Means and shares over answers; raises ValueError without any."""
    if not metrics:
        raise ValueError("no metrics to summarise")
    total = sum(m.total_tokens for m in metrics)
    critical = sum(m.critical_path for m in metrics)
    inside = total - sum(m.outside_tokens for m in metrics)
    duplicates = [m for m in metrics if m.duplicate_branches is not None]
    branches = sum(sum(m.branches_per_block) for m in duplicates)
    return Summary(
        rows=len(metrics),
        activation_ratio=fmean(m.blocks > 0 for m in metrics),
        format_correctness=_mean(m.well_formed for m in metrics),
        half_tag_share=_mean(m.half_tags and m.half_tags > 0 for m in metrics),
        duplicate_branch_share=(
            _share(sum(m.duplicate_branches or 0 for m in duplicates), branches)
            if duplicates
            else None
        ),
        accuracy=_mean(m.correct for m in metrics),
        total_tokens=total / len(metrics),
        critical_path=critical / len(metrics),
        forced_tokens=fmean(m.forced_tokens for m in metrics),
        acceleration=fmean(m.acceleration for m in metrics),
        acceleration_ratio=total / critical if critical else 1.0,
        mean_acceleration_ratio=fmean(m.acceleration_ratio for m in metrics),
        parallel_ratio=_share(inside, total),
        subtask_ratio=_share(sum(m.subtask_tokens for m in metrics), total),
        trial_ratio=_share(sum(m.trial_tokens for m in metrics), total),
        branches_per_block=_mean(n for m in metrics for n in m.branches_per_block),
        tokens_per_branch=_mean(n for m in metrics for n in m.tokens_per_branch),
        prefill_tokens=_mean(m.prefill_tokens for m in metrics),
        cached_tokens=_mean(m.cached_tokens for m in metrics),
    )


def speed_up(sequential: Sequence[Metrics], parallel: Sequence[Metrics]) -> float:
    """The sequential model's mean tokens over the parallel model's mean critical path.

    Both sequences must be of the same problems; raises ValueError when their lengths differ, or
    there is nothing to compare.
    """
    if len(sequential) != len(parallel):
        raise ValueError(f"{len(sequential)} sequential and {len(parallel)} parallel answers")
    path = sum(m.critical_path for m in parallel)
    if not path:
        raise ValueError("the parallel answers have no tokens")
    return sum(m.total_tokens for m in sequential) / path


# Trajectories: which request belongs to which line.

_Path = tuple[int, ...]


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


# Texts.


@dataclass(frozen=True)
class _TextFigures:
    half_tags: int | None = None
    duplicates: int | None = None
    well_formed: bool | None = None


def _text_figures(trajectory: Trajectory, dialect: Dialect | None) -> _TextFigures:
    if dialect is None:
        try:
            dialect = get_dialect(trajectory.dialect)
        except DialectError:
            return _TextFigures()
    return _document_figures(parse(trajectory.text, dialect))


def _document_figures(document: Document) -> _TextFigures:
    half = sum(finding.code == "half_tag" for finding in document.diagnostics)
    duplicates = sum(_duplicates(block) for block in document.all_blocks())
    return _TextFigures(half, duplicates, document.well_formed)


def _duplicates(block: Block) -> int:
    """Branches whose text, but for case and white space, an earlier one of the block has."""
    texts = [" ".join(branch.text.casefold().split()) for branch in block.branches]
    told = [text for text in texts if text and not _STUB.fullmatch(text)]
    return len(told) - len(set(told))


class _Tally:
    """Counts the pieces of a document as the runtime and the model would write them."""

    def __init__(self, dialect: Dialect, count: Callable[[str], int]) -> None:
        self.dialect, self.count = dialect, count
        self.outside = self.plan = self.subtask = self.trial = self.merge = self.forced = 0
        self.branches: list[int] = []

    def line(self, parts: Iterable[TextPart | Block], *, outside: bool) -> int:
        """Counts a line; returns its critical path."""
        path = 0
        for part in parts:
            if isinstance(part, Block):
                path += self.block(part)
                continue
            size = self.count(part.text)
            path += size
            if outside:
                self.outside += size
        return path

    def block(self, block: Block) -> int:
        dialect, count = self.dialect, self.count
        plan = count(opening(block, dialect))
        self.plan += plan
        paths = [self.branch(branch) for branch in block.branches]
        gaps = max(0, len(paths) - 1)
        self.forced += count(dialect.fork_text) + gaps * count(dialect.branch_separator)
        self.forced += count(dialect.join_text()) + count(dialect.after_merge)
        merge = 0
        if dialect.merge is not None and block.merge is not None:
            merge = count(block.merge + dialect.close_merge)
            self.merge += merge
        return plan + max(paths, default=0) + merge

    def branch(self, branch: Branch) -> int:
        dialect, count = self.dialect, self.count
        self.forced += count(dialect.branch_header(branch.number))
        if not branch.parts:
            own = path = count(dialect.spacing.body_open + branch.text + dialect.close_branch)
        else:
            texts = [part for part in branch.parts if isinstance(part, TextPart)]
            own = sum(count(part.text) for part in texts) + count(dialect.close_branch)
            path = self.line(branch.parts, outside=False) + count(dialect.close_branch)
        if branch.kind in dialect.or_kinds:
            self.trial += own
        else:
            self.subtask += own
        self.branches.append(own)
        return path


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
