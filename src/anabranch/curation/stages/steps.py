"""Divides a sequential trace into steps, by a model."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import ClassVar

from pydantic import field_validator

from anabranch.annotation.lines import LINE_END, Lines, split_lines
from anabranch.annotation.steps import SYSTEM, Step, ask_for_steps
from anabranch.annotation.traces import SequentialTrace, read_trace
from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Stage, Work


class Steps(Stage):
    """The stage ``steps``: the reasoning, its lines and steps, and the answer behind it.

    ``{"thought": …, "answer": …, "ends": offsets of the lines' ends in the thought,
    "steps": [[number, first line, last line, title]]}``

    Attributes:
        line_end: regular expression of what ends a line.
        longest: characters of reasoning; longer traces are dropped, never cut.
        wrapped: whether reasoning without any wrapper is dropped.
        max_tokens: cap on the model's answer.
    """

    name: ClassVar[str] = "steps"
    asks: ClassVar[bool] = True
    prompt: ClassVar[str] = SYSTEM

    line_end: str = LINE_END
    longest: int = 120_000
    wrapped: bool = False
    max_tokens: int = 8192

    @field_validator("line_end")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return value

    def work(self, row: Row) -> Work:
        """Drops what is no finished trace; asks for the steps of the rest."""
        trace = read_trace(row.trace)
        fault = self._fault(trace)
        if fault:
            return Drop(*fault)
        lines = split_lines(trace.thought, self.line_end)
        if len(lines) < 2:
            return Drop("one_line", "a single line has no steps")
        steps = yield ask_for_steps(row.problem, lines, max_tokens=self.max_tokens)
        return Keep(
            {
                "thought": trace.thought,
                "answer": trace.answer,
                "ends": list(lines.ends()),
                "steps": [[s.number, s.first, s.last, s.title] for s in steps],
            }
        )

    def _fault(self, trace: SequentialTrace) -> tuple[str, str] | None:
        allowed = () if self.wrapped else ("no_wrapper",)
        faults = [fault for fault in trace.faults if fault not in allowed]
        if faults:
            return faults[0], f"the trace is {faults[0].replace('_', ' ')}"
        if len(trace.thought) > self.longest:
            return "too_long", f"{len(trace.thought)} characters, the limit is {self.longest}"
        return None


def lines_of(row: Row) -> Lines:
    """The lines that the stage showed to the model."""
    thought, ends = row.data["steps"]["thought"], row.data["steps"]["ends"]
    return Lines(tuple(thought[a:b] for a, b in pairwise((0, *ends))))


def steps_of(row: Row) -> tuple[Step, ...]:
    """The steps that the stage found."""
    return tuple(Step(*step) for step in row.data["steps"]["steps"])
