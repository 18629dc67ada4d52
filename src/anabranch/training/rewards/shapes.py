"""Bounded monotone functions, and z-scores that are 0 where a group does not vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

#: Choices of ``f`` in group terms. All are 0 at 0 and do not decrease.
Shape = Literal["tanh", "linear", "sigmoid", "clip"]

#: A spread below this share of the values' size is rounding, not variance.
FLAT = 1e-9
#: ``linear`` is unbounded for an endless group; with n rollouts a z-score is at most √(n − 1).
SHAPES: dict[Shape, Callable[[float], float]] = {
    "tanh": math.tanh,
    "linear": lambda z: z,
    "sigmoid": lambda z: math.tanh(z / 2),  # 2 · sigmoid(z) − 1
    "clip": lambda z: max(-1.0, min(1.0, z)),
}


def is_flat(values: Sequence[float]) -> bool:
    """Whether values are equal but for rounding; also true of one or none."""
    if len(values) < 2:
        return True
    size = max(1.0, max(abs(value) for value in values))
    return max(values) - min(values) <= FLAT * size


def mean_of(values: Sequence[float]) -> float:
    """Mean, summed exactly; values must not be empty."""
    return math.fsum(values) / len(values)


def deviation_of(values: Sequence[float], *, sample: bool = False) -> float:
    """Standard deviation in two passes: of the population, or of a sample (``n − 1``)."""
    middle = mean_of(values)
    below = len(values) - 1 if sample else len(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / below) if below else 0.0


def z_scores(values: Sequence[float]) -> list[float]:
    """``(x − μ) / σ`` over a group (population σ); all 0 where the group does not vary."""
    if is_flat(values):
        return [0.0] * len(values)
    middle, deviation = mean_of(values), deviation_of(values)
    return [(value - middle) / deviation for value in values]
