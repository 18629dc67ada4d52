"""Which steps depend on which, and which of them could be worked out at the same time.

A group holds steps that stand one after another and do not need one another: parts of the task
(subtask: all are needed, AND) or attempts at it (trial: one is enough, OR).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from anabranch.annotation.asking import AnswerError, Ask, Message
from anabranch.annotation.lines import Lines
from anabranch.annotation.steps import Step

Kind = Literal["subtask", "trial"]

SYSTEM = """You read a worked solution that was divided into steps, and say which steps need which.

Step B needs step A if B uses something that A found out: a value, a formula, a conclusion, the
failure of an attempt. What stands in the problem itself is known to every step.

Then find groups of steps that could be worked out at the same time: neighbours on the same level,
none of which needs another of the group, directly or through other steps. A group is
- "subtask" if all its steps contribute to the result (parts, cases, separate quantities),
- "trial" if they are different attempts at the same thing, of which one success would be enough.

Answer with one JSON object:
{"needs": [{"step": "2", "of": ["1"]}], "groups": [{"steps": ["2", "3"], "kind": "subtask"}]}
List in "needs" only steps that need others; "groups" may be an empty list."""

SCHEMA = {
    "type": "object",
    "properties": {
        "needs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "step": {"type": "string"},
                    "of": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["step", "of"],
            },
        },
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "steps": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                    "kind": {"enum": ["subtask", "trial"]},
                },
                "required": ["steps", "kind"],
            },
        },
    },
    "required": ["needs", "groups"],
}


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that can be branches of one block, in order."""

    steps: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Grouping:
    """What each step needs, by number, and the groups in the order of the trace."""

    needs: Mapping[str, tuple[str, ...]]
    groups: tuple[Group, ...]


def ask_for_groups(
    problem: str, lines: Lines, steps: Sequence[Step], *, max_tokens: int = 4096
) -> Ask[Grouping]:
    """The question for dependencies and groups."""
    shown = "\n\n".join(f"Step {s.number} ({s.title}):\n{_content(s, steps, lines)}" for s in steps)
    return Ask(
        kind="groups",
        messages=(
            Message("system", SYSTEM),
            Message("user", f"Problem:\n{problem}\n\n{shown}"),
        ),
        read=partial(read_groups, steps=tuple(steps)),
        schema=SCHEMA,
        max_tokens=max_tokens,
    )


def _content(step: Step, steps: Sequence[Step], lines: Lines) -> str:
    if any(other.parent == step.number for other in steps):
        return "(its parts follow)"
    return lines.text(step.first, step.last).strip()


def read_groups(data: Any, steps: Sequence[Step]) -> Grouping:
    """Dependencies and groups from an answer.

    Raises:
        AnswerError: an unknown step, a step that needs a later one, or a group whose steps are
            not neighbours on one level or need one another.
    """
    order = {step.number: place for place, step in enumerate(steps)}
    needs = _needs(data, order)
    groups: list[Group] = []
    used: set[str] = set()
    for item in _items(data, "groups"):
        members = tuple(sorted(_numbers(item.get("steps"), order), key=order.__getitem__))
        kind = item.get("kind")
        if kind not in ("subtask", "trial"):
            raise AnswerError(f"a group's kind must be 'subtask' or 'trial', not {kind!r}")
        _check(members, steps, needs)
        if used & set(members):
            raise AnswerError(f"step {min(used & set(members))} is in two groups")
        used.update(members)
        groups.append(Group(members, kind))
    return Grouping(needs, tuple(sorted(groups, key=lambda group: order[group.steps[0]])))


def _needs(data: Any, order: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for item in _items(data, "needs"):
        (step,) = _numbers([item.get("step")], order)
        of = _numbers(item.get("of"), order)
        late = [other for other in of if order[other] >= order[step]]
        if late:
            raise AnswerError(f"step {step} cannot need step {late[0]}, which does not precede it")
        found[step] = tuple(dict.fromkeys(found.get(step, ()) + of))
    return found


def _check(
    members: tuple[str, ...], steps: Sequence[Step], needs: Mapping[str, Sequence[str]]
) -> None:
    if len(set(members)) < 2:
        raise AnswerError("a group has at least two different steps")
    by_number = {step.number: step for step in steps}
    parents = {by_number[number].parent for number in members}
    level = [step.number for step in steps if step.parent in parents]
    places = [level.index(number) for number in members]
    if len(parents) > 1 or places != list(range(places[0], places[0] + len(places))):
        raise AnswerError(f"the steps {', '.join(members)} of a group must follow one another")
    for number in members:
        clash = depends_on(number, needs) & set(members)
        if clash:
            raise AnswerError(
                f"steps {min(clash)} and {number} cannot be in one group: {number} needs it"
            )


def depends_on(number: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """All steps that a step needs, directly or through others."""
    found: set[str] = set()
    waiting = list(needs.get(number, ()))
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += needs.get(one, ())
    return found


def _items(data: Any, name: str) -> list[Mapping[str, Any]]:
    items = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise AnswerError(f"{name!r} must be a list of objects")
    return items


def _numbers(values: Any, order: Mapping[str, int]) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise AnswerError("steps must be given as a list of step numbers")
    found = []
    for value in values:
        number = str(value).strip().removeprefix("Step ").removeprefix("step ").rstrip(".")
        if number not in order:
            raise AnswerError(f"there is no step {number!r}")
        found.append(number)
    return tuple(found)
