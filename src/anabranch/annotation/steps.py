"""The steps of a trace, as line ranges, by a model.

A main step may have sub-steps, one level deep (ThreadWeaver's first stage). The ranges are checked:
in order, not overlapping, inside the trace; what they leave out is added to the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.annotation.asking import AnswerError, Ask, Message
from anabranch.annotation.lines import Lines

SYSTEM = """You read a worked solution whose lines are numbered, and divide it into steps.

A step is a run of lines that pursues one aim: it works out one quantity, tries one idea, treats one
case, or checks one result. Steps follow one another without gaps or overlaps, from the first line
to the last. Where a step consists of parts that could each be read alone (cases, quantities worked
out separately), give them as sub-steps; sub-steps have none of their own.

Answer with one JSON object:
{"steps": [{"first": 1, "last": 4, "title": "…", "steps": [{"first": 1, "last": 2, "title": "…"}]}]}
`first` and `last` are line numbers, both included. `title` says in a few words what the step does,
not what it finds. `steps` may be an empty list."""

_STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first": {"type": "integer", "minimum": 1},
        "last": {"type": "integer", "minimum": 1},
        "title": {"type": "string"},
    },
    "required": ["first", "last", "title"],
}
_OUTER = {
    **_STEP,
    "properties": {**_STEP["properties"], "steps": {"type": "array", "items": _STEP}},
}
SCHEMA = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": _OUTER, "minItems": 1}},
    "required": ["steps"],
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step: ``number`` is ``2`` or, inside step 2, ``2.1``; lines are counted from 1."""

    number: str
    first: int
    last: int
    title: str = ""

    @property
    def parent(self) -> str:
        """The number of the step that this one is in, "" for a main step."""
        return self.number.rpartition(".")[0]


def ask_for_steps(problem: str, lines: Lines, *, max_tokens: int = 8192) -> Ask[tuple[Step, ...]]:
    """The question for the steps of a trace."""
    user = f"Problem:\n{problem}\n\nSolution:\n{lines.numbered()}"
    return Ask(
        kind="steps",
        messages=(Message("system", SYSTEM), Message("user", user)),
        read=partial(read_steps, count=len(lines)),
        schema=SCHEMA,
        max_tokens=max_tokens,
    )


def read_steps(data: Any, count: int) -> tuple[Step, ...]:
    """Steps from an answer, main steps each followed by its sub-steps.

    Raises:
        AnswerError: a range is not one of the trace's lines, or ranges overlap.
    """
    found: list[Step] = []
    outer = _ranges(_list(data, "steps"), 1, count, "")
    for step, inner in outer:
        found.append(step)
        if len(inner) > 1:
            parts = _ranges(inner, step.first, step.last, step.number)
            found += (part for part, _ in parts)
    return tuple(found)


def _list(data: Any, name: str) -> list[Any]:
    items = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(items, list):
        raise AnswerError(f"{name!r} must be a list")
    return items


def _ranges(
    items: Sequence[Any], low: int, high: int, within: str
) -> list[tuple[Step, Sequence[Any]]]:
    if not items:
        raise AnswerError("there must be at least one step")
    found: list[tuple[Step, Sequence[Any]]] = []
    begin = low
    for place, item in enumerate(items, 1):
        number = f"{within}.{place}" if within else str(place)
        first, last = _range(item, number)
        if not begin <= first <= last <= high:
            raise AnswerError(
                f"step {number} is said to be lines {first} to {last}; it must begin at line "
                f"{begin} or later and end at line {high} or before"
            )
        # Lines between two steps belong to the earlier one, those before the first to the first.
        if found:
            before, inner = found[-1]
            found[-1] = (Step(before.number, before.first, first - 1, before.title), inner)
        else:
            first = low
        inner = item.get("steps") or []
        if within or not isinstance(inner, list):
            inner = []
        found.append((Step(number, first, last, str(item.get("title") or "")), inner))
        begin = last + 1
    final, inner = found[-1]
    found[-1] = (Step(final.number, final.first, high, final.title), inner)
    return found


def _range(item: Any, number: str) -> tuple[int, int]:
    first = item.get("first") if isinstance(item, Mapping) else None
    last = item.get("last") if isinstance(item, Mapping) else None
    if type(first) is not int or type(last) is not int:
        raise AnswerError(f"step {number}: 'first' and 'last' must be line numbers")
    return first, last
