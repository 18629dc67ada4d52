"""`anabranch grade`: verdicts for a file of answers, each with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from anabranch.dialects import get_dialect
from anabranch.errors import RecordError, UsageError
from anabranch.grading import Grader, Item, Rules
from anabranch.jsonl import read_rows, record_error, write_records
from anabranch.records import Problem, Trajectory, Verdict

_BATCH = 256


def grade(
    file: Annotated[Path, typer.Argument(help="JSON Lines: gold and prediction, or trajectories.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    gold_field: Annotated[str, typer.Option("--gold", help="The field with the gold.")] = "gold",
    prediction_field: Annotated[
        str, typer.Option("--prediction", help="The field with the answer, whole text or bare.")
    ] = "prediction",
    dialect: Annotated[str | None, typer.Option(help="Of texts; default: read from them.")] = None,
    checker: Annotated[
        str | None, typer.Option(help="A checker instead of comparing, such as countdown.")
    ] = None,
    branches: Annotated[
        bool, typer.Option("--branches", help="Accept an answer that only a branch holds.")
    ] = False,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Accept an answer that only the reasoning holds.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one comparison.")] = 5.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes for algebra.")] = 2,
    skip: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave bad rows out, and name them.")
    ] = False,
) -> None:
    """Grade answers: writes verdict and reason to each row."""
    if output.resolve() == file.resolve():
        raise UsageError(f"{output}: would overwrite its own input")
    if dialect is not None:
        get_dialect(dialect)
    rules = Rules(branches=branches, reasoning=reasoning, checker=checker)
    counts: Counter[str] = Counter()
    bad: list[RecordError] = []
    on_error = bad.append if skip else None

    def items() -> Iterator[tuple[dict[str, Any], Item]]:
        for number, row in read_rows(file, on_error=on_error):
            try:
                yield row, _item(row, file, number, (gold_field, prediction_field), dialect, rules)
            except RecordError as error:
                if not skip:
                    raise
                bad.append(error)

    def graded(grader: Grader) -> Iterator[dict[str, Any]]:
        source = items()
        while batch := list(islice(source, _BATCH)):
            verdicts = grader.grade_many([item for _, item in batch])
            for (row, item), verdict in zip(batch, verdicts, strict=True):
                counts[verdict.status] += 1
                yield _with_verdict(row, item, verdict)

    with Grader(rules, workers=workers, timeout=timeout) as grader:
        count = write_records(output, graded(grader))
    if count == 0:
        output.unlink()
        raise RecordError("no rows to grade", path=file)
    listed = ", ".join(f"{status} {times}" for status, times in counts.most_common())
    typer.echo(f"{count} rows written to {output}: {listed}")
    for error in bad:
        typer.echo(f"anabranch: left out {error}", err=True)


def _item(
    row: dict[str, Any],
    file: Path,
    number: int,
    fields: tuple[str, str],
    dialect: str | None,
    rules: Rules,
) -> Item:
    if "segments" in row and "requests" in row:
        try:
            trajectory = Trajectory.model_validate(row)
        except ValidationError as error:
            raise record_error(error, file, number) from None
        if trajectory.problem is None or trajectory.problem.answer is None:
            raise RecordError(
                "the trajectory has no gold answer", path=file, line=number, field="problem.answer"
            )
        return Item(None, trajectory, dialect=dialect)
    gold, prediction = (_text(row, name, file, number) for name in fields)
    extra = {k: v for k, v in row.items() if k not in ("id", "problem", "answer")}
    problem = Problem(id=str(row.get("id", number)), problem="", answer=gold)
    if rules.checker is not None:
        problem = Problem.model_validate({**extra, **problem.to_json()})
    cut = row.get("finish_reason") == "length" or row.get("truncated") is True
    return Item(problem, prediction, dialect=dialect, truncated=cut)


def _text(row: dict[str, Any], name: str, file: Path, number: int) -> str:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        there = ", ".join(sorted(row)) or "none"
        raise RecordError(
            f"no text or number (fields here: {there})", path=file, line=number, field=name
        )
    return value


def _with_verdict(row: dict[str, Any], item: Item, verdict: Verdict) -> dict[str, Any]:
    if isinstance(item.prediction, Trajectory):
        return {**row, "verdict": verdict.to_json()}
    return {**row, "verdict": verdict.status, "reason": verdict.reason, "answer": verdict.answer}
