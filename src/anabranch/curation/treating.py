"""One row through all stages: the generators are driven here, with a model or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from anabranch.annotation import Ask, AskFailed
from anabranch.curation.rows import End, Outcome, Row
from anabranch.curation.stage import Drop, Keep, Result, Stage, Work
from anabranch.errors import UsageError
from anabranch.jsonl import dump_line


class Asked(Protocol):
    """Whoever answers; as :class:`anabranch.annotation.Annotator` does."""

    async def ask(self, ask: Ask[Any], /) -> Any: ...


async def treat(row: Row, stages: Sequence[Stage], annotator: Asked | None) -> Row:
    """The row as it leaves the last stage that it reaches.

    Raises:
        BudgetSpent, EngineError: as :meth:`anabranch.annotation.Annotator.ask`.
    """
    for stage in stages:
        if row.outcome.status != "kept":
            return row
        work = _begun(stage, row)
        result = work if isinstance(work, Keep | Drop) else await _drive(work, annotator)
        row = _after(row, stage, result)
    return row


def treat_now(row: Row, stages: Sequence[Stage]) -> Row:
    """As :func:`treat`, for stages that ask nothing."""
    for stage in stages:
        if row.outcome.status != "kept":
            return row
        work = _begun(stage, row)
        assert isinstance(work, Keep | Drop), f"{stage.name} asks, and nobody is there to answer"
        row = _after(row, stage, work)
    return row


def treat_lines(rows: Sequence[dict[str, Any]], stages: Sequence[Stage]) -> list[tuple[str, End]]:
    """Rows as lines of JSON with their ends: what a worker process does."""
    done = [treat_now(Row.model_validate(row), stages) for row in rows]
    return [(dump_line(row), row.end) for row in done]


def _begun(stage: Stage, row: Row) -> Work | Result:
    lacking = [name for name in stage.needs if name not in row.data]
    if lacking:
        raise UsageError(
            f"row {row.id!r}: {stage.name} reads what {lacking[0]} makes; "
            f"put it before {stage.name}"
        )
    return stage.work(row)


async def _drive(work: Work, annotator: Asked | None) -> Result | Outcome:
    assert annotator is not None, "the stage asks, and nobody is there to answer"
    try:
        ask = next(work)
        while True:
            try:
                value = await annotator.ask(ask)
            except AskFailed as error:
                ask = work.throw(error)
            else:
                ask = work.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result
    except AskFailed as error:
        return Outcome(
            status="failed" if error.reason == "unusable_answer" else "unreachable",
            reason=error.reason,
            detail=error.detail,
            answer=error.answer,
        )
    finally:
        work.close()


def _after(row: Row, stage: Stage, result: Result | Outcome) -> Row:
    status = {name: outcome for name, outcome in row.status.items() if name != stage.name}
    data = {name: value for name, value in row.data.items() if name != stage.name}
    if isinstance(result, Outcome):
        status[stage.name] = result
    elif isinstance(result, Drop):
        status[stage.name] = Outcome(status="dropped", reason=result.reason, detail=result.detail)
    else:
        status[stage.name] = Outcome(status="kept")
        data[stage.name] = result.value
    return row.model_copy(update={"status": status, "data": data})
