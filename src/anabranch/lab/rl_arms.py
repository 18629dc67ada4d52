"""The arms of the lab's reinforcement-learning studies, as data.

An arm is a start, a reward schedule, an advantage and a number of steps; a claim is a set of arms
with what it says of them. How arms are run and compared is in :mod:`anabranch.lab.reproduce`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anabranch.training.advantages import Mode

#: Names of models that a study begins with; ``make`` in ``reproduce`` knows how each is made.
StartName = Literal["both_right", "half_trained", "sequential_better"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One run, but for its seed.

    Attributes:
        name: of the arm in tables and file names.
        start: the model that it begins with.
        schedule: as in :class:`anabranch.training.rl_config.RLConfig`.
        advantage, steps, rate: of the run.
        sizes: of the problems, of family ``family``.
        settings: further fields of the run's configuration.
    """

    name: str
    start: StartName
    schedule: Mapping[str, Any]
    advantage: Mode = "mean"
    steps: int = 40
    rate: float = 2e-4
    family: str = "chains"
    sizes: tuple[tuple[int, ...], ...] = ((2, 5), (3, 5))
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be shown, and by which arms; ``figures`` are the columns of its table."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    figures: tuple[str, ...] = ("accuracy", "parallel_ratio", "activation", "path", "tokens")


def _reward(terms: list[dict[str, Any]]) -> dict[str, Any]:
    """A schedule of one reward: ±1 and these terms."""
    return {
        "rewards": {"own": {"terms": terms}},
        "stages": [{"name": "own", "cycle": [{"reward": "own"}]}],
    }


def _control(name: str, schedule: Mapping[str, Any], advantage: Mode = "mean") -> Arm:
    return Arm(name, "both_right", schedule, advantage)


CONTROL = Claim(
    "control",
    "Both forms right at the start: what each reward does to the share of the parallel form",
    (
        _control("accuracy", {"name": "accuracy"}),
        _control("p_grpo", {"name": "p_grpo"}),
        _control("p_grpo_std", {"name": "p_grpo"}, "mean_std"),
        _control("pa_grpo", {"name": "pa_grpo"}),
        _control("sequential_gain", {"name": "sequential_gain"}),
        _control("path_latency", {"name": "path_latency"}),
        _control("subtask_ratio", {"name": "subtask_ratio"}),
        _control("parallel_use", {"name": "parallel_use"}),
        _control("tiers", {"name": "tiers"}),
        _control("path_length", {"name": "path_length"}),
        _control(
            "against_forks", _reward([{"kind": "parallel_use", "weight": -0.2, "when": "correct"}])
        ),
    ),
)

HALF_TRAINED = Claim(
    "half_trained",
    "From a half-trained model: accuracy and critical path under P-GRPO",
    tuple(
        Arm(name, "half_trained", {"name": name}, steps=80, rate=3e-4)
        for name in ("p_grpo", "accuracy")
    ),
)

COLLAPSE = Claim(
    "serial_collapse",
    "Sequential form better at the start: which schedule keeps the parallel form",
    tuple(
        Arm(name, "sequential_better", schedule, steps=80)
        for name, schedule in (
            ("accuracy", {"name": "accuracy"}),
            ("p_grpo", {"name": "p_grpo"}),
            ("alternating", {"name": "alternating"}),
            ("scaffold", {"name": "scaffold", "until": 50}),
            ("parallel_only", {"name": "parallel_only"}),
        )
    ),
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (CONTROL, HALF_TRAINED, COLLAPSE)}
#: Which claims a command reproduces.
PAPERS: dict[str, tuple[str, ...]] = {
    "threadweaver": ("control", "half_trained"),
    "parason": ("control",),
    "parallel-r1": ("serial_collapse",),
}
