"""Judges of a closed branch: whether it settles its block, and what it answers.

A judge says yes or no of one branch, a reader names its answer, so that branches can be compared.
Both are plain functions; anything of the same shape does. Grading of finished answers is not done
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.records import Problem

if TYPE_CHECKING:
    from anabranch.decoding.joins import BranchView

#: Says whether a closed branch settles its block.
Judge = Callable[["BranchView"], bool]
#: What a closed branch answers, so that equal answers are equal strings; None: it answers nothing.
Reader = Callable[["BranchView"], str | None]

_FINAL = re.compile(r"Final Answer:\s*([^\n<]+)")
_BOX = "\\boxed{"
_NOISE = re.compile(r"\\left|\\right|\\[,;! ]|\\text\s*|\\mathrm\s*|[\s$]")


def answer_in(text: str) -> str | None:
    """The last boxed or final answer of a text as it is written; None where there is none."""
    at = text.rfind(_BOX)
    if at >= 0:
        start, depth = at + len(_BOX), 1
        for place in range(start, len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[start:place].strip()
        return None  # a box that never closes is no answer
    found = _FINAL.findall(text)
    return str(found[-1]).strip() if found else None


def normalised(answer: str) -> str:
    """An answer as it is compared: no spaces, no dollar signs, no layout commands, one case."""
    return _NOISE.sub("", answer).rstrip(".,;").casefold()


def answer_of(branch: BranchView) -> str | None:
    """The default reader: the normalised answer that the branch states last."""
    answer = answer_in(branch.text)
    return (normalised(answer) or None) if answer is not None else None


def answer_found(branch: BranchView) -> bool:
    """The default judge: the branch states a boxed or final answer."""
    return answer_of(branch) is not None


@dataclass(frozen=True, slots=True)
class Contains:
    """The branch's text holds a string, such as the mark by which a trial reports its success."""

    needle: str

    def __call__(self, branch: BranchView) -> bool:
        return self.needle in branch.text


@dataclass(frozen=True, slots=True)
class Confident:
    """The branch states an answer, and its mean log-prob is no lower than ``floor``."""

    floor: float

    def __call__(self, branch: BranchView) -> bool:
        scored = branch.logprob is not None and branch.logprob >= self.floor
        return scored and answer_found(branch)


@dataclass(frozen=True, slots=True)
class Checked:
    """A checker accepts the answer that the branch states.

    ``check`` gets the problem, as the setup names it, and the branch's whole text.
    """

    check: Callable[[Problem | None, str], bool]

    def __call__(self, branch: BranchView) -> bool:
        return self.check(branch.problem, branch.text)


@dataclass(frozen=True, slots=True)
class OnText:
    """A function of the branch's text alone as a judge."""

    function: Callable[[str], bool]

    def __call__(self, branch: BranchView) -> bool:
        return self.function(branch.text)
