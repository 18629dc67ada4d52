"""The published formulas, each as a configuration, and single bonuses to compare them with.

Every preset is a function of its published constants, so a sweep is a list of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.errors import UsageError
from anabranch.training.rewards.compose import Correctness, RewardConfig, Tiers
from anabranch.training.rewards.shapes import Shape
from anabranch.training.rewards.terms import (
    Acceleration,
    DuplicateBranches,
    Format,
    HalfTags,
    ParallelUse,
    PathLatency,
    PathLength,
    SequentialGain,
    SubtaskRatio,
    Term,
    TrialRatio,
)


def accuracy(wrong: float = -1.0) -> RewardConfig:
    """Right or wrong and nothing else: Parallel-R1's S1, and the control of every comparison."""
    return RewardConfig(base=_right_or(wrong))


def p_grpo(rho: float = 0.5, clip: float = 0.2, wrong: float = -1.0) -> RewardConfig:
    """ThreadWeaver: ``±1 + 1[correct] · rho · min(1 − path / total, clip)``.

    The paper's own formula has 0 for a wrong answer: ``wrong=0``.
    """
    return RewardConfig(base=_right_or(wrong), terms=[Acceleration(rho=rho, clip=clip)])


def pa_grpo(
    alpha: float = 0.1,
    beta_sub: float = 0.05,
    beta_trial: float = 0.05,
    rho: float = 0.5,
    rho_clip: float = 0.1,
    f: Shape = "tanh",
    eta: str = "share",
) -> RewardConfig:
    """Parason: ``−1 + 2 · 1[correct] · (1 − α f(z_T) + β_s f(z_s) + β_t f(z_t) + min(ρη, clip))``.

    z are z-scores over the group of critical path, subtask ratio and trial ratio.

    Args:
        eta: ``share`` for ``1 − path / total``, ``ratio`` for ``total / path``.
    """
    # A right answer's base is −1 + 2 = 1, and each term counts twice.
    terms: list[Term] = [
        PathLatency(weight=2 * alpha, f=f),
        SubtaskRatio(weight=2 * beta_sub, f=f),
        TrialRatio(weight=2 * beta_trial, f=f),
    ]
    form: Any = eta
    terms.append(Acceleration(weight=2.0, form=form, rho=rho, cap=rho_clip))
    return RewardConfig(terms=terms)


def parallel_r1_tiers() -> RewardConfig:
    """Parallel-R1's bonus window: 1.2 right with a well-formed block, 1 right without, else −1."""
    return RewardConfig(base=Tiers())


def parallel_only() -> RewardConfig:
    """1 for a right answer with a well-formed block, else −1 (also for right ones without)."""
    return RewardConfig(base=Tiers(parallel=1.0, plain=-1.0))


def easy_maths() -> RewardConfig:
    """Parallel-R1's stage 2: accuracy × parallel × format, each 0 or 1."""
    return RewardConfig(base=_right_or(0.0), factors=[ParallelUse(), Format()])


def sequential_gain(weight: float = 0.5) -> RewardConfig:
    """±1 and, for right answers, the gain against the problem's length in one line."""
    return RewardConfig(terms=[SequentialGain(weight=weight)])


def _single(term: Callable[[float], Term], default: float) -> Callable[..., RewardConfig]:
    def make(weight: float = default) -> RewardConfig:
        return RewardConfig(terms=[term(weight)])

    return make


def _right_or(wrong: float) -> Correctness:
    return Correctness(wrong=wrong, unparsed=wrong, truncated=wrong)


PRESETS: dict[str, Callable[..., RewardConfig]] = {
    "accuracy": accuracy,
    "p_grpo": p_grpo,
    "pa_grpo": pa_grpo,
    "tiers": parallel_r1_tiers,
    "parallel_only": parallel_only,
    "easy_maths": easy_maths,
    "sequential_gain": sequential_gain,
    "path_latency": _single(lambda w: PathLatency(weight=w), 0.2),
    "subtask_ratio": _single(lambda w: SubtaskRatio(weight=w), 0.1),
    "trial_ratio": _single(lambda w: TrialRatio(weight=w), 0.1),
    "parallel_use": _single(lambda w: ParallelUse(weight=w), 0.2),
    "format": _single(lambda w: Format(weight=w), 0.2),
    "half_tags": _single(lambda w: HalfTags(weight=w), 0.2),
    "duplicate_branches": _single(lambda w: DuplicateBranches(weight=w), 0.2),
    "path_length": _single(lambda w: PathLength(weight=w), 0.2),
}


def preset(name: str, **settings: Any) -> RewardConfig:
    """A preset with its constants changed.

    Raises:
        UsageError: no such preset, or it has no such constant.
    """
    make = PRESETS.get(name)
    if make is None:
        raise UsageError(f"no reward preset {name!r}; known: {', '.join(PRESETS)}")
    try:
        return make(**settings)
    except TypeError:
        raise UsageError(f"reward preset {name!r}: no such constant among {settings}") from None
