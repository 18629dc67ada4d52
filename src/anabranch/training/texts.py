"""Rows of problem and text become training trajectories, once, on disk.

Each text is parsed, written canonically and run through the decoding machine with the model's own
tokenizer. A row that is malformed is reported and left out; nothing else is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.decoding import Setup, trajectory_from_text
from anabranch.decoding.prompts import encode_prompt
from anabranch.dialects import Dialect, dialect_names, get_dialect, parse, write
from anabranch.dialects.reader import MAX_DEPTH
from anabranch.engines.base import Tokenizer
from anabranch.errors import DialectError, RecordError
from anabranch.jsonl import read_rows, write_records
from anabranch.records import Limits, Problem, Trajectory


@dataclass(frozen=True)
class TextRows:
    """A file of rows with a problem and a text.

    Attributes:
        path: JSON Lines.
        problem, text: names of the fields.
    """

    path: Path
    problem: str = "problem"
    text: str = "text"


def trajectories(
    rows: TextRows,
    dialect: Dialect,
    tokenizer: Tokenizer,
    prompt: Callable[[str], str],
    on_skip: Callable[[str], None],
) -> Iterator[Trajectory]:
    """The rows' trajectories, in order.

    Args:
        rows: where they come from.
        dialect: what the texts are written in.
        tokenizer: of the model that will be trained.
        prompt: from a problem's text to the complete prompt.
        on_skip: told of each row that is left out, and why.

    Raises:
        RecordError: the file cannot be read.
    """
    for number, row in read_rows(rows.path, on_error=lambda error: on_skip(str(error))):
        where = f"{rows.path}:{number}"
        problem, text = row.get(rows.problem), row.get(rows.text)
        if not isinstance(problem, str) or not isinstance(text, str):
            lacking = rows.problem if not isinstance(problem, str) else rows.text
            on_skip(f"{where}: field {lacking!r}: a text is needed")
            continue
        document = parse(text, dialect)
        if not document.well_formed:
            first = next(d for d in document.diagnostics if d.is_error)
            on_skip(f"{where}: {first.code} at character {first.start}: {first.message}")
            continue
        if not any(document.all_blocks()) and (tag := _foreign_tag(text, dialect)):
            on_skip(f"{where}: field {rows.text!r}: {tag} is no tag of {dialect.name}")
            continue
        name = str(row.get("id") or number)
        rendered = prompt(problem)
        setup = Setup(
            dialect=dialect,
            tokenizer=tokenizer,
            prompt=rendered,
            prompt_ids=encode_prompt(tokenizer, rendered),
            limits=Limits(max_depth=MAX_DEPTH),
            id=name,
            problem=Problem(id=name, problem=problem, answer=_gold(row.get("answer"))),
        )
        try:
            yield trajectory_from_text(write(document, dialect), setup)
        except DialectError as error:
            on_skip(f"{where}: {error}")


def prepare(
    rows: TextRows,
    output: Path,
    dialect: Dialect,
    tokenizer: Tokenizer,
    prompt: Callable[[str], str],
    on_skip: Callable[[str], None],
) -> int:
    """Write the trajectories of a file of rows; returns how many.

    Raises:
        RecordError: no row could be used, or the files cannot be read or written.
    """
    count = write_records(output, trajectories(rows, dialect, tokenizer, prompt, on_skip))
    if count == 0:
        output.unlink()
        raise RecordError("no row could be used for training", path=rows.path)
    return count


def one_dialect(path: Path, dialect: Dialect) -> None:
    """Make sure that a file's trajectories are all in one dialect.

    Raises:
        RecordError: naming the first line that is in another one.
    """
    family = dialect.name.partition(":")[0]
    for number, row in read_rows(path, on_error=lambda _: None):
        other = str(row.get("dialect") or dialect.name)
        if other.partition(":")[0] != family:
            raise RecordError(
                f"written in {other!r}, but this run trains {dialect.name!r}: "
                "take it out, or convert the file",
                path=path,
                line=number,
                field="dialect",
            )


def _foreign_tag(text: str, dialect: Dialect) -> str | None:
    """A tag of another dialect in a text; such a text would be learned as if it were plain."""
    own = {tag.open for tag in dialect.tags()}
    for name in dialect_names():
        for tag in get_dialect(name).tags():
            if tag.open not in own and tag.open in text and tag.close in text:
                return tag.open
    return None


def _gold(value: object) -> str | None:
    return None if value is None else str(value)
