"""A sequential trace taken apart: the reasoning, the answer behind it, and what is odd about it."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

_BEGIN = re.compile(r"<think(?:ing)?>|<\|begin_of_thought\|>", re.I)
_END = re.compile(r"</think(?:ing)?>|<\|end_of_thought\|>", re.I)
_AROUND_ANSWER = re.compile(r"<\|(?:begin|end)_of_solution\|>")
#: A tail that is compressed to less than this share says the same again and again.
_LOOP_RATIO = 0.06
_LOOP_TAIL = 6000


@dataclass(frozen=True, slots=True)
class SequentialTrace:
    """A trace without its wrapper.

    Attributes:
        thought: the reasoning; the whole text where no wrapper is known.
        answer: what stands behind it.
        start: offset of the reasoning in the text.
        faults: ``empty``, ``several_thoughts``, ``unclosed_thought``, ``answer_missing``,
            ``looping``; and ``no_wrapper``, which is none where it is allowed.
    """

    thought: str
    answer: str
    start: int
    faults: tuple[str, ...]


def read_trace(text: str) -> SequentialTrace:
    """Take a trace apart. Every text has a result; what deviates is in ``faults``."""
    if not text.strip():
        return SequentialTrace("", "", 0, ("empty",))
    begins, ends = list(_BEGIN.finditer(text)), list(_END.finditer(text))
    faults = []
    start = begins[0].end() if begins else 0
    if not begins and not ends:
        faults.append("no_wrapper")
        thought, answer = text, ""
    elif not ends:
        faults.append("unclosed_thought")
        thought, answer = text[start:], ""
    else:
        last = ends[-1]
        thought, answer = text[start : last.start()], text[last.end() :]
        if len(begins) > 1 or len(ends) > 1:
            faults.append("several_thoughts")
    answer = _AROUND_ANSWER.sub("", answer).strip()
    if not answer and "no_wrapper" not in faults:
        faults.append("answer_missing")
    if not thought.strip():
        faults.append("empty")
    if loops(thought):
        faults.append("looping")
    return SequentialTrace(thought, answer, start, tuple(faults))


def loops(text: str) -> bool:
    """Whether a text ends in saying the same thing again and again."""
    tail = text[-_LOOP_TAIL:].encode("utf-8", "replace")
    return len(tail) >= _LOOP_TAIL // 2 and len(zlib.compress(tail)) < _LOOP_RATIO * len(tail)
