"""What a lab solution is: structure first, text second.

A `Solution` is a prefix, at most one block of branches and a continuation; its text, its training
units and what a first-success run leaves of it are derived from that. How the steps of a family
are written is in `chains` and `puzzle`; which problems are drawn is in `families`. Nothing here
knows a tokenizer: one symbol per character or tag is the business of `tokenizer`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Form = Literal["sequential", "parallel", "mixed"]
Kind = Literal["subtask", "trial"]

FORMS: tuple[Form, ...] = ("sequential", "parallel", "mixed")
MARKERS: dict[Form, str] = {"sequential": "[seq]", "parallel": "[par]", "mixed": "[mix]"}
CANCELLED = "[cancelled]"
FAILED = "[failed]"
BOS = "<bos>"
EOS = "<eos>"

_TAGS: dict[Kind, str] = {"subtask": "Subtask", "trial": "Trial"}
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_HELD_OUT_SHARE = 10


class Unit(NamedTuple):
    """One engine request: what it is given and what it must write. The last request ends in EOS."""

    context: str
    completion: str


@dataclass(frozen=True, slots=True)
class Solution:
    """One worked answer: `prefix`, a block of `branches` (none when sequential), `continuation`.

    `titles` are the outline's entries without their numbers. A branch whose index is in
    `cancelled` stands in the join as a stub and is not a training unit. `prefix` and
    `continuation` carry no tags of the wrapper; a sequential solution has only a prefix.
    """

    prefix: str
    kind: Kind
    titles: tuple[str, ...]
    branches: tuple[str, ...]
    continuation: str
    answer: str
    cancelled: frozenset[int] = frozenset()

    def cancel(self, indices: Collection[int]) -> Solution:
        """The same solution with the branches at `indices` (from 0) joined as stubs."""
        if not set(indices) <= set(range(len(self.branches))):
            raise ValueError(f"no such branches: {sorted(indices)} of {len(self.branches)}")
        return replace(self, cancelled=frozenset(indices))

    @property
    def plan(self) -> str:
        """What the main line writes up to the fork: wrapper, prefix and outline."""
        tag = _TAGS[self.kind]
        entries = "".join(
            f"<{tag}>{number}:{title}</{tag}>" for number, title in enumerate(self.titles, 1)
        )
        return f"<think>{self.prefix}<Parallel><Outlines>{entries}</Outlines>"

    @property
    def threads(self) -> str:
        """All branches as they stand after the join, in order, stubs included."""
        return "".join(
            f"<Thread>{i + 1}:{CANCELLED if i in self.cancelled else body}</Thread>"
            for i, body in enumerate(self.branches)
        )

    @property
    def ending(self) -> str:
        """What is written after the block, or after the prefix of a sequential solution."""
        return f"{self.continuation}</think>\\boxed{{{self.answer}}}"

    def text(self) -> str:
        """The whole answer in the Parason dialect, without any white space."""
        if not self.branches:
            return f"<think>{self.prefix}{self.ending}"
        return f"{self.plan}{self.threads}</Parallel>{self.ending}"

    def units(self, prompt: str) -> list[Unit]:
        """The engine requests of fork-join decoding; a branch does not see its siblings."""
        if not self.branches:
            return [Unit(prompt, self.text() + EOS)]
        main = Unit(prompt, self.plan)
        fork = prompt + self.plan
        branches = [
            Unit(f"{fork}<Thread>{i + 1}:", f"{body}</Thread>")
            for i, body in enumerate(self.branches)
            if i not in self.cancelled
        ]
        return [main, *branches, Unit(f"{fork}{self.threads}</Parallel>", self.ending + EOS)]


def prompt_of(problem: str, form: Form) -> str:
    """The prompt: the marker at its end decides which form of solution is asked for."""
    return f"{BOS}{problem}{MARKERS[form]}"


def extract_answer(text: str) -> str | None:
    """The content of the last `\\boxed{…}`, or None where there is none."""
    found = _BOXED.findall(text)
    return str(found[-1]) if found else None


def held_out(problem: str) -> bool:
    """Whether a problem belongs to the held-out tenth; a pure function of its text."""
    digest = hashlib.sha256(problem.encode()).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_SHARE == 0
