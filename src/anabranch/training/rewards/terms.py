"""The terms of a reward: each gives one number per rollout of a group.

A term is a pydantic model with a ``kind``, so a configuration names it; its ``weight`` scales it,
``when`` says for which rollouts it counts. Values are of the whole group at once, because some of
them compare a rollout with its siblings. Sums and products of terms are made in ``compose``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from anabranch.training.rewards.group import Group, Rollout
from anabranch.training.rewards.shapes import SHAPES, Shape, mean_of, z_scores


class _Term(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weight: float = 1.0
    when: Literal["correct", "wrong", "always"] = "correct"

    def values(self, group: Group) -> list[float]:
        """One value per rollout, before weight and ``when``."""
        raise NotImplementedError

    def counts(self, rollout: Rollout) -> bool:
        """Whether the term applies to a rollout."""
        return self.when == "always" or rollout.correct == (self.when == "correct")


class Acceleration(_Term):
    """How much shorter the critical path is: ``min(rho · min(η, clip), cap)``.

    ``form`` says what η is: ``share`` is ``1 − path / total`` (ThreadWeaver), ``ratio`` is
    ``total / path``. Both count the tokens of wasted branches as gain, and a low ``clip`` is
    reached by any fork; :class:`SequentialGain` has neither fault.
    """

    kind: Literal["acceleration"] = "acceleration"
    form: Literal["share", "ratio"] = "share"
    rho: float = Field(default=0.5, ge=0)
    clip: float | None = Field(default=None, gt=0)
    cap: float | None = Field(default=None, gt=0)

    def values(self, group: Group) -> list[float]:
        return [self._value(rollout) for rollout in group.rollouts]

    def _value(self, rollout: Rollout) -> float:
        metrics = rollout.metrics
        gain = metrics.acceleration if self.form == "share" else metrics.acceleration_ratio
        if self.clip is not None:
            gain = min(gain, self.clip)
        return self.rho * gain if self.cap is None else min(self.rho * gain, self.cap)


class SequentialGain(_Term):
    """``1 − path / L``, L the tokens of the problem in one line; never clipped flat.

    L is :attr:`Group.sequential_length`; without any source the mean path of the group, so that
    shorter paths still count for more. Tokens of wasted branches are no gain, a finer split is,
    and a fork that is longer than the line costs. Bounded below by −1.
    """

    kind: Literal["sequential_gain"] = "sequential_gain"

    def values(self, group: Group) -> list[float]:
        length = group.sequential_length
        if length is None:
            paths = [rollout.path for rollout in group.graded]
            length = mean_of(paths) if paths else 0.0
        if length <= 0:
            return [0.0] * len(group)
        return [max(-1.0, 1 - rollout.path / length) for rollout in group.rollouts]


class _GroupTerm(_Term):
    """``f`` of a z-score over the group; 0 where the group does not vary.

    Rollouts that could not be graded, or failed, take no part in mean and deviation.
    """

    f: Shape = "tanh"

    def of(self, group: Group, figure: Callable[[Rollout], float]) -> list[float]:
        shape, graded = SHAPES[self.f], group.graded
        scores = iter(z_scores([figure(rollout) for rollout in graded]))
        taken = {"ungradable", "failed"}
        return [0.0 if r.standing in taken else shape(next(scores)) for r in group.rollouts]


class PathLatency(_GroupTerm):
    """``−f((T − μ) / σ)``, T the critical path in tokens (Parason, weighted by α)."""

    kind: Literal["path_latency"] = "path_latency"

    def values(self, group: Group) -> list[float]:
        return [-value for value in self.of(group, lambda r: float(r.path))]


class SubtaskRatio(_GroupTerm):
    """``f`` of the z-score of the share of tokens in subtasks (Parason, weighted by β_sub)."""

    kind: Literal["subtask_ratio"] = "subtask_ratio"

    def values(self, group: Group) -> list[float]:
        return self.of(group, lambda r: r.metrics.subtask_ratio)


class TrialRatio(_GroupTerm):
    """``f`` of the z-score of the share of tokens in trials (Parason, weighted by β_trial)."""

    kind: Literal["trial_ratio"] = "trial_ratio"

    def values(self, group: Group) -> list[float]:
        return self.of(group, lambda r: r.metrics.trial_ratio)


class ParallelUse(_Term):
    """1 with at least one block, else 0; ``well_formed`` asks for right format as well."""

    kind: Literal["parallel_use"] = "parallel_use"
    well_formed: bool = False

    def values(self, group: Group) -> list[float]:
        return [float(r.forked and (r.well_formed or not self.well_formed)) for r in group.rollouts]


class Format(_Term):
    """1 for a well-formed answer, else 0."""

    kind: Literal["format"] = "format"

    def values(self, group: Group) -> list[float]:
        return [float(rollout.well_formed) for rollout in group.rollouts]


class HalfTags(_Term):
    """Minus the number of pieces of tags, at most ``most``."""

    kind: Literal["half_tags"] = "half_tags"
    when: Literal["correct", "wrong", "always"] = "always"
    most: int = Field(default=1, ge=1)

    def values(self, group: Group) -> list[float]:
        return [-float(min(r.metrics.half_tags or 0, self.most)) for r in group.rollouts]


class DuplicateBranches(_Term):
    """Minus the share of branches that repeat another one of their block."""

    kind: Literal["duplicate_branches"] = "duplicate_branches"

    def values(self, group: Group) -> list[float]:
        found = []
        for rollout in group.rollouts:
            branches = sum(rollout.metrics.branches_per_block)
            repeated = rollout.metrics.duplicate_branches or 0
            found.append(-repeated / branches if branches else 0.0)
        return found


class PathLength(_Term):
    """From 0 for the shortest to −1 for the longest critical path among the right answers.

    Only in a group whose accuracy is at least ``accuracy``: brevity is asked for where the
    problem is mastered, and nowhere else.
    """

    kind: Literal["path_length"] = "path_length"
    accuracy: float = Field(default=0.75, ge=0, le=1)

    def values(self, group: Group) -> list[float]:
        paths = [rollout.path for rollout in group.rollouts if rollout.correct]
        if group.accuracy < self.accuracy or not paths or min(paths) == max(paths):
            return [0.0] * len(group)
        low, high = min(paths), max(paths)
        return [
            -(rollout.path - low) / (high - low) if rollout.correct else 0.0
            for rollout in group.rollouts
        ]


Term = Annotated[
    Acceleration
    | SequentialGain
    | PathLatency
    | SubtaskRatio
    | TrialRatio
    | ParallelUse
    | Format
    | HalfTags
    | DuplicateBranches
    | PathLength,
    Field(discriminator="kind"),
]
