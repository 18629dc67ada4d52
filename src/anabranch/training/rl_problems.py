"""Which problems a step draws: pools by name, in an order that depends on seed and count alone."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Protocol, runtime_checkable

import numpy as np

from anabranch.errors import UsageError
from anabranch.records import Problem


@runtime_checkable
class ProblemSource(Protocol):
    """Problem number ``index``. With a length it is shuffled anew in each pass; else endless."""

    def __getitem__(self, index: int, /) -> Problem: ...


class Problems:
    """All pools of a run, with how many problems were drawn from each.

    Args:
        pools: by name; a lone source is the pool ``main``.
        seed: of the order.

    Raises:
        UsageError: a pool is empty.
    """

    def __init__(self, pools: Mapping[str, ProblemSource] | ProblemSource, seed: int) -> None:
        self.pools = dict(pools) if isinstance(pools, Mapping) else {"main": pools}
        self.seed = seed
        self.drawn = dict.fromkeys(self.pools, 0)
        for name, pool in self.pools.items():
            if isinstance(pool, Sized) and len(pool) == 0:
                raise UsageError(f"the pool of problems {name!r} is empty")

    def draw(self, name: str, count: int, difficulty: float = 1.0) -> list[Problem]:
        """The next problems of a pool whose difficulty is allowed.

        Raises:
            UsageError: no such pool, or it has no problem that easy.
        """
        pool = self.pools.get(name)
        if pool is None:
            raise UsageError(f"no pool of problems {name!r}; known: {', '.join(self.pools)}")
        size = len(pool) if isinstance(pool, Sized) else None
        found: list[Problem] = []
        passed = 0
        while len(found) < count:
            number = self.drawn[name]
            self.drawn[name] += 1
            problem = pool[number if size is None else self._shuffled(name, number, size)]
            if difficulty_of(problem) <= difficulty:
                found.append(problem)
                passed = 0
                continue
            passed += 1
            if passed > (size or 10_000):
                raise UsageError(f"pool {name!r} has no problem up to difficulty {difficulty:.2f}")
        return found

    def _shuffled(self, name: str, number: int, size: int) -> int:
        epoch, place = divmod(number, size)
        word = sum(ord(char) << (8 * (at % 7)) for at, char in enumerate(name))
        return int(np.random.default_rng((self.seed, word, epoch)).permutation(size)[place])


def difficulty_of(problem: Problem) -> float:
    """The field ``difficulty`` of a problem, from 0 to 1; 0 where there is none."""
    value = (problem.model_extra or {}).get("difficulty", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
