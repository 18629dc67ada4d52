"""The AND family: independent chains of arithmetic modulo 10, then the sum of their results.

`a:6D-0E*8;b:8I+4J-1?` starts chain `a` at 6, subtracts 0 in its step `D` and multiplies by 8 in
its step `E`. A chain is worked one step at a time, `a:6,D-0=6,E*8=8`, and the results are summed
one at a time: `a8b1=9`. Chains do not depend on each other, so each is one branch.

Every step has a name that is its own in the whole problem, so to find what a step does is to look
up one symbol that was just written. A small model learns that at any length, whereas plain
expressions without names it copies wrongly in long problems. Which sizes are drawn for training
is not decided here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.lab.structure import Form, Solution, extract_answer

LETTERS = "abcdef"
STEP_NAMES = {
    "a": "ABCDE",
    "b": "FGHIJ",
    "c": "KLMNO",
    "d": "PQRST",
    "e": "UVWXY",
    "f": "Zghij",
}
OPERATORS = "+-*"
MODULUS = 10
MAX_CHAINS = len(LETTERS)
MAX_OPERATORS = 5

_NAMES = "".join(STEP_NAMES.values())
_CHAIN = re.compile(rf"([{LETTERS}]):(\d)((?:[{_NAMES}][-+*]\d){{1,{MAX_OPERATORS}}})")
_STEP_LENGTH = 3


class Step(NamedTuple):
    """One step of a chain: its name, such as `A`, and what it does to the value."""

    name: str
    operator: str
    operand: int


class Chain(NamedTuple):
    """One letter, the value to start from and the steps."""

    letter: str
    start: int
    steps: tuple[Step, ...]


def apply(left: int, operator: str, right: int) -> int:
    """One step of arithmetic modulo 10."""
    if operator == "+":
        return (left + right) % MODULUS
    if operator == "-":
        return (left - right) % MODULUS
    if operator == "*":
        return (left * right) % MODULUS
    raise ValueError(f"unknown operator {operator!r}")


def generate(rng: random.Random, chains: int, operators: int) -> str:
    """A random problem of `chains` chains with `operators` operators each.

    A short chain uses the last of its letter's names, so every chain ends with the same name and
    where to stop does not have to be looked up.
    """
    if not 1 <= chains <= MAX_CHAINS or not 1 <= operators <= MAX_OPERATORS:
        raise ValueError(f"cannot make {chains} chains of {operators} operators")
    return ";".join(_chain(rng, letter, operators) for letter in LETTERS[:chains]) + "?"


def _chain(rng: random.Random, letter: str, operators: int) -> str:
    names = STEP_NAMES[letter][-operators:]
    steps = (f"{name}{rng.choice(OPERATORS)}{rng.randrange(MODULUS)}" for name in names)
    return f"{letter}:{rng.randrange(MODULUS)}{''.join(steps)}"


def parse(problem: str) -> list[Chain]:
    """The chains of a problem; ValueError for a text that is not one."""
    chains = [_parse_chain(part) for part in problem.removesuffix("?").split(";")]
    known = [chain for chain in chains if chain is not None]
    letters = "".join(chain.letter for chain in known)
    if not problem.endswith("?") or letters != LETTERS[: len(chains)]:
        raise ValueError(f"not a chains problem: {problem!r}")
    return known


def _parse_chain(part: str) -> Chain | None:
    match = _CHAIN.fullmatch(part)
    if match is None:
        return None
    pieces = [match[3][at : at + _STEP_LENGTH] for at in range(0, len(match[3]), _STEP_LENGTH)]
    steps = tuple(Step(piece[0], piece[1], int(piece[2])) for piece in pieces)
    if not STEP_NAMES[match[1]].endswith("".join(step.name for step in steps)):
        return None
    return Chain(match[1], int(match[2]), steps)


def evaluate(chain: Chain) -> int:
    """The value of a chain after its last step."""
    value = chain.start
    for step in chain.steps:
        value = apply(value, step.operator, step.operand)
    return value


def work(chain: Chain) -> str:
    """The worked chain: `a:6,D-0=6,E*8=8`."""
    value = chain.start
    text = f"{chain.letter}:{value}"
    for step in chain.steps:
        value = apply(value, step.operator, step.operand)
        text += f",{step.name}{step.operator}{step.operand}={value}"
    return text


def answer_of(problem: str) -> str:
    """The right answer: the sum of all chains."""
    return str(sum(map(evaluate, parse(problem))) % MODULUS)


def combine(chains: Sequence[Chain]) -> str:
    """The results summed one at a time, each looked up by its letter: `a8b1=9`."""
    total = evaluate(chains[0])
    text = f"{chains[0].letter}{total}"
    for chain in chains[1:]:
        value = evaluate(chain)
        total = (total + value) % MODULUS
        text += f"{chain.letter}{value}={total}"
    return text


def solve(problem: str, form: Form) -> Solution:
    """The solution in one form. Fewer than two chains cannot fork and are solved in a line."""
    chains = parse(problem)
    in_line = _in_line(len(chains), form)
    closed = [f"{work(chain)}." for chain in chains[:in_line]]
    if in_line == len(chains):
        # The last chain closes differently: the sum follows, not another chain.
        closed[-1] = closed[-1][:-1] + "!"
    forked = chains[in_line:]
    return Solution(
        prefix="".join(closed),
        kind="subtask",
        titles=tuple(chain.letter for chain in forked),
        branches=tuple(work(chain) for chain in forked),
        continuation=combine(chains),
        answer=answer_of(problem),
    )


def _in_line(chains: int, form: Form) -> int:
    """How many chains are worked in the main line: all, none, or (mixed) the first half."""
    if form == "sequential" or chains < 2:
        return chains
    if form == "mixed" and chains > 2:
        return chains // 2
    return 0


def check(problem: str, text: str) -> bool:
    """Whether the boxed answer in `text` is right."""
    return extract_answer(text) == answer_of(problem)
