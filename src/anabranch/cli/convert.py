"""`anabranch convert`: traces from one dialect to another; what is lost is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.traces import choose_dialect, read_traces
from anabranch.dialects import convert as convert_document
from anabranch.dialects import get_dialect, parse, write
from anabranch.errors import DialectError, RecordError, UsageError
from anabranch.jsonl import write_records


def convert(
    file: Annotated[Path, typer.Argument(help="JSON Lines with a text in each row.")],
    to: Annotated[str, typer.Option("--to", help="The dialect to write.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Default: read from the file.")
    ] = None,
    text_field: Annotated[str, typer.Option("--field", help="The field with the text.")] = "text",
    skip: Annotated[
        bool, typer.Option("--skip-malformed", help="Leave malformed rows out, and say so.")
    ] = False,
) -> None:
    """Write traces in another dialect; other fields of a row are kept."""
    target = get_dialect(to)
    origin = choose_dialect(source, file, text_field)
    if output.resolve() == file.resolve():
        raise UsageError(f"{output}: would overwrite its own input")
    lost: Counter[str] = Counter()
    skipped: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        for trace in read_traces(file, field=text_field):
            document = parse(trace.text, origin)
            if not document.well_formed:
                first = next(d for d in document.diagnostics if d.is_error)
                reason = f"{trace.id}: {first.code} at character {first.start}: {first.message}"
                if not skip:
                    raise RecordError(f"{reason} (--skip-malformed leaves it out)", path=file)
                skipped.append(reason)
                continue
            try:
                converted, missing = convert_document(document, origin, target)
            except DialectError as error:
                raise RecordError(f"{trace.id}: {error}", path=file) from None
            lost.update(missing)
            yield {**trace.row, text_field: write(converted, target), "dialect": target.name}

    count = write_records(output, rows())
    typer.echo(f"{count} rows written to {output} ({origin.name} → {target.name})")
    for sentence, times in lost.most_common():
        typer.echo(f"lost in {times} rows: {sentence}")
    for reason in skipped:
        typer.echo(f"skipped {reason}")
