"""The arms of the lab's reinforcement-learning studies, as data.

An arm is a start, a reward schedule, an advantage and a number of steps; a claim is a set of arms
with what it says of them. How arms are run and compared is in :mod:`anabranch.lab.reproduce`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anabranch.training.advantages import Mode

#: Names of models that a study begins with; ``rl_starts`` knows how each is made.
StartName = Literal["both_right", "half_trained", "sequential_better", "puzzles_right", "mixed"]
#: A family with the sizes of its problems.
Pool = tuple[str, tuple[tuple[int, ...], ...]]

CHAINS: tuple[Pool, ...] = (("chains", ((2, 5), (3, 5))),)
#: Of one and two operators. Forked, the first has a longer path than in a line.
SHORT_PUZZLES: tuple[Pool, ...] = (("puzzle", ((1,), (2,))),)
CHAINS_AND_PUZZLES: tuple[Pool, ...] = (("chains", ((2, 5),)), ("puzzle", ((2,),)))


@dataclass(frozen=True, slots=True)
class Arm:
    """One run, but for its seed.

    Attributes:
        name: of the arm in tables and file names.
        start: the model that it begins with.
        schedule: as in :class:`anabranch.training.rl_config.RLConfig`.
        advantage, steps, rate: of the run.
        pools: families of the problems with their sizes.
        fork_cost: share of the problems that count as wrong when they were forked.
        settings: further fields of the run's configuration.
    """

    name: str
    start: StartName
    schedule: Mapping[str, Any]
    advantage: Mode = "mean"
    steps: int = 40
    rate: float = 2e-4
    pools: tuple[Pool, ...] = CHAINS
    fork_cost: float = 0.0
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

#: Slower than the other studies: a collapse must take longer than one window of eight steps, as
#: in the paper, else it is over before the schedules differ.
COLLAPSE = Claim(
    "serial_collapse",
    "Sequential form better at the start: which schedule keeps the parallel form",
    tuple(
        Arm(name, "sequential_better", schedule, steps=100, rate=5e-5)
        for name, schedule in (
            ("accuracy", {"name": "accuracy"}),
            ("p_grpo", {"name": "p_grpo"}),
            ("alternating", {"name": "alternating"}),
            ("scaffold", {"name": "scaffold", "until": 50}),
            ("parallel_only", {"name": "parallel_only"}),
        )
    ),
)


def _costly(name: str, reward: str, advantage: Mode = "mean") -> Arm:
    return Arm(name, "both_right", {"name": reward}, advantage, fork_cost=0.1)


COSTLY_FORKS = Claim(
    "costly_forks",
    "A tenth of the problems fail when forked: advantages by the mean and by the deviation",
    (
        _costly("accuracy", "accuracy"),
        _costly("p_grpo", "p_grpo"),
        _costly("p_grpo_std", "p_grpo", "mean_std"),
    ),
)

_BY_SIZE = ("activation puzzle 1", "activation puzzle 2", "path puzzle 1", "path puzzle 2")
WASTED_TRIALS = Claim(
    "wasted_trials",
    "Trials that make the path longer: the published acceleration against the gain over a line",
    tuple(
        Arm(name, "puzzles_right", {"name": name}, pools=SHORT_PUZZLES)
        for name in ("accuracy", "p_grpo", "sequential_gain")
    ),
    ("accuracy", "path", "tokens", *_BY_SIZE),
)


def _betas(name: str, sub: float, trial: float) -> Arm:
    terms = [
        {"kind": "subtask_ratio", "weight": 2 * sub},
        {"kind": "trial_ratio", "weight": 2 * trial},
    ]
    return Arm(name, "mixed", _reward(terms), pools=CHAINS_AND_PUZZLES)


_BY_FAMILY = ("accuracy chains 2 5", "accuracy puzzle 2", "path chains 2 5", "path puzzle 2")
BETAS = Claim(
    "betas",
    "Subtasks and trials rewarded apart: which one buys accuracy, which one latency",
    (
        _betas("neither", 0.0, 0.0),
        _betas("sub_0.05", 0.05, 0.0),
        _betas("sub_0.1", 0.1, 0.0),
        _betas("trial_0.05", 0.0, 0.05),
        _betas("trial_0.1", 0.0, 0.1),
    ),
    ("accuracy", "path", "tokens", "subtask_ratio", "trial_ratio", *_BY_FAMILY),
)

CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (CONTROL, HALF_TRAINED, COLLAPSE, COSTLY_FORKS, WASTED_TRIALS, BETAS)
}
#: Which claims a command reproduces.
PAPERS: dict[str, tuple[str, ...]] = {
    "threadweaver": ("control", "half_trained", "costly_forks", "wasted_trials"),
    "parason": ("control", "betas"),
    "parallel-r1": ("serial_collapse",),
}
