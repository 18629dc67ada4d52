"""What a run of graded trajectories shows, with 95 % intervals by bootstrap over problems.

Samples of one problem are not independent, so problems are drawn again and not samples. Everything
is a function of the trajectories and a seed; files and tables are elsewhere.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean
from typing import Any

from anabranch.errors import RecordError, UsageError
from anabranch.metrics import trajectory_metrics
from anabranch.metrics.intervals import mean, ratio_of_means
from anabranch.records import Trajectory

RESAMPLES = 2000
#: Measures that are no shares.
_AMOUNTS = frozenset(
    {"critical_path", "total_tokens", "seconds", "prefill_tokens", "cached_tokens"}
)


@dataclass(frozen=True)
class Sample:
    """One graded answer: whether it is right, what it says, and what it took."""

    problem: str
    correct: bool
    status: str
    answer: str
    total: int
    path: int
    blocks: int
    well_formed: bool | None
    seconds: float | None
    confidence: float | None
    prefill: int | None = None
    cached: int | None = None
    inside: int = 0
    subtask: int = 0
    trial: int = 0


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, digits: int = 3) -> str:
        return f"{self.value:.{digits}g} ({self.low:.{digits}g}–{self.high:.{digits}g})"


def samples_of(trajectories: Iterable[Trajectory], name: str = "the run") -> list[Sample]:
    """The graded answers of a run.

    Raises:
        RecordError: a trajectory has no verdict, or no problem; says how to get one.
    """
    found = []
    for number, trajectory in enumerate(trajectories, start=1):
        problem, verdict = trajectory.problem, trajectory.verdict
        if problem is None or verdict is None:
            what = "verdict: grade the file first (anabranch grade)" if problem else "problem"
            raise RecordError(f"{trajectory.id or 'a row'} has no {what}", path=name, line=number)
        metrics = trajectory_metrics(trajectory)
        scores = [
            score
            for index in trajectory.final
            for score in (trajectory.segments[index].logprobs or ())
        ]
        found.append(
            Sample(
                problem.id,
                verdict.correct,
                verdict.status,
                " ".join((verdict.answer or "").split()),
                metrics.total_tokens,
                metrics.critical_path,
                metrics.blocks,
                metrics.well_formed,
                trajectory.seconds,
                sum(scores) / len(scores) if scores else None,
                metrics.prefill_tokens,
                metrics.cached_tokens,
                metrics.total_tokens - metrics.outside_tokens,
                metrics.subtask_tokens,
                metrics.trial_tokens,
            )
        )
    if not found:
        raise UsageError(f"{name}: holds no trajectory")
    return found


class Run:
    """The samples of a run by problem."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        by: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            by[sample.problem].append(sample)
        self.problems = dict(sorted(by.items()))
        self.k = min(map(len, by.values()))

    def per_problem(self, value: Callable[[Sequence[Sample]], float]) -> dict[str, float]:
        """One number for each problem."""
        return {name: value(samples) for name, samples in self.problems.items()}

    def mean(
        self, value: Callable[[Sequence[Sample]], float], seed: int = 0, *, share: bool = True
    ) -> Estimate:
        """The mean over problems; ``share`` says whether a value is one, from 0 to 1."""
        return bootstrap(list(self.per_problem(value).values()), seed, share=share)

    def ratio(
        self,
        above: Callable[[Sequence[Sample]], float],
        below: Callable[[Sequence[Sample]], float],
        seed: int = 0,
    ) -> Estimate:
        """A ratio of two means, its interval with numerator and denominator drawn together."""
        one, other = (list(self.per_problem(value).values()) for value in (above, below))
        return Estimate(*ratio_of_means(one, other, seed=seed))


def accuracy(samples: Sequence[Sample]) -> float:
    """mean@k: the share of right samples."""
    return sum(sample.correct for sample in samples) / len(samples)


def pass_at(k: int) -> Callable[[Sequence[Sample]], float]:
    """pass@k: the chance that one of k samples is right (the unbiased estimate of Chen et al.,
    2021: 1 − C(n − c, k) / C(n, k))."""

    def value(samples: Sequence[Sample]) -> float:
        n, c = len(samples), sum(sample.correct for sample in samples)
        return 1.0 - comb(n - c, k) / comb(n, k)

    return value


def majority(samples: Sequence[Sample], *, weighted: bool = False) -> float:
    """maj@k: whether the most frequent answer is right; ties share. Samples without an answer do
    not vote. ``weighted``: by the mean probability of the answer's tokens."""
    from math import exp

    votes: Counter[str] = Counter()
    right: dict[str, bool] = {}
    for sample in samples:
        if not sample.answer:
            continue
        weight = exp(sample.confidence) if weighted and sample.confidence is not None else 1.0
        votes[sample.answer] += weight  # type: ignore[assignment]
        right[sample.answer] = right.get(sample.answer, False) or sample.correct
    if not votes:
        return 0.0
    most = max(votes.values())
    first = [answer for answer, count in votes.items() if count == most]
    return sum(right[answer] for answer in first) / len(first)


def within(limit: int) -> Callable[[Sequence[Sample]], float]:
    """Accuracy under a limit on the critical path that simply ends the answer."""

    def value(samples: Sequence[Sample]) -> float:
        return sum(s.correct and s.path <= limit for s in samples) / len(samples)

    return value


