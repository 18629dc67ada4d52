"""The figures of one answer and of many: what is counted, and what is derived from the counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from pydantic import BaseModel, ConfigDict


class Metrics(BaseModel):
    """Figures of one answer, in tokens (of the counter given, for texts). None: not known.

    Attributes:
        total_tokens: everything sampled; the sum of the next four.
        outside_tokens, plan_tokens, branch_tokens, merge_tokens: where it was sampled. Opening
            tags of a block count as its plan; a plan inside a branch counts as plan.
        critical_path: the longest chain of tokens that had to follow one another.
        loser_tokens: sampled in branches that a join policy dropped, and in all inside them.
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
    loser_tokens: int = 0
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
    def loser_share(self) -> float:
        """The share of tokens that lost a race."""
        return _share(self.loser_tokens, self.total_tokens)

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
        loser_tokens, loser_share: mean tokens of dropped branches, and their share of all tokens.
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
    loser_tokens: float
    loser_share: float
    branches_per_block: float | None
    tokens_per_branch: float | None
    prefill_tokens: float | None
    cached_tokens: float | None


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
        loser_tokens=fmean(m.loser_tokens for m in metrics),
        loser_share=_share(sum(m.loser_tokens for m in metrics), total),
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


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
