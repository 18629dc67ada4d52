"""Cuts a trace at its steps into text and blocks of branches. No model is asked.

A group becomes a block only where that is worth it (ThreadWeaver's rules): at least two branches
with text in them, and enough text outside the longest. Blocks inside branches are left out; a group
inside a step that is itself a branch stays text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from anabranch.annotation.groups import Group
from anabranch.annotation.lines import Lines
from anabranch.annotation.steps import Step
from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Result, Stage
from anabranch.curation.stages.group import groups_of
from anabranch.curation.stages.steps import lines_of, steps_of

#: ``{"text": …}`` or ``{"kind": …, "branches": [{"title": …, "text": …}]}``.
Part = dict[str, Any]


class Cut(Stage):
    """The stage ``cut``: ``{"parts": [Part], "left": [{"steps": […], "reason": …}]}``.

    Attributes:
        outside: characters that must stand outside the longest branch.
        branches: most branches of a block.
        trim: characters that are cut off the ends of a branch, besides white space.
        keep_lines: whether a trace without any block goes on as it is, or is dropped.
    """

    name: ClassVar[str] = "cut"
    needs: ClassVar[tuple[str, ...]] = ("steps", "group")

    outside: int = 200
    branches: int = 50
    trim: str = ""
    keep_lines: bool = False

    def work(self, row: Row) -> Result:
        """Cuts at once."""
        steps, groups = steps_of(row), groups_of(row)
        cutter = _Cutter(self, lines_of(row), steps, groups)
        parts = list(_joined(cutter.level("")))
        blocks = [part for part in parts if "branches" in part]
        if not blocks and not self.keep_lines:
            reasons = ", ".join(sorted({one["reason"] for one in cutter.left})) or "no group"
            return Drop("no_block", reasons)
        return Keep({"parts": parts, "left": cutter.left})


class _Cutter:
    def __init__(
        self, rules: Cut, lines: Lines, steps: tuple[Step, ...], groups: tuple[Group, ...]
    ) -> None:
        self.rules, self.lines, self.steps = rules, lines, steps
        self.first = {group.steps[0]: group for group in groups}
        self.left: list[dict[str, Any]] = []

    def level(self, parent: str) -> Iterator[Part]:
        """The parts of all steps inside a step, or of the whole trace."""
        steps = [step for step in self.steps if step.parent == parent]
        place = 0
        while place < len(steps):
            step = steps[place]
            group = self.first.get(step.number)
            members = steps[place : place + len(group.steps)] if group else []
            block = self._block(group, members) if group else None
            if block is not None:
                yield block
                place += len(members)
                continue
            if any(other.parent == step.number for other in self.steps):
                yield from self.level(step.number)
            else:
                yield {"text": self.lines.text(step.first, step.last)}
            place += 1

    def _block(self, group: Group, members: list[Step]) -> Part | None:
        made = [
            {"title": step.title, "text": self._trimmed(self.lines.text(step.first, step.last))}
            for step in members
        ]
        texts = [branch["text"] for branch in made]
        lengths = [len(text) for text in texts]
        reason = ""
        if sum(bool(text) for text in texts) < 2 or not all(texts):
            reason = "empty_branch"
        elif len(texts) > self.rules.branches:
            reason = "too_many_branches"
        elif sum(lengths) - max(lengths) < self.rules.outside:
            reason = "little_outside_the_longest"
        if reason:
            self.left.append({"steps": list(group.steps), "reason": reason})
            return None
        return {"kind": group.kind, "branches": made}

    def _trimmed(self, text: str) -> str:
        kept = text.strip()
        while kept and self.rules.trim and kept[-1] in self.rules.trim:
            kept = kept[:-1].rstrip()
        return kept


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    text = ""
    for part in parts:
        if "text" in part:
            text += part["text"]
            continue
        if text:
            yield {"text": text}
        text = ""
        yield part
    if text:
        yield {"text": text}
