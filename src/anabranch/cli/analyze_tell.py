"""Who says what the steps of traces are, for `anabranch analyze`: asks them, with progress."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.cli.traces import Trace, choose_dialect
from anabranch.dialects import Dialect, dialect_names, get_dialect, parse
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.analysis.annotators import Told

#: Traces by file.
Rows = dict[str, list[Trace]]


@dataclass(frozen=True)
class Judge:
    """A model that is asked: where, with which answers kept, and at which most tokens."""

    url: str
    model: str
    key: str | None
    cache: Path
    tokens: int | None
    line_end: str


def pattern(text: str | None) -> str:
    """What ends a line for the judge.

    Raises:
        UsageError: it is no regular expression.
    """
    from anabranch.annotation.lines import LINE_END

    try:
        return re.compile(text or LINE_END).pattern
    except re.error as error:
        raise UsageError(f"--line-end {text!r} is no regular expression: {error}") from None


def tell(
    files: list[Path],
    rows: Rows,
    dialect: str | None,
    field: str,
    asked: Judge | None,
) -> dict[str, list[Told]]:
    """What is said of each trace, by file.

    Args:
        files, rows: the files and their traces, in the same order.
        dialect: of all traces; None: traces that look parallel say themselves, others are asked of.
        field: where a row has its text.
        asked: the judge; None for the offline classifier.

    Raises:
        UsageError: texts look parallel, but not in which dialect.
        BudgetSpent, EngineError: as :func:`anabranch.analysis.annotators.by_judge`.
    """
    from anabranch.analysis.annotators import by_classifier, by_itself

    found: dict[tuple[str, int], Told] = {}
    left: list[tuple[str, int]] = []
    for path, (name, traces) in zip(files, rows.items(), strict=True):
        forced = get_dialect(dialect) if dialect is not None else None
        usual = forced or _dialect(path, field, traces)
        for number, trace in enumerate(traces):
            own = forced or _own(trace) or usual
            if own and (forced or list(parse(trace.text, own).all_blocks())):
                found[name, number] = by_itself(trace.text, own)
            else:
                left.append((name, number))
    if asked is None:
        rest = [by_classifier(rows[name][number].text) for name, number in left]
    else:
        rest = _judged([rows[name][number] for name, number in left], asked)
    found.update(zip(left, rest, strict=True))
    return {name: [found[name, n] for n in range(len(of))] for name, of in rows.items()}


def _own(trace: Trace) -> Dialect | None:
    named = trace.trajectory.dialect if trace.trajectory else ""
    return get_dialect(named) if named else None


def _dialect(path: Path, field: str, traces: list[Trace]) -> Dialect | None:
    """The dialect that texts look like; None where none of the first has a block in any."""
    for trace in islice((one for one in traces if _own(one) is None), 20):
        for name in dialect_names():
            if list(parse(trace.text, get_dialect(name)).all_blocks()):
                return choose_dialect(None, path, field)
    return None


def _judged(traces: list[Trace], judge: Judge) -> list[Told]:
    from anabranch.analysis.annotators import by_judge
    from anabranch.annotation import Annotator, AnswerCache, Budget
    from anabranch.engines.retry import Retries
    from anabranch.engines.transport import Transport

    questions = [(text_of(trace.row, "problem"), trace.text) for trace in traces]
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    async def main() -> list[Told]:
        transport = Transport(judge.url, api_key=judge.key, retries=Retries(attempts=0))
        answers = AnswerCache(judge.cache, "analyze")
        annotator = Annotator(transport, judge.model, answers, budget=Budget(judge.tokens))
        errors = Console(stderr=True)
        try:
            with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
                task = progress.add_task("traces", total=len(questions))
                return await by_judge(
                    questions, annotator, lambda: progress.advance(task), judge.line_end
                )
        finally:
            await transport.close()
            answers.close()

    return asyncio.run(main())


def text_of(row: dict[str, Any], name: str) -> str:
    """A field as text, "" where it is not there."""
    value = row.get(name)
    return "" if value is None else str(value)
