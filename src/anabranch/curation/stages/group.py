"""Asks a model which steps need which, and which could be worked out at the same time."""

from __future__ import annotations

from typing import ClassVar

from anabranch.annotation.groups import SYSTEM, Group, Grouping, ask_for_groups
from anabranch.curation.rows import Row
from anabranch.curation.stage import Keep, Stage, Work
from anabranch.curation.stages.steps import lines_of, steps_of


class GroupSteps(Stage):
    """The stage ``group``: ``{"needs": {number: […]}, "groups": [{"steps": […], "kind": …}]}``."""

    name: ClassVar[str] = "group"
    needs: ClassVar[tuple[str, ...]] = ("steps",)
    asks: ClassVar[bool] = True
    prompt: ClassVar[str] = SYSTEM

    max_tokens: int = 4096

    def work(self, row: Row) -> Work:
        """Asks; a single step needs no question."""
        steps = steps_of(row)
        if len(steps) < 2:
            return Keep({"needs": {}, "groups": []})
        found: Grouping = yield ask_for_groups(
            row.problem, lines_of(row), steps, max_tokens=self.max_tokens
        )
        return Keep(
            {
                "needs": {number: list(of) for number, of in found.needs.items()},
                "groups": [{"steps": list(g.steps), "kind": g.kind} for g in found.groups],
            }
        )


def groups_of(row: Row) -> tuple[Group, ...]:
    """The groups that the stage found."""
    return tuple(Group(tuple(g["steps"]), g["kind"]) for g in row.data["group"]["groups"])
