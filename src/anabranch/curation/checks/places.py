"""Each block of a text with what could be known in it: the problem and the text before it.

A branch sees the main line up to its block, and inside another branch that branch up to there; of
its siblings it sees nothing. Each line is read once, however many blocks it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anabranch.curation.checks.values import Value, conclusions, values
from anabranch.dialects import Block, TextPart


class Line:
    """A line of text that blocks stand in, up to the last of them.

    Args:
        text: of the whole sample.
        start, end: of the line in it.
    """

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text, self.start, self._end = text, start, end

    @cached_property
    def text(self) -> str:
        """Its text."""
        return self._text[self.start : self._end]

    @cached_property
    def first(self) -> dict[str, int]:
        """Where each value first stands."""
        found: dict[str, int] = {}
        for value in values(self.text):
            found.setdefault(value.text, self.start + value.start)
        return found

    @cached_property
    def conclusions(self) -> list[Value]:
        """Where numbers are stated, the trivial ones too; offsets are those of the line."""
        return list(conclusions(self.text))

    @cached_property
    def results(self) -> dict[str, int]:
        """Where each number first stands as a result."""
        found: dict[str, int] = {}
        for value in self.conclusions:
            if value.result:
                found.setdefault(value.text, self.start + value.start)
        return found

    @cached_property
    def stated(self) -> dict[str, int]:
        """Where each number is first stated."""
        found: dict[str, int] = {}
        for value in self.conclusions:
            found.setdefault(value.text, self.start + value.start)
        return found

    def last(self, before: int) -> str | None:
        """The number that is stated last before an offset."""
        place = bisect_left(self.conclusions, before - self.start, key=lambda value: value.start)
        return self.conclusions[place - 1].text if place else None


@dataclass(frozen=True, slots=True)
class Place:
    """A block and the lines that it stands in.

    Attributes:
        number: of the block, from 1, in the order of the text; those inside branches count.
        block: it.
        lines: the main line, and the branches around the block; each with the offset up to which
            it can be seen.
    """

    number: int
    block: Block
    lines: tuple[tuple[Line, int], ...]

    def __contains__(self, name: Any) -> bool:
        """Whether a value stands before the block."""
        return any(line.first.get(name, end) < end for line, end in self.lines)

    def concluded(self, name: str) -> bool:
        """Whether a number stands before the block as a result."""
        return any(line.results.get(name, end) < end for line, end in self.lines)

    def stated(self, name: str) -> bool:
        """Whether a number is stated before the block, as a result or as given."""
        return any(line.stated.get(name, end) < end for line, end in self.lines)

    def last(self) -> str | None:
        """The number that is stated last before the block, in its own line."""
        line, end = self.lines[-1]
        return line.last(end)


class Known:
    """What the branches of a block could see: the values of the problem and those before it."""

    def __init__(self, given: frozenset[str], place: Place) -> None:
        self._given, self._place = given, place

    def __contains__(self, name: object) -> bool:
        return name in self._given or name in self._place


def places(text: str, parts: Sequence[TextPart | Block]) -> Iterator[Place]:
    """Every block of a document, outer before inner, in the order of the text."""
    # A stack, since branches can be nested as deep as a text likes.
    stack = [iter(_in_line(text, 0, parts, ()))]
    number = 0
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        block, lines = found
        number += 1
        yield Place(number, block, lines)
        for branch in reversed(block.branches):
            if branch.parts:
                stack.append(iter(_in_line(text, branch.body[0], branch.parts, lines)))


def _in_line(
    text: str,
    start: int,
    parts: Sequence[TextPart | Block],
    around: tuple[tuple[Line, int], ...],
) -> list[tuple[Block, tuple[tuple[Line, int], ...]]]:
    blocks = [part for part in parts if isinstance(part, Block)]
    if not blocks:
        return []
    line = Line(text, start, blocks[-1].span[0])
    return [(block, (*around, (line, block.span[0]))) for block in blocks]
