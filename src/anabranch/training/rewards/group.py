"""What a reward sees: one rollout with its figures and verdict, and the whole group of a problem.

Figures come from :mod:`anabranch.metrics`; nothing here decides what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from anabranch.metrics import Metrics, trajectory_metrics
from anabranch.records import Trajectory, Verdict

#: How an answer stands. ``ungradable``: the grader could not say; ``failed``: no answer of the
#: policy at all (engine failure, cancelled, nothing sampled). Neither is the policy's fault.
Standing = Literal["correct", "wrong", "unparsed", "truncated", "ungradable", "failed"]

#: Field of a problem with the length of its sequential solution in tokens, where it is known.
REFERENCE = "sequential_tokens"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer to a problem: figures in tokens, and how it stands.

    Attributes:
        standing: see :data:`Standing`.
        metrics: of its trajectory.
        reference: tokens of a sequential solution of the problem, where known.
    """

    standing: Standing
    metrics: Metrics
    reference: float | None = None

    @property
    def correct(self) -> bool:
        return self.standing == "correct"

    @property
    def path(self) -> int:
        return self.metrics.critical_path

    @property
    def total(self) -> int:
        return self.metrics.total_tokens

    @property
    def forked(self) -> bool:
        """Whether there is at least one block."""
        return self.metrics.blocks > 0

    @property
    def well_formed(self) -> bool:
        """Format by the dialect's rules; unknown counts as not."""
        return bool(self.metrics.well_formed)


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one problem, in order."""

    rollouts: tuple[Rollout, ...]

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def graded(self) -> tuple[Rollout, ...]:
        """Those of which something can be said."""
        return tuple(r for r in self.rollouts if r.standing not in ("ungradable", "failed"))

    @property
    def accuracy(self) -> float:
        """Share of right answers among those graded; 0 without any."""
        graded = self.graded
        return fmean(r.correct for r in graded) if graded else 0.0

    @property
    def sequential_length(self) -> float | None:
        """Tokens that the problem takes in one line, by the best source there is.

        The problem's own reference; else the mean of the group's right answers without a block;
        else None.
        """
        known = [r.reference for r in self.rollouts if r.reference]
        if known:
            return fmean(known)
        lines = [r.total for r in self.graded if r.correct and not r.forked]
        return fmean(lines) if lines else None


def standing_of(trajectory: Trajectory, verdict: Verdict) -> Standing:
    """How an answer stands, from its verdict and its outcome.

    A right answer is right however it ended; of the others, an end by a limit is ``truncated``.
    """
    if trajectory.sampled_tokens == 0 or trajectory.outcome in ("failed", "cancelled"):
        return "failed"
    if verdict.correct:
        return "correct"
    if verdict.status in ("timeout", "error"):
        return "ungradable"
    if verdict.status == "truncated" or trajectory.outcome in ("truncated", "context_exhausted"):
        return "truncated"
    return "unparsed" if verdict.status == "unparsed" else "wrong"


def group_of(trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict]) -> Group:
    """The group of one problem's trajectories and their verdicts."""
    rollouts = []
    for trajectory, verdict in zip(trajectories, verdicts, strict=True):
        extra = (trajectory.problem.model_extra or {}) if trajectory.problem else {}
        reference = extra.get(REFERENCE)
        rollouts.append(
            Rollout(
                standing=standing_of(trajectory, verdict),
                metrics=trajectory_metrics(trajectory),
                reference=float(reference) if isinstance(reference, int | float) else None,
            )
        )
    return Group(tuple(rollouts))
