"""Parallel lab samples with a known fault, to measure the checks of curation by.

A fault changes the reference solution of a random problem in one place, drawn at random; samples
without any are made the same way. What the checks make of them is measured elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from anabranch.curation.checks import Sample
from anabranch.dialects import get_dialect
from anabranch.lab.data import DIALECT
from anabranch.lab.families import LabProblem, draw
from anabranch.lab.structure import Solution

Kind = tuple[str, tuple[int, ...]]

#: Families and sizes that samples are drawn from.
CHAINS: tuple[Kind, ...] = (("chains", (2, 5)), ("chains", (3, 5)), ("chains", (5, 5)))
KINDS: tuple[Kind, ...] = (*CHAINS, ("puzzle", (2,)), ("puzzle", (3,)))


def sample(seed: int, number: int, defect: str | None) -> Sample:
    """A sample with a defect of that name, or with none; the same for the same arguments."""
    rng = random.Random(f"defects:{seed}:{defect}:{number}")
    # What trials of a puzzle find has no name that another trial could use.
    family, size = rng.choice(KINDS if defect != "leak" else CHAINS)
    problem, solution = _drawn(rng, family, size)
    text = solution.text()
    if defect == "answer_first":
        line = problem.solve("sequential")
        text = replace(solution, prefix=line.prefix + line.continuation).text()
    elif defect is not None:
        text = DEFECTS[defect](solution, rng)
    return Sample(text, get_dialect(DIALECT), problem.text, solution.answer)


def _drawn(rng: random.Random, family: str, size: tuple[int, ...]) -> tuple[LabProblem, Solution]:
    """A problem whose trials begin with different values: else two are duplicates by nature."""
    while True:
        problem = draw(rng, family, size)
        solution = problem.solve("parallel")
        begins = [branch.partition(":")[0][-1] for branch in solution.branches]
        if solution.kind == "subtask" or len(set(begins)) == len(begins):
            return problem, solution


def _leak(solution: Solution, rng: random.Random) -> str:
    """A branch says what another one has found."""
    to, of = rng.sample(range(len(solution.branches)), 2)
    found = _finding(solution.branches[of])
    pieces = solution.branches[to].split(",")
    # Not behind its own end: what is said last is what it found itself.
    pieces.insert(rng.randrange(len(pieces)), found)
    branches = [*solution.branches]
    branches[to] = ",".join(pieces)
    return replace(solution, branches=tuple(branches)).text()


def _finding(branch: str) -> str:
    """A chain's named result; of a trial, which has none, its first equation."""
    last = branch.split(",")[-1]
    return last if last[0].isalpha() and last[1:].isdigit() else branch.partition(":")[0]


def _duplicate(solution: Solution, rng: random.Random) -> str:
    """A branch is the copy of another one, but for a character at most."""
    to, of = rng.sample(range(len(solution.branches)), 2)
    copied = solution.branches[of]
    if rng.random() < 0.5:
        place = rng.randrange(len(copied))
        copied = copied[:place] + rng.choice("0123456789") + copied[place + 1 :]
    branches = [*solution.branches]
    branches[to] = copied
    return replace(solution, branches=tuple(branches)).text()


def _renumbered(solution: Solution, rng: random.Random) -> str:
    """An entry of the plan has another number: one that is there already, or too large."""
    text = solution.text()
    count = len(solution.branches)
    number = rng.randrange(1, count + 1)
    other = rng.choice([n for n in range(1, count + 2) if n != number])
    tag = "Subtask" if solution.kind == "subtask" else "Trial"
    return text.replace(f"<{tag}>{number}:", f"<{tag}>{other}:", 1)


def _reveals(solution: Solution, rng: random.Random) -> str:
    """An entry of the plan says what its branch will find."""
    place = rng.randrange(len(solution.branches))
    titles = [*solution.titles]
    titles[place] = f"{titles[place]} {_finding(solution.branches[place])}"
    return replace(solution, titles=tuple(titles)).text()


DEFECTS: Mapping[str, Callable[[Solution, random.Random], str]] = {
    "leak": _leak,
    "near_duplicate": _duplicate,
    "format": _renumbered,
    "outline_reveals": _reveals,
}
#: All names that :func:`sample` takes, which are those of the findings that they cause.
NAMES = ("leak", "answer_first", "near_duplicate", "format", "outline_reveals")
