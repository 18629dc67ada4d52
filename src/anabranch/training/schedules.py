"""Which reward, pool of problems and difficulty a step has: stages, alternation, curriculum.

A schedule is data and a pure function of the step. A stage ends at a step; inside it, windows of
steps follow one another in a cycle, each with a reward by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from anabranch.errors import UsageError
from anabranch.training.rewards.compose import RewardConfig
from anabranch.training.rewards.presets import preset


class Window(BaseModel):
    """So many steps in a row with one reward, and with its own clip where that differs."""

    model_config = ConfigDict(extra="forbid")

    reward: str
    steps: int = Field(default=1, ge=1)
    clip_high: float | None = None


class Curriculum(BaseModel):
    """Problems up to a difficulty that rises in a line from ``start`` to 1 over ``steps``.

    Difficulty is the problem's field ``difficulty``, from 0 to 1; problems without one always
    count as allowed.
    """

    model_config = ConfigDict(extra="forbid")

    steps: int = Field(ge=1)
    start: float = Field(default=0.25, ge=0, le=1)

    def at(self, step: int) -> float:
        """The highest difficulty at a step, counted from 1."""
        return min(1.0, self.start + (1 - self.start) * (step - 1) / self.steps)


class RLStage(BaseModel):
    """Steps up to and including ``until`` (None: to the end), in a cycle of windows."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    until: int | None = Field(default=None, ge=1)
    cycle: list[Window] = Field(min_length=1)
    pool: str = "main"


class Schedule(BaseModel):
    """All stages. ``rewards`` gives names to rewards; presets are known by their own names."""

    model_config = ConfigDict(extra="forbid")

    stages: list[RLStage] = Field(min_length=1)
    rewards: dict[str, RewardConfig] = Field(default_factory=dict)
    curriculum: Curriculum | None = None

    @model_validator(mode="after")
    def _stages_follow(self) -> Schedule:
        ends = [stage.until for stage in self.stages]
        if any(end is None for end in ends[:-1]):
            raise ValueError("only the last stage may be without `until`")
        known = [end for end in ends if end is not None]
        if known != sorted(set(known)):
            raise ValueError(f"`until` must rise from stage to stage, not {known}")
        for stage in self.stages:
            for window in stage.cycle:
                self.reward(window.reward)
        return self

    def reward(self, name: str) -> RewardConfig:
        """A reward by name, or a preset."""
        if name in self.rewards:
            return self.rewards[name]
        try:
            return preset(name)
        except UsageError as error:
            raise ValueError(str(error)) from None

    def at(self, step: int) -> StepPlan:
        """What a step, counted from 1, is.

        Raises:
            UsageError: the last stage has ended before.
        """
        begin = 1
        for stage in self.stages:
            if stage.until is None or step <= stage.until:
                return self._in(stage, step, begin)
            begin = stage.until + 1
        raise UsageError(f"step {step} is after the end of the last stage, {begin - 1}")

    def _in(self, stage: RLStage, step: int, begin: int) -> StepPlan:
        place = (step - begin) % sum(window.steps for window in stage.cycle)
        for window in stage.cycle:
            if place < window.steps:
                break
            place -= window.steps
        return StepPlan(
            stage=stage.name or f"stage {self.stages.index(stage) + 1}",
            reward=window.reward,
            pool=stage.pool,
            difficulty=self.curriculum.at(step) if self.curriculum else 1.0,
            clip_high=window.clip_high,
        )


class StepPlan(BaseModel):
    """What one step is."""

    model_config = ConfigDict(frozen=True)

    stage: str
    reward: str
    pool: str
    difficulty: float
    clip_high: float | None = None

    def row(self) -> dict[str, str | float]:
        """What the log says of it."""
        return {
            "stage": self.stage,
            "reward_name": self.reward,
            "pool": self.pool,
            "difficulty": self.difficulty,
        }


def constant(reward: str = "p_grpo") -> Schedule:
    """One reward throughout."""
    return Schedule(stages=[RLStage(name=reward, cycle=[Window(reward=reward)])])


def alternating(
    plain: str = "accuracy", bonus: str = "tiers", plain_steps: int = 8, bonus_steps: int = 2
) -> Schedule:
    """Parallel-R1's S2: windows of 10 steps, 8 with accuracy and 2 with the tiers."""
    cycle = [Window(reward=plain, steps=plain_steps)]
    cycle.append(Window(reward=bonus, steps=bonus_steps, clip_high=0.28))
    return Schedule(stages=[RLStage(name="alternating", cycle=cycle)])


def scaffold(until: int = 200, plain: str = "accuracy", bonus: str = "tiers") -> Schedule:
    """Parallel-R1's mid-training scaffold: S2 up to a step, then accuracy alone."""
    first = alternating(plain, bonus).stages[0].model_copy(update={"until": until})
    after = RLStage(name="accuracy only", cycle=[Window(reward=plain)])
    return Schedule(stages=[first.model_copy(update={"name": "scaffold"}), after])


def easy_first(until: int, then: Schedule | None = None, pool: str = "easy") -> Schedule:
    """Easy maths with accuracy × parallel × format up to a step, then another schedule.

    The stages of ``then`` are counted behind it.
    """
    following = then or constant("accuracy")
    easy = RLStage(name="easy maths", until=until, cycle=[Window(reward="easy_maths")], pool=pool)
    later = [
        stage.model_copy(update={"until": stage.until + until if stage.until else None})
        for stage in following.stages
    ]
    return following.model_copy(update={"stages": [easy, *later]})


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "constant": constant,
    "s1": lambda: constant("accuracy"),
    "s2": alternating,
    "alternating": alternating,
    "parallel_only": lambda: constant("parallel_only"),
    "scaffold": scaffold,
    "easy_first": easy_first,
}


def named_schedule(name: str, **settings: Any) -> Schedule:
    """A schedule by name with its constants changed.

    Raises:
        UsageError: unknown name or constant.
    """
    make = SCHEDULES.get(name)
    if make is None:
        raise UsageError(f"no schedule {name!r}; known: {', '.join(SCHEDULES)}")
    try:
        return make(**settings)
    except TypeError:
        raise UsageError(f"schedule {name!r}: no such constant among {settings}") from None
    except ValueError as error:
        raise UsageError(f"schedule {name!r}: {error}") from None
