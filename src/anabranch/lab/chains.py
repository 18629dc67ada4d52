"""The AND family: independent chains of arithmetic modulo 10, then the sum of their results.

`a:D6E(-0)F(*8);b:K8L(+4)?` starts chain `a` at 6 (its entry `D`), subtracts 0 (`E`) and multiplies
by 8 (`F`). A chain is worked one step at a time, `a:D6,6E(-0)=6,6F(*8)=8,a8`, and the results are
summed one at a time: `a8b2=0`. Chains do not depend on each other, so each is one branch.

Every entry has a name that is its own in the whole problem, and what it does is one symbol, so
that every step needs just one look-up, by the symbol just written. A small model learns that at
any length. Plain expressions it copies wrongly in long problems, and an operand behind a separate
operator it does not find. Which sizes are drawn for training is not decided here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.lab.structure import Form, Solution, extract_answer

LETTERS = "abcdef"
NAMES = {
    "a": "ABCDEF",
    "b": "GHIJKL",
    "c": "MNOPQR",
    "d": "STUVWX",
    "e": "YZghij",
    "f": "klmopq",
}
OPERATORS = "+-*"
MODULUS = 10
MAX_CHAINS = len(LETTERS)
MAX_OPERATORS = len(NAMES["a"]) - 1

_ALL_NAMES = "".join(NAMES.values())
_STEP = rf"[{_ALL_NAMES}]\([-+*]\d\)"
_CHAIN = re.compile(rf"([{LETTERS}]):([{_ALL_NAMES}])(\d)((?:{_STEP}){{1,{MAX_OPERATORS}}})")
_STEP_LENGTH = len("B(-7)")


class Step(NamedTuple):
    """One step of a chain: its name, such as `B`, and what it does to the value."""

    name: str
    operator: str
    operand: int


class Chain(NamedTuple):
    """One letter, the value to start from with its name, and the steps."""

    letter: str
    first: str
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

    Which letters take part is drawn too: every name is as frequent as any other and stands in
    many places, so that looking up is learned once for all names and not for each by its place.
    A short chain uses the last of its letter's names, so where to stop does not have to be looked
    up.
    """
    if not 1 <= chains <= MAX_CHAINS or not 1 <= operators <= MAX_OPERATORS:
        raise ValueError(f"cannot make {chains} chains of {operators} operators")
    letters = sorted(rng.sample(LETTERS, chains))
    return ";".join(_chain(rng, letter, operators) for letter in letters) + "?"


def _chain(rng: random.Random, letter: str, operators: int) -> str:
    first, *names = list(NAMES[letter][-operators - 1 :])
    steps = (f"{name}({rng.choice(OPERATORS)}{rng.randrange(MODULUS)})" for name in names)
    return f"{letter}:{first}{rng.randrange(MODULUS)}{''.join(steps)}"


def parse(problem: str) -> list[Chain]:
    """The chains of a problem; ValueError for a text that is not one."""
    chains = [_parse_chain(part) for part in problem.removesuffix("?").split(";")]
    known = [chain for chain in chains if chain is not None]
    letters = [chain.letter for chain in known]
    if not problem.endswith("?") or None in chains or letters != sorted(set(letters)):
        raise ValueError(f"not a chains problem: {problem!r}")
    return known


def _parse_chain(part: str) -> Chain | None:
    match = _CHAIN.fullmatch(part)
    if match is None:
        return None
    letter, first, start, rest = match.groups()
    pieces = [rest[at : at + _STEP_LENGTH] for at in range(0, len(rest), _STEP_LENGTH)]
    steps = tuple(Step(piece[0], piece[2], int(piece[3])) for piece in pieces)
    if not NAMES[letter].endswith(first + "".join(step.name for step in steps)):
        return None
    return Chain(letter, first, int(start), steps)


def evaluate(chain: Chain) -> int:
    """The value of a chain after its last step."""
    value = chain.start
    for step in chain.steps:
        value = apply(value, step.operator, step.operand)
    return value


def work(chain: Chain) -> str:
    """The worked chain, its result last under the chain's letter: `a:D6,6E(-0)=6,6F(*8)=8,a8`."""
    value = chain.start
    text = f"{chain.letter}:{chain.first}{value}"
    for step in chain.steps:
        result = apply(value, step.operator, step.operand)
        text += f",{value}{step.name}({step.operator}{step.operand})={result}"
        value = result
    return f"{text},{chain.letter}{value}"


def answer_of(problem: str) -> str:
    """The right answer: the sum of all chains."""
    return str(sum(map(evaluate, parse(problem))) % MODULUS)


def combine(chains: Sequence[Chain]) -> str:
    """The results summed one at a time, each looked up by its letter: `a8b2=0`."""
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
