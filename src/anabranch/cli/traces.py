"""Reads trace files for the commands: rows with a text, or trajectories, and in which dialect.

A row is a trajectory record, or any object with an id and a text. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from anabranch.dialects import VARIANTS, Dialect, dialect_names, get_dialect, parse
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import read_rows, record_error
from anabranch.records import Trajectory

_SAMPLE = 20


@dataclass(frozen=True)
class Trace:
    """One row: its id, its text, the trajectory where the row is one, and the whole row."""

    id: str
    text: str
    trajectory: Trajectory | None
    row: dict[str, Any]


def read_traces(
    path: Path,
    *,
    field: str = "text",
    on_error: Callable[[RecordError], None] | None = None,
) -> Iterator[Trace]:
    """Stream the traces of a JSON Lines file.

    Args:
        path: the file.
        field: where a row that is no trajectory keeps its text.
        on_error: called with each bad line, which is then skipped; without it the first raises.

    Raises:
        RecordError: naming file, line and field.
    """
    for number, row in read_rows(path, on_error=on_error):
        try:
            yield _trace(path, number, row, field)
        except RecordError as error:
            if on_error is None:
                raise
            on_error(error)


def _trace(path: Path, number: int, row: dict[str, Any], field: str) -> Trace:
    name = str(row.get("id") or f"line {number}")
    if "segments" in row and "requests" in row:
        try:
            trajectory = Trajectory.model_validate(row)
        except ValidationError as error:
            raise record_error(error, path, number) from None
        return Trace(name, trajectory.text, trajectory, row)
    text = row.get(field)
    if not isinstance(text, str):
        kinds = ", ".join(sorted(key for key, value in row.items() if isinstance(value, str)))
        hint = f"text fields here: {kinds}" if kinds else "the row has no text"
        raise RecordError(f"no text ({hint})", path=path, line=number, field=field)
    return Trace(name, text, None, row)


def choose_dialect(name: str | None, path: Path, field: str = "text") -> Dialect:
    """The dialect that was asked for, or the one that the first rows are written in.

    Raises:
        UsageError: the file does not show which; the message says how to name it.
    """
    if name is not None:
        return get_dialect(name)
    errors: list[RecordError] = []
    sample = list(islice(read_traces(path, field=field, on_error=errors.append), _SAMPLE))
    named = {t.trajectory.dialect for t in sample if t.trajectory} - {""}
    if len(named) == 1:
        return get_dialect(named.pop())
    if len(named) > 1:
        raise UsageError(f"{path}: several dialects ({', '.join(sorted(named))}): use --dialect")
    scores = {known: _score(get_dialect(known), sample) for known in dialect_names()}
    highest, best = max((score, known) for known, score in scores.items())
    rivals = [known for known, score in scores.items() if score == highest]
    if len(rivals) > 1:
        # Names of one family differ in white space only, and read the same.
        families = {known.partition(":")[0] for known in rivals}
        if len(families) > 1:
            raise UsageError(
                f"{path}: the dialect cannot be told from its first rows: use --dialect "
                f"({', '.join(dialect_names())})"
            )
        best = min(rivals, key=len)
    return get_dialect(best)


def _score(dialect: Dialect, sample: list[Trace]) -> tuple[int, int]:
    """Blocks read without an error against errors; then, how few forms are not its own."""
    score = variants = 0
    for trace in sample:
        document = parse(trace.text, dialect)
        score -= sum(d.is_error for d in document.diagnostics)
        variants += sum(d.code in VARIANTS for d in document.diagnostics)
        if document.well_formed:
            # One whole block says more than one deviation elsewhere.
            score += 2 * len(list(document.all_blocks()))
    return score, -variants
