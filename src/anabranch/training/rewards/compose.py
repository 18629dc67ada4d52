"""A reward from its parts: ``(base + Σ weight · term) · Π factors``, with every part kept.

The base says what being right or wrong is worth. An answer that could not be graded, and one that
failed in the engine, has no reward at all: it leaves its group instead of counting as wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from anabranch.errors import AnabranchError
from anabranch.training.rewards.group import Group, Rollout
from anabranch.training.rewards.terms import Term


class Correctness(BaseModel):
    """What each standing is worth; None takes the rollout out of its group."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["correctness"] = "correctness"
    correct: float = 1.0
    wrong: float = -1.0
    unparsed: float = -1.0
    truncated: float | None = -1.0
    ungradable: float | None = None

    def value(self, rollout: Rollout) -> float | None:
        if rollout.standing == "failed":
            return None
        value: float | None = getattr(self, rollout.standing)
        return value


class Tiers(BaseModel):
    """Parallel-R1's tiers: right with a well-formed block, right without any block, all else."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["tiers"] = "tiers"
    parallel: float = 1.2
    plain: float = 1.0
    otherwise: float = -1.0

    def value(self, rollout: Rollout) -> float | None:
        if rollout.standing in ("ungradable", "failed"):
            return None
        if not rollout.correct:
            return self.otherwise
        if not rollout.forked:
            return self.plain
        return self.parallel if rollout.well_formed else self.otherwise


Base = Annotated[Correctness | Tiers, Field(discriminator="kind")]


class RewardConfig(BaseModel):
    """A reward as data.

    Attributes:
        base: what the answer is worth.
        terms: added to it.
        factors: what the sum is multiplied by; their ``weight`` and ``when`` are not used.
    """

    model_config = ConfigDict(extra="forbid")

    base: Base = Field(default_factory=Correctness)
    terms: list[Term] = Field(default_factory=list)
    factors: list[Term] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reward:
    """A rollout's reward with its parts by name; ``total`` None: it takes no part."""

    total: float | None
    parts: dict[str, float] = field(default_factory=dict)


def score_group(config: RewardConfig, group: Group) -> list[Reward]:
    """The rewards of a whole group, in order.

    Raises:
        AnabranchError: a term gave something that is no finite number; names the term.
    """
    terms = [(_name(config.terms, n), t, t.values(group)) for n, t in enumerate(config.terms)]
    factors = [(f.kind, f.values(group)) for f in config.factors]
    rewards = []
    for index, rollout in enumerate(group.rollouts):
        base = config.base.value(rollout)
        if base is None:
            rewards.append(Reward(None))
            continue
        parts = {"base": base}
        for name, term, values in terms:
            parts[name] = term.weight * values[index] if term.counts(rollout) else 0.0
        total = math.fsum(parts.values())
        for name, values in factors:
            parts[f"×{name}"] = values[index]
            total *= values[index]
        for name, value in parts.items():
            if not math.isfinite(value):
                raise AnabranchError(f"reward term {name!r} is {value}: training stopped")
        rewards.append(Reward(total, parts))
    return rewards


def _name(terms: list[Term], number: int) -> str:
    kind = terms[number].kind
    before = sum(term.kind == kind for term in terms[:number])
    return f"{kind}.{before + 1}" if before else kind
