"""A row of a curation: where it comes from, what each stage made of it, and why it was dropped."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from anabranch.records import Record

#: ``kept`` passed all stages; ``dropped`` by a rule; ``failed`` for want of a usable answer;
#: ``unreachable`` because a model's endpoint failed, and tried again by the next run.
Status = Literal["kept", "dropped", "failed", "unreachable"]

#: Stage, status and reason with which a row ended.
End = tuple[str, str, str]
#: Stages whose result is ``{"text": …, "dialect": …}``.
WRITERS = ("render", "convert", "cold_start")


class Outcome(Record):
    """How a row left a stage."""

    status: Status
    reason: str = ""
    detail: str = ""
    answer: str = ""


class Row(Record):
    """One line of a curation.

    Attributes:
        id: unique in the file.
        problem, answer: the question and, where known, its right answer.
        text: the sequential trace; empty before it was sampled.
        difficulty: from 0 to 1, where known.
        data: what each stage made, by the stage's name.
        status: how the row left each stage that saw it.
    """

    id: str
    problem: str
    answer: str | None = None
    text: str = ""
    difficulty: float | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    status: dict[str, Outcome] = Field(default_factory=dict)

    @property
    def trace(self) -> str:
        """The sequential trace: the row's own, or the one that was sampled."""
        sampled = self.data.get("sample")
        return str(sampled["text"]) if sampled else self.text

    @property
    def parallel(self) -> dict[str, Any] | None:
        """The parallel text with its dialect, from whichever stage made one."""
        made = [self.data[name] for name in WRITERS if name in self.data]
        return made[-1] if made else None

    @property
    def outcome(self) -> Outcome:
        """How the row left the last stage that saw it."""
        return next(reversed(self.status.values()), Outcome(status="kept"))

    @property
    def end(self) -> End:
        """Where and how it ended."""
        return end_of(self.status)


def end_of(status: dict[str, Any]) -> End:
    """The last stage of a row's ``status``, as records or as plain data."""
    stage, outcome = next(reversed(status.items()), ("", None))
    if outcome is None:
        return "", "kept", ""
    if isinstance(outcome, Outcome):
        return stage, outcome.status, outcome.reason
    return stage, str(outcome["status"]), str(outcome.get("reason", ""))
