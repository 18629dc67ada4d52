"""The OR family: find the operators that make `7?7?1?5=3` true, from left to right, modulo 10.

One trial per first operator walks its subtree in a fixed order, subtracts the target at every
leaf (`5+5=0-3=7n`), stops at its first success (`8-5=3-3=0y!-*-`) and otherwise ends in `x`. The
difference makes the verdict a matter of arithmetic: judging two digits equal is far harder to
learn. Only problems with exactly one solution are made, so one trial succeeds and the others
compete in vain. Puzzles of one and two operators are the same text, only shorter: a curriculum
starts with them.
"""

from __future__ import annotations

import itertools
import random
import re
from typing import NamedTuple

from anabranch.lab.chains import MODULUS, OPERATORS, apply
from anabranch.lab.structure import Form, Solution, extract_answer

MAX_SLOTS = 3

_PUZZLE = re.compile(rf"(\d(?:\?\d){{1,{MAX_SLOTS}}})=(\d)")


class Puzzle(NamedTuple):
    """The digits and the value that they must give."""

    digits: tuple[int, ...]
    target: int


def parse(problem: str) -> Puzzle:
    """The puzzle of a problem text; ValueError for a text that is not one."""
    match = _PUZZLE.fullmatch(problem)
    if match is None:
        raise ValueError(f"not an operator puzzle: {problem!r}")
    return Puzzle(tuple(int(digit) for digit in match[1].split("?")), int(match[2]))


def value_of(digits: tuple[int, ...], operators: str) -> int:
    """The value of the digits joined by the operators, from left to right."""
    value = digits[0]
    for operator, digit in zip(operators, digits[1:], strict=True):
        value = apply(value, operator, digit)
    return value


def solutions(puzzle: Puzzle) -> list[str]:
    """All operator strings that reach the target, in search order."""
    slots = len(puzzle.digits) - 1
    candidates = ("".join(chosen) for chosen in itertools.product(OPERATORS, repeat=slots))
    return [found for found in candidates if value_of(puzzle.digits, found) == puzzle.target]


def generate(rng: random.Random, slots: int = MAX_SLOTS) -> str:
    """A random puzzle with one solution; each first operator wins equally often."""
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"cannot make a puzzle of {slots} operators")
    winner = rng.choice(OPERATORS)
    while True:
        digits = tuple(rng.randrange(MODULUS) for _ in range(slots + 1))
        operators = winner + "".join(rng.choice(OPERATORS) for _ in range(slots - 1))
        puzzle = Puzzle(digits, value_of(digits, operators))
        if len(solutions(puzzle)) == 1:
            return f"{'?'.join(map(str, digits))}={puzzle.target}"


def trial(puzzle: Puzzle, first: str) -> str:
    """The worked subtree below one first operator, up to its first success."""
    text, found = _search(puzzle, puzzle.digits[0], first, "")
    return text if found else f"{text}x"


def _search(puzzle: Puzzle, value: int, operator: str, above: str) -> tuple[str, bool]:
    chosen = above + operator
    digit = puzzle.digits[len(chosen)]
    result = apply(value, operator, digit)
    text = f"{value}{operator}{digit}={result}"
    if len(chosen) == len(puzzle.digits) - 1:
        if result == puzzle.target:
            return f"{text}-{puzzle.target}=0y!{chosen}", True
        return f"{text}-{puzzle.target}={(result - puzzle.target) % MODULUS}n", False
    text += ":"
    for following in OPERATORS:
        below, found = _search(puzzle, result, following, chosen)
        text += below
        if found:
            return text, True
    return text, False


def solve(problem: str, form: Form) -> Solution:
    """The solution in one form; mixed tries the first operator in the main line, then forks."""
    puzzle = parse(problem)
    found = solutions(puzzle)
    if not found:
        raise ValueError(f"no solution: {problem!r}")
    trials = {first: trial(puzzle, first) for first in OPERATORS}
    order = list(OPERATORS)
    in_line = {"sequential": len(order), "mixed": 1, "parallel": 0}[form]
    winner = order.index(found[0][0])
    if winner < in_line:
        in_line = winner + 1
        order = order[:in_line]
    return Solution(
        prefix="".join(trials[first] for first in order[:in_line]),
        kind="trial",
        titles=tuple(order[in_line:]),
        branches=tuple(trials[first] for first in order[in_line:]),
        continuation="",
        answer=found[0],
    )


def winners(solution: Solution) -> list[int]:
    """The indices of the branches that end in a success."""
    return [i for i, body in enumerate(solution.branches) if not body.endswith("x")]


def succeeded(text: str) -> bool:
    """Whether a trial's text, closed or not, reports a success: the judge of such joins."""
    return "y!" in text


def cancel_losers(solution: Solution, rng: random.Random) -> Solution:
    """A join as first-success decoding may leave it: any of the losers cancelled, maybe none.

    Which losers had finished depends on the engine's timing, so training must see every case.
    """
    won = set(winners(solution))
    losers = [i for i in range(len(solution.branches)) if i not in won]
    return solution.cancel([i for i in losers if rng.random() < 0.5])


def check(problem: str, text: str) -> bool:
    """Whether the boxed operators in `text` reach the target."""
    puzzle = parse(problem)
    answer = extract_answer(text)
    if answer is None or len(answer) != len(puzzle.digits) - 1 or set(answer) - set(OPERATORS):
        return False
    return value_of(puzzle.digits, answer) == puzzle.target
