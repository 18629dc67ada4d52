"""Join policies: when the branches of a block are enough, and which of them are cancelled.

AND branches (subtasks, outlines) are always waited for. OR branches (trials, paths) may race; a
policy is asked each time one closes. Only ``all`` and ``first_conclusive`` are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.errors import UsageError

#: Says whether a closed OR branch, given its text, settles the block.
Judge = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class BranchView:
    """What a policy sees of a branch."""

    number: int
    is_or: bool
    closed: bool
    text: str


class JoinPolicy(Protocol):
    """Decides which of the branches still running are to be cancelled."""

    @property
    def name(self) -> str: ...

    def losers(self, branches: Sequence[BranchView], closed: int) -> list[int]:
        """Numbers of running branches to cancel, now that branch ``closed`` has closed."""
        ...


@dataclass(frozen=True, slots=True)
class WaitForAll:
    """Every branch runs to its end, as the papers do."""

    name: str = "all"

    def losers(self, branches: Sequence[BranchView], closed: int) -> list[int]:
        return []


@dataclass(frozen=True, slots=True)
class FirstConclusive:
    """The first OR branch that the judge accepts ends all other OR branches of its block."""

    judge: Judge
    name: str = "first_conclusive"

    def losers(self, branches: Sequence[BranchView], closed: int) -> list[int]:
        winner = next(b for b in branches if b.number == closed)
        if not winner.is_or or not self.judge(winner.text):
            return []
        return [b.number for b in branches if b.is_or and not b.closed and b.number != closed]


def answer_found(text: str) -> bool:
    """The default judge: the branch states a boxed or final answer."""
    return "\\boxed{" in text or "Final Answer:" in text


def make_policy(name: str, judge: Judge | None = None) -> JoinPolicy:
    """The policy with this name.

    Raises:
        UsageError: no policy has this name.
    """
    if name == "all":
        return WaitForAll()
    if name == "first_conclusive":
        return FirstConclusive(judge or answer_found)
    raise UsageError(f"unknown join policy {name!r}: use all or first_conclusive")