def average(field: str) -> Callable[[Sequence[Sample]], float]:
    """The mean of a field over the samples of a problem; None counts as 0."""

    def value(samples: Sequence[Sample]) -> float:
        return sum(float(getattr(s, field) or 0) for s in samples) / len(samples)

    return value


def summary(run: Run, seed: int = 0) -> dict[str, Any]:
    """All measures of a run, as plain data with intervals."""
    measures: dict[str, Callable[[Sequence[Sample]], float]] = {
        f"mean@{run.k}": accuracy,
        "critical_path": average("path"),
        "total_tokens": average("total"),
        "activation": lambda samples: sum(s.blocks > 0 for s in samples) / len(samples),
        "format": average("well_formed"),
        "seconds": average("seconds"),
    }
    if run.k > 1:
        measures[f"pass@{run.k}"] = pass_at(run.k)
        measures[f"maj@{run.k}"] = majority
        measures[f"maj@{run.k} weighted"] = lambda samples: majority(samples, weighted=True)
    found: dict[str, Any] = {
        "problems": len(run.problems),
        "samples": sum(map(len, run.problems.values())),
        "statuses": dict(Counter(s.status for samples in run.problems.values() for s in samples)),
    }
    every = [sample for samples in run.problems.values() for sample in samples]
    for name, field in (("prefill_tokens", "prefill"), ("cached_tokens", "cached")):
        if all(getattr(sample, field) is not None for sample in every):
            measures[name] = average(field)
    for name, value in measures.items():
        found[name] = vars(run.mean(value, seed, share=name not in _AMOUNTS))
    found["total / path"] = vars(run.ratio(average("total"), average("path"), seed))
    parts = {"parallel ratio": "inside", "AND ratio": "subtask", "OR ratio": "trial"}
    for name, field in parts.items():
        found[name] = vars(run.ratio(average(field), average("total"), seed))
    found["minimum detectable difference"] = detectable(run)
    return found


def warnings(runs: Mapping[str, Run]) -> list[str]:
    """What a reader should know before anything else.

    A run that never forked, beside or without one that is meant not to, was most likely decoded
    with another prompt or another dialect than its model was trained on.
    """
    return [
        f"{name}: no answer has a block; a model that was trained to fork was run with another "
        "prompt, template or dialect, or this one was not trained to"
        for name, run in runs.items()
        if not name.startswith("sequential")
        and all(sample.blocks == 0 for of in run.problems.values() for sample in of)
    ]


def curve(run: Run, points: int = 12, seed: int = 0) -> list[dict[str, float]]:
    """Accuracy under limits on the critical path, from one run without a limit."""
    paths = sorted(s.path for samples in run.problems.values() for s in samples)
    limits = sorted(
        {paths[min(len(paths) - 1, len(paths) * n // points)] for n in range(points + 1)}
    )
    return [{"limit": limit, **vars(run.mean(within(limit), seed))} for limit in limits]


def detectable(run: Run) -> float:
    """The smallest difference in accuracy between two unpaired runs like this one that would show
    with 80 % power at the 5 % level."""
    values = list(run.per_problem(accuracy).values())
    middle = sum(values) / len(values)
    variance = sum((v - middle) ** 2 for v in values) / max(1, len(values) - 1)
    return (1.959964 + 0.841621) * sqrt(2 * variance / len(values))


@dataclass(frozen=True)
class Difference:
    """Run B against run A on the same problems; ``p`` is of a two-sided paired sign-flip test."""

    measure: str
    first: float
    second: float
    difference: Estimate
    p: float


def compare(
    one: Run, other: Run, measure: str, value: Callable[[Sequence[Sample]], float], seed: int = 0
) -> Difference:
    """Paired by problem.

    Raises:
        UsageError: the runs are of different problems; names some.
    """
    if one.problems.keys() != other.problems.keys():
        odd = sorted(one.problems.keys() ^ other.problems.keys())
        raise UsageError(
            f"the runs are of different problems ({len(odd)} are in one only, as {odd[0]!r})"
        )
    a, b = (list(run.per_problem(value).values()) for run in (one, other))
    gaps = [y - x for x, y in zip(a, b, strict=True)]
    seen = abs(sum(gaps)) - 1e-12
    rng = random.Random(seed)
    # Under the hypothesis of no difference each problem's gap may as well be the other way round.
    extreme = sum(
        abs(sum(gap if rng.random() < 0.5 else -gap for gap in gaps)) >= seen
        for _ in range(RESAMPLES)
    )
    p = (1 + extreme) / (1 + RESAMPLES)
    return Difference(measure, fmean(a), fmean(b), Estimate(*mean(gaps, seed=seed)), min(1.0, p))


def bootstrap(values: Sequence[float], seed: int = 0, *, share: bool = True) -> Estimate:
    """A mean and its bootstrap interval; where all values are alike, the rule of three says how
    far the truth of a share may lie."""
    middle, low, high = mean(values, seed=seed, samples=RESAMPLES)
    if share and low == high:
        spread = min(1.0, 3.0 / len(values))
        return Estimate(middle, max(0.0, middle - spread), min(1.0, middle + spread))
    return Estimate(middle, low, high)
