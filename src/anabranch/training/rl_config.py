"""Configuration of reinforcement learning; what each field does is in the module that uses it."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from anabranch.records import Limits
from anabranch.training.advantages import Mode
from anabranch.training.policy_loss import PolicyLossConfig
from anabranch.training.schedules import Schedule, constant, named_schedule


class DynamicSampling(BaseModel):
    """Groups without variance are replaced by others, up to ``draws`` times the prompts."""

    model_config = ConfigDict(extra="forbid")

    draws: float = Field(default=3.0, ge=1)


class RLConfig(BaseModel):
    """One run.

    Attributes:
        seed: of problem order, sampling and dropout.
        steps: optimizer steps.
        prompts, rollouts: problems of a step, and answers to each.
        mode: the checkpoint's prompt that is used.
        temperature: 1 is the only one for which the recorded log-probs are the policy's.
        limits: of each rollout.
        advantage: see :data:`anabranch.training.advantages.Mode`.
        dynamic: None keeps every group.
        schedule: a schedule, or the name of one (also ``{name = "scaffold", until = 100}``), or
            the name of a reward preset.
        loss: see there.
        epochs: optimizer steps on each batch; above 1 the ratio is clipped in earnest.
        rate_schedule, warmup: of the learning rate; ``warmup`` in steps.
        max_staleness: rollouts of a policy older than so many steps are dropped.
        max_grader_errors: share of a step's answers that the grader may fail on.
        patience: steps in a row without any advantage after which the run stops.
        engine_retries: how often a step's failed rollouts are sampled again.
        probe_gap: largest mean gap between engine and trainer after weights were synchronised.
        keep_trajectories: steps between samples of trajectories on disk; 0 keeps none.
    """

    model_config = ConfigDict(extra="forbid")

    seed: int = 0
    steps: int = Field(default=100, ge=1)
    prompts: int = Field(default=8, ge=1)
    rollouts: int = Field(default=8, ge=1)
    mode: str = "parallel"
    temperature: float = Field(default=1.0, ge=1, le=1)
    limits: Limits = Field(default_factory=Limits)
    advantage: Mode = "mean"
    dynamic: DynamicSampling | None = None
    schedule: Schedule = Field(default_factory=constant)
    loss: PolicyLossConfig = Field(default_factory=PolicyLossConfig)
    epochs: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-6, gt=0)
    rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    grad_clip: float = Field(default=1.0, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    attention: Literal["auto", "sdpa", "flex"] = "auto"
    micro_tokens: int = Field(default=16384, ge=1)
    concurrency: int = Field(default=64, ge=1)
    threads: int | None = Field(default=None, ge=1)
    max_staleness: int = Field(default=0, ge=0)
    max_grader_errors: float = Field(default=0.5, ge=0, le=1)
    patience: int = Field(default=20, ge=1)
    engine_retries: int = Field(default=2, ge=0)
    probe_gap: float = Field(default=0.02, gt=0)
    keep_trajectories: int = Field(default=0, ge=0)
    save_every: int | None = Field(default=None, ge=1)
    eval_every: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _schedule_by_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        chosen = data.get("schedule")
        if isinstance(chosen, str):
            chosen = {"name": chosen}
        if isinstance(chosen, dict) and "name" in chosen:
            data = {**data, "schedule": _named(dict(chosen))}
        return data

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if step <= self.warmup:
            return self.learning_rate * step / self.warmup
        done = (step - 1 - self.warmup) / max(self.steps - self.warmup, 1)
        if self.rate_schedule == "linear":
            return self.learning_rate * (1 - done)
        if self.rate_schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate


def _named(chosen: dict[str, Any]) -> Schedule:
    from anabranch.errors import UsageError
    from anabranch.training.rewards.presets import PRESETS

    name = chosen.pop("name")
    try:
        if name in PRESETS and not chosen:
            return constant(name)
        return named_schedule(name, **chosen)
    except UsageError as error:
        raise ValueError(str(error)) from None
