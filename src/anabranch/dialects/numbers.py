"""The number at the beginning of a plan's entry or of a branch: ``1:``, ``2.1:``.

Dotted numbers belong to blocks inside branches; only their last part counts within a block, the
parts before are those of the branches around it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from anabranch.dialects.description import WHITE

_LABEL = r"((?:0|[1-9][0-9]{0,8}+)(?:\.[1-9][0-9]{0,8}+){0,8}+)[ \t]*+:"
_HEAD = re.compile(r"[ \t\r\n]*+" + _LABEL)
_LINE = re.compile(r"[ \t\r]*+" + _LABEL)


class Counted(NamedTuple):
    """A number (0 for none) and the stripped text behind it, with the text's place.

    ``label`` is the number as written in front of the text, with its dots; empty where there is
    none.
    """

    number: int
    start: int
    end: int
    text: str
    label: str


def counted(text: str, start: int, end: int, given: str | None = None) -> Counted:
    """Read ``n: text`` from ``text[start:end]``; ``given`` is a number inside the tag itself."""
    match = _HEAD.match(text, start, end)
    if match is None:
        inside, low, high = stripped(text, start, end)
        return Counted(int(given) if given else 0, low, high, inside, "")
    label = match.group(1)
    inside, low, high = stripped(text, match.end(), end)
    return Counted(_last(label), low, high, inside, label)


def leading_number(text: str, start: int, given: str | None = None) -> int:
    """The number that :func:`counted` reads from a text that begins at ``start``; 0 for none."""
    match = _HEAD.match(text, start)
    return _last(match.group(1)) if match else int(given or 0)


def counted_lines(text: str, start: int, end: int) -> list[Counted]:
    """Entries written as lines ``n: text``; a line without a number goes on with the one above."""
    begins: list[int] = []
    for begin, stop in _lines(text, start, end):
        if _LINE.match(text, begin, stop):
            begins.append(begin)
        elif not begins and text[begin:stop].strip(WHITE):
            return []
    stops = [*begins[1:], end]
    return [counted(text, at, stop) for at, stop in zip(begins, stops, strict=False)]


def stripped(text: str, start: int, end: int) -> tuple[str, int, int]:
    """``text[start:end]`` without white space around it, and where that stands."""
    whole = text[start:end]
    right = whole.rstrip(WHITE)
    inside = right.lstrip(WHITE)
    low = start + len(right) - len(inside)
    return inside, low, low + len(inside)


def _last(label: str) -> int:
    return int(label.rpartition(".")[2])


def _lines(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans, begin = [], start
    while begin < end:
        stop = text.find("\n", begin, end)
        stop = end if stop < 0 else stop
        spans.append((begin, stop))
        begin = stop + 1
    return spans
