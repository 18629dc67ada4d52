"""`anabranch view`: trajectories, or the training tree of one, as a page to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.traces import choose_dialect, read_traces
from anabranch.dialects import parse
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import atomic_writer
from anabranch.views import Page, tree_page, write_pages
from anabranch.views.river import Spell


def view(
    file: Annotated[Path, typer.Argument(help="JSON Lines: trajectories, or rows with a text.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: FILE with .html.")
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="The training tree of one trajectory (see --row).")
    ] = False,
    row: Annotated[int, typer.Option(min=1, help="With --tree: which row of the file.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer folder: shades single tokens by log-prob.")
    ] = None,
    dialect: Annotated[str | None, typer.Option(help="Default: read from the file.")] = None,
    text_field: Annotated[str, typer.Option("--field", help="The field with the text.")] = "text",
) -> None:
    """Write a self-contained page: open it in a browser."""
    target = output or file.with_suffix(".html")
    if target.resolve() == file.resolve():
        raise UsageError(f"{target}: would overwrite its own input")
    spell = _speller(tokenizer)
    if tree:
        _write_tree(file, row, target, spell)
        return
    bad: list[RecordError] = []
    count = write_pages(target, _pages(file, dialect, text_field, spell, bad), file.name)
    if not count:
        target.unlink()
        raise UsageError(f"{bad[0] if bad else file}: no row that can be shown")
    for error in bad:
        typer.echo(f"left out: {error}", err=True)
    typer.echo(f"{count} trajectories in {target}")


def _pages(
    file: Path, dialect: str | None, field: str, spell: Spell | None, bad: list[RecordError]
) -> Iterator[Page]:
    chosen = None
    for trace in read_traces(file, field=field, on_error=bad.append):
        if trace.trajectory is not None:
            yield Page.of_trajectory(trace.trajectory, spell)
            continue
        chosen = chosen or choose_dialect(dialect, file, field)
        problem = next((str(trace.row[k]) for k in ("problem", "question") if trace.row.get(k)), "")
        document = parse(trace.text, chosen)
        yield Page.of_document(
            trace.id, trace.text, document, chosen, "words", lambda text: len(text.split()), problem
        )


def _write_tree(file: Path, row: int, target: Path, spell: Spell | None) -> None:
    from anabranch.training.layout import build_layout

    for number, trace in enumerate(read_traces(file), start=1):
        if number < row:
            continue
        if trace.trajectory is None:
            raise UsageError(f"{file}: row {row} is no trajectory, and has no token ids to lay out")
        layout = build_layout(trace.trajectory)
        with atomic_writer(target) as handle:
            handle.write(tree_page(layout, spell or _numbers, trace.id))
        typer.echo(f"{len(layout)} tokens of {trace.id} in {target}")
        return
    raise UsageError(f"{file}: has no row {row}")


def _numbers(ids: Sequence[int]) -> list[str]:
    """Without a tokenizer a token is its number."""
    return [str(token) for token in ids]


def _speller(folder: Path | None) -> Spell | None:
    if folder is None:
        return None
    from anabranch.engines.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(folder)
    return lambda ids: [tokenizer.decode([token]) for token in ids]
