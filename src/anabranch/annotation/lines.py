"""A trace as numbered lines, so that a model can point at parts of it without copying them.

Lines are cut at newlines and, where a paragraph goes on, behind sentences; joined again they are
the text, character for character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

#: Where a line ends: at newlines, and at the white space behind a sentence.
LINE_END = r"\n+|(?<=[.!?。！？])[ \t]+|(?<=[。！？])"
#: A piece of text longer than this is one line all the same; its number says where it is.
SHOWN = 400


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a text, each with the white space behind it."""

    pieces: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pieces)

    def ends(self) -> Iterator[int]:
        """Where each line ends in the text."""
        return accumulate(len(piece) for piece in self.pieces)

    def text(self, first: int, last: int) -> str:
        """Lines ``first`` to ``last``, counted from 1, both included."""
        return "".join(self.pieces[first - 1 : last])

    def numbered(self) -> str:
        """What a model is shown. A very long line is shortened in its middle."""
        return "\n".join(f"{n}: {_shown(piece)}" for n, piece in enumerate(self.pieces, 1))


def split_lines(text: str, pattern: str = LINE_END) -> Lines:
    """The lines of a text.

    Args:
        text: any.
        pattern: regular expression of what ends a line; it belongs to the line that it ends.
    """
    pieces, begin = [], 0
    for match in re.finditer(pattern, text):
        if match.end() == begin or not text[begin : match.end()].strip():
            continue
        pieces.append(text[begin : match.end()])
        begin = match.end()
    if begin < len(text):
        rest = text[begin:]
        if rest.strip() or not pieces:
            pieces.append(rest)
        else:
            pieces[-1] += rest
    return Lines(tuple(pieces))


def _shown(piece: str) -> str:
    line = " ".join(piece.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN // 2]} … {line[-SHOWN // 2 :]}"
