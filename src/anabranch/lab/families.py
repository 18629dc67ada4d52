"""The families of problems under one interface, and the draws for training and for tests.

A `LabProblem` knows its family and size; everything else follows from its text. The split is by
problem: `draw` gives training problems, or held-out ones, never both. How often which size is
drawn is a matter of the `recipe`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.lab import chains, puzzle
from anabranch.lab.structure import Form, Kind, Solution, held_out


@dataclass(frozen=True, slots=True)
class Family:
    """One family: how problems are made (from a size), solved and checked.

    `size` in `generate` is the number of chains and operators of `chains`, and the number of
    operators, alone, of `puzzle`.
    """

    name: str
    kind: Kind
    generate: Callable[[random.Random, tuple[int, ...]], str]
    solve: Callable[[str, Form], Solution]
    check: Callable[[str, str], bool]
    accepts: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LabProblem:
    """A problem's text with its family's name and the size that it was drawn with."""

    family: str
    text: str
    size: tuple[int, ...]

    def solve(self, form: Form) -> Solution:
        """The reference solution in one form."""
        return FAMILIES[self.family].solve(self.text, form)

    def check(self, text: str) -> bool:
        """Whether the boxed answer in `text` is right."""
        return FAMILIES[self.family].check(self.text, text)

    @property
    def held_out(self) -> bool:
        """Whether the problem is reserved for evaluation."""
        return held_out(self.text)


def _accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(problem: str) -> bool:
        try:
            parse(problem)
        except ValueError:
            return False
        return True

    return accepts


FAMILIES: Mapping[str, Family] = {
    "chains": Family(
        "chains",
        "subtask",
        lambda rng, size: chains.generate(rng, *size),
        chains.solve,
        chains.check,
        _accepts(chains.parse),
    ),
    "puzzle": Family(
        "puzzle",
        "trial",
        lambda rng, size: puzzle.generate(rng, *size),
        puzzle.solve,
        puzzle.check,
        _accepts(puzzle.parse),
    ),
}


def family_of(problem: str) -> Family:
    """The family that a problem's text belongs to; ValueError where none reads it."""
    for family in FAMILIES.values():
        if family.accepts(problem):
            return family
    raise ValueError(f"no family reads {problem!r}; known: {', '.join(FAMILIES)}")


def draw(
    rng: random.Random, family: str, size: tuple[int, ...], *, evaluation: bool = False
) -> LabProblem:
    """A random problem of the training split, or of the held-out split with `evaluation`."""
    while True:
        text = FAMILIES[family].generate(rng, size)
        if held_out(text) is evaluation:
            return LabProblem(family, text, size)


def draw_distinct(
    seed: int,
    family: str,
    size: tuple[int, ...],
    count: int,
    *,
    evaluation: bool = True,
    fewer: bool = False,
) -> list[LabProblem]:
    """`count` different problems of one split, the same for the same seed.

    Raises ValueError where the split is too small to hold that many, unless `fewer` will do.
    """
    rng = random.Random(f"{seed}:{family}:{size}")
    found: dict[str, LabProblem] = {}
    for _ in range(20 * count):
        if len(found) == count:
            break
        problem = draw(rng, family, size, evaluation=evaluation)
        found[problem.text] = problem
    if len(found) < count and not fewer:
        raise ValueError(f"only {len(found)} problems of {family} {size} found, not {count}")
    return list(found.values())
