"""95 % intervals: shares by Wilson, means and their ratios by bootstrap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

#: Two-sided 95 %.
Z = NormalDist().inv_cdf(0.975)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Interval of a share (Wilson, 1927), also right at 0 and 1; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = share + Z * Z / (2 * trials)
    spread = Z * (share * (1 - share) / trials + Z * Z / (4 * trials * trials)) ** 0.5
    scale = 1 + Z * Z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def ratio_of_means(
    above: Sequence[float], below: Sequence[float], *, seed: int = 0, samples: int = 2000
) -> tuple[float, float, float]:
    """``mean(above) / mean(below)`` over paired measurements, with its bootstrap interval."""
    if len(above) != len(below) or not above:
        raise ValueError("as many measurements above as below are needed, and at least one")
    rng = random.Random(seed)
    count = len(above)
    draws = []
    for _ in range(samples):
        chosen = rng.choices(range(count), k=count)
        draws.append(sum(above[i] for i in chosen) / sum(below[i] for i in chosen))
    draws.sort()
    low, high = draws[int(0.025 * samples)], draws[int(0.975 * samples) - 1]
    return fmean(above) / fmean(below), low, high


def mean(values: Sequence[float], *, seed: int = 0, samples: int = 1000) -> tuple[float, ...]:
    """The mean with its bootstrap interval: ``(mean, low, high)``.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("at least one value is needed")
    rng = random.Random(seed)
    draws = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(samples))
    return fmean(values), draws[int(0.025 * samples)], draws[int(0.975 * samples) - 1]


def over_seeds(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of a mean over a few runs (Student's t); None of one value."""
    if len(values) < 2:
        return None
    return float(student_t(len(values) - 1) * stdev(values) / len(values) ** 0.5)


#: Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def student_t(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t; above 9 degrees by its expansion (to 3e-3)."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    first = (Z**3 + Z) / (4 * degrees)
    return Z + first + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * degrees**2)
