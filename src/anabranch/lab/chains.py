"""The AND family: independent chains of arithmetic modulo 10, then the sum of their results.

`a:6-0-8;b:8+4+1?` is evaluated from left to right, one operator a step: `a:6-0=6,6-8=8`, and the
results are summed one at a time: `a8+b3=1`. Chains do not depend on each other, so each is one
branch. Operands of one chain are distinct digits: the operand just used, together with the
chain's letter, then names the place to read on from, which is what makes long problems learnable.
Which sizes are drawn for training is not decided here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.lab.structure import Form, Solution, extract_answer

LETTERS = "abcdef"
OPERATORS = "+-*"
MODULUS = 10
MAX_CHAINS = len(LETTERS)
MAX_OPERATORS = 7

_CHAIN = re.compile(rf"([{LETTERS}]):(\d(?:[-+*]\d){{1,{MAX_OPERATORS}}})")


class Chain(NamedTuple):
    """One letter and its expression, such as `6-0-8`."""

    letter: str
    expression: str


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
    return ";".join(f"{LETTERS[i]}:{_expression(rng, operators)}" for i in range(chains)) + "?"


def _expression(rng: random.Random, operators: int) -> str:
    digits = rng.sample(range(MODULUS), operators + 1)
    rest = (f"{rng.choice(OPERATORS)}{digit}" for digit in digits[1:])
    return f"{digits[0]}{''.join(rest)}"


def parse(problem: str) -> list[Chain]:
    """The chains of a problem; ValueError for a text that is not one."""
    parts = problem.removesuffix("?").split(";")
    chains: list[Chain] = []
    for expected, part in zip(LETTERS, parts, strict=False):
        match = _CHAIN.fullmatch(part)
        if match is None or match[1] != expected:
            break
        chains.append(Chain(match[1], match[2]))
    if not problem.endswith("?") or len(chains) != len(parts):
        raise ValueError(f"not a chains problem: {problem!r}")
    return chains


def evaluate(expression: str) -> int:
    """The value of an expression, from left to right."""
    value = int(expression[0])
    for at in range(1, len(expression), 2):
        value = apply(value, expression[at], int(expression[at + 1]))
    return value


def steps(chain: Chain) -> str:
    """The worked chain: `a:6-0=6,6-8=8`."""
    value = int(chain.expression[0])
    written: list[str] = []
    for at in range(1, len(chain.expression), 2):
        operator, operand = chain.expression[at], chain.expression[at + 1]
        result = apply(value, operator, int(operand))
        written.append(f"{value}{operator}{operand}={result}")
        value = result
    return f"{chain.letter}:{','.join(written)}"


def answer_of(problem: str) -> str:
    """The right answer: the sum of all chains."""
    return str(sum(evaluate(chain.expression) for chain in parse(problem)) % MODULUS)


def combine(chains: Sequence[Chain]) -> str:
    """The results summed one at a time: `a1+b3=4+c5=9`."""
    total = evaluate(chains[0].expression)
    text = f"{chains[0].letter}{total}"
    for chain in chains[1:]:
        value = evaluate(chain.expression)
        total = (total + value) % MODULUS
        text += f"+{chain.letter}{value}={total}"
    return text


def solve(problem: str, form: Form) -> Solution:
    """The solution in one form. Fewer than two chains cannot fork and are solved in a line."""
    chains = parse(problem)
    in_line = _in_line(len(chains), form)
    closed = [f"{steps(chain)}." for chain in chains[:in_line]]
    if in_line == len(chains):
        # The last chain closes differently: the sum follows, not another chain.
        closed[-1] = closed[-1][:-1] + "!"
    forked = chains[in_line:]
    return Solution(
        prefix="".join(closed),
        kind="subtask",
        titles=tuple(chain.letter for chain in forked),
        branches=tuple(steps(chain) for chain in forked),
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
