"""The AND family: independent chains of arithmetic modulo 10, then the sum of their results.

`a:6ap-0aq*8;b:8bp+4?` starts chain `a` at 6, subtracts 0 in its step `ap` and multiplies by 8 in
its step `aq`. A chain is worked one step at a time, `a:6ap-0=6aq*8=8`, and the results are summed
one at a time: `a8b2=0`. Chains do not depend on each other, so each is one branch. Every step has
a name of its own, chain letter and step letter: to find a step is then to look up two symbols
that were just written, which a small model learns at any length; plain expressions without names
it copied wrongly from the fifth chain on. Which sizes are drawn for training is not decided here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.lab.structure import Form, Solution, extract_answer

LETTERS = "abcdef"
STEPS = "pqrst"
OPERATORS = "+-*"
MODULUS = 10
MAX_CHAINS = len(LETTERS)
MAX_OPERATORS = len(STEPS)

_CHAIN = re.compile(rf"([{LETTERS}]):(\d)((?:\1[{STEPS}][-+*]\d){{1,{MAX_OPERATORS}}})")
_STEP_LENGTH = 4


class Step(NamedTuple):
    """One step of a chain: its name, such as `ap`, and what it does to the value."""

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
    """A random problem of `chains` chains with `operators` operators each."""
    if not 1 <= chains <= MAX_CHAINS or not 1 <= operators <= MAX_OPERATORS:
        raise ValueError(f"cannot make {chains} chains of {operators} operators")
    return ";".join(_chain(rng, letter, operators) for letter in LETTERS[:chains]) + "?"


def _chain(rng: random.Random, letter: str, operators: int) -> str:
    steps = (
        f"{letter}{name}{rng.choice(OPERATORS)}{rng.randrange(MODULUS)}"
        for name in STEPS[:operators]
    )
    return f"{letter}:{rng.randrange(MODULUS)}{''.join(steps)}"


def parse(problem: str) -> list[Chain]:
    """The chains of a problem; ValueError for a text that is not one."""
    parts = problem.removesuffix("?").split(";")
    chains = [_parse_chain(part) for part in parts]
    letters = "".join(chain.letter for chain in chains if chain is not None)
    if not problem.endswith("?") or letters != LETTERS[: len(parts)]:
        raise ValueError(f"not a chains problem: {problem!r}")
    return [chain for chain in chains if chain is not None]


def _parse_chain(part: str) -> Chain | None:
    match = _CHAIN.fullmatch(part)
    if match is None:
        return None
    pieces = [match[3][at : at + _STEP_LENGTH] for at in range(0, len(match[3]), _STEP_LENGTH)]
    if any(piece[1] != name for piece, name in zip(pieces, STEPS, strict=False)):
        return None
    steps = tuple(Step(piece[:2], piece[2], int(piece[3])) for piece in pieces)
    return Chain(match[1], int(match[2]), steps)


def evaluate(chain: Chain) -> int:
    """The value of a chain after its last step."""
    value = chain.start
    for step in chain.steps:
        value = apply(value, step.operator, step.operand)
    return value


def work(chain: Chain) -> str:
    """The worked chain: `a:6ap-0=6aq*8=8`."""
    value = chain.start
    text = f"{chain.letter}:{value}"
    for step in chain.steps:
        value = apply(value, step.operator, step.operand)
        text += f"{step.name}{step.operator}{step.operand}={value}"
    return text


def answer_of(problem: str) -> str:
    """The right answer: the sum of all chains."""
    return str(sum(map(evaluate, parse(problem))) % MODULUS)


def combine(chains: Sequence[Chain]) -> str:
    """The results summed one at a time, each looked up by its letter: `a1b3=4c5=9`."""
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
