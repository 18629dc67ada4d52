"""The structure of a parallel trace, which says itself what runs at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.analysis.structure import Kind, Step, Structure
from anabranch.dialects import Block, Dialect, TextPart, parse


def structure_of(text: str, dialect: Dialect) -> Structure:
    """Text of the main line is serial; branches are subtasks or trials by the dialect's kinds.

    A branch with blocks of its own is a chain of its texts and their branches.
    """
    steps: list[Step] = []
    _line(parse(text, dialect).parts, dialect, "serial", (), steps)
    return Structure(text, tuple(steps))


def _line(
    parts: Sequence[TextPart | Block],
    dialect: Dialect,
    kind: Kind,
    before: tuple[int, ...],
    steps: list[Step],
) -> tuple[int, ...]:
    """Adds the steps of a line; returns those that whatever follows has to wait for."""
    for part in parts:
        if isinstance(part, TextPart):
            if part.text.strip():
                steps.append(Step(*part.span, kind, before))
                before = (len(steps) - 1,)
            continue
        if part.plan:
            steps.append(Step(*part.plan_span, kind, before))
            before = (len(steps) - 1,)
        ends: list[int] = []
        for branch in part.branches:
            own: Kind = "trial" if branch.kind in dialect.or_kinds else "subtask"
            if branch.parts:
                ends += _line(branch.parts, dialect, own, before, steps)
            else:
                steps.append(Step(*branch.body, own, before))
                ends.append(len(steps) - 1)
        before = tuple(ends) or before
        if part.merge is not None:
            steps.append(Step(*part.merge_span, kind, before))
            before = (len(steps) - 1,)
    return before
