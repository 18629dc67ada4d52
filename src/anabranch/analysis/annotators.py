"""Who says what the steps of a trace are: the trace itself, the offline classifier or a judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.analysis.classifier import classify, is_english
from anabranch.analysis.judge import judge
from anabranch.analysis.parallel import structure_of
from anabranch.analysis.structure import Structure
from anabranch.annotation import Annotator, AskFailed
from anabranch.annotation.lines import LINE_END
from anabranch.annotation.traces import read_trace
from anabranch.dialects import Dialect, parse

#: What can be odd about a trace.
FAULTS = frozenset(
    {
        "answer_missing", "empty", "looping", "malformed", "not_english", "several_thoughts",
        "unclosed_thought",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of one trace.

    Attributes:
        structure: its steps; None where a judge gave no usable answer.
        itself: whether the trace is in parallel form and says itself.
        faults: what is odd about the trace.
        failure: why there is no structure.
    """

    structure: Structure | None
    itself: bool = False
    faults: tuple[str, ...] = ()
    failure: str = ""


def by_itself(text: str, dialect: Dialect) -> Told:
    """What a trace in parallel form says; where it is malformed, as far as it can be read."""
    faults = () if parse(text, dialect).well_formed else ("malformed",)
    return Told(structure_of(text, dialect), True, faults)


def by_classifier(text: str) -> Told:
    """What the offline classifier says of a sequential trace."""
    known = () if is_english(text) else ("not_english",)
    return Told(classify(text), faults=_faults(text) + known)


async def by_judge(
    questions: Sequence[tuple[str, str]],
    annotator: Annotator,
    on_done: Callable[[], None],
    line_end: str = LINE_END,
) -> list[Told]:
    """What a model says of sequential traces.

    Args:
        questions: problem and trace, in turn.
        annotator: the model; what it answered is in its cache, whatever happens here.
        on_done: called after each trace.
        line_end: as that of :func:`anabranch.analysis.judge.judge`.

    Raises:
        BudgetSpent, EngineError: as :meth:`anabranch.annotation.Annotator.ask`.
    """

    async def one(problem: str, text: str) -> Told:
        try:
            told = Told(await judge(problem, text, annotator, line_end), faults=_faults(text))
        except AskFailed as error:
            told = Told(None, faults=_faults(text), failure=str(error))
        on_done()
        return told

    try:
        # Where one cannot go on, the group ends the others.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(problem, text)) for problem, text in questions]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _faults(text: str) -> tuple[str, ...]:
    # A trace without a wrapper is an ordinary one here.
    return tuple(fault for fault in read_trace(text).faults if fault != "no_wrapper")
