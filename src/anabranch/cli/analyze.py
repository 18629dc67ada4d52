"""`anabranch analyze`: what is in traces. Labels are in :mod:`anabranch.cli.analyze_labels`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from anabranch.cli.analyze_labels import against, agreement_json, write_labels
from anabranch.cli.analyze_labels import agreement as agreement
from anabranch.cli.analyze_tell import Judge, Rows, pattern, tell, text_of
from anabranch.cli.common import console
from anabranch.cli.traces import Trace, read_traces
from anabranch.errors import RecordError, UsageError

if TYPE_CHECKING:
    from anabranch.analysis.annotators import Told
    from anabranch.analysis.structure import Structure


def analyze(
    files: Annotated[list[Path], typer.Argument(help="Traces: JSON Lines.")],
    dialect: Annotated[
        str | None,
        typer.Option(
            help="All traces are parallel, in this dialect. Default: those that look "
            "parallel are, in the dialect that they look like."
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="Where a row has its text.")] = "text",
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Leave out traces that are so, like looping; repeatable."),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(help="Labels by hand of these files, to measure agreement; repeatable."),
    ] = None,
    labels_to: Annotated[
        Path | None,
        typer.Option("--write-labels", help="Write the labels found, for `anabranch agreement`."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Endpoint of a model that judges, instead of the classifier.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model there.")] = "",
    api_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY")] = None,
    cache: Annotated[Path, typer.Option(help="File of the model's answers.")] = Path(
        "answers.sqlite"
    ),
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of the judge.")
    ] = None,
    line_end: Annotated[
        str | None,
        typer.Option(
            help="For the judge, whose steps are runs of lines: regular expression of what "
            "ends a line. Default: newlines, and ends of sentences."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of a tokenizer; else a token is 4 characters.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
) -> None:
    """Shares of serial, AND and OR steps, and the ideal path of parallel decoding."""
    from anabranch.analysis.annotators import FAULTS
    from anabranch.analysis.classifier import NAME
    from anabranch.analysis.page import Shown, markdown, write_page
    from anabranch.analysis.report import summarise

    if url is not None and (not model or dialect is not None):
        raise UsageError("--url needs --model, and is for sequential traces")
    wrong = set(skip or ()) - FAULTS
    if wrong:
        known = ", ".join(sorted(FAULTS))
        raise UsageError(f"--skip {', '.join(sorted(wrong))}: what traces can be is {known}")
    count, unit = _measure(tokenizer)
    bad: list[str] = []
    rows = {name: _read(path, field, bad) for name, path in _names(files).items()}
    asked = None
    if url is not None:
        asked = Judge(url, model, api_key, cache, budget_tokens, pattern(line_end))
    told = tell(files, rows, dialect, field, asked)
    for name, trace, said in _each(rows, told):
        if said.structure is None:
            bad.append(f"{name}: {trace.id}: {said.failure}")
    every = {name: _figures(rows[name], told[name], count) for name in rows}
    figures = {
        name: [trace for trace in of if not set(trace.faults) & set(skip or ())]
        for name, of in every.items()
    }
    left_out = {name: len(of) - len(figures[name]) for name, of in every.items()}
    summaries = {name: s for name, of in figures.items() if (s := summarise(of)) is not None}
    for line in bad:
        typer.echo(f"anabranch: {line}", err=True)
    if not summaries:
        if bad:
            raise typer.Exit(1)
        raise RecordError("no trace has a step", path=", ".join(map(str, files)))
    structures = _known(rows, told) if labels or labels_to else {}
    measured = against(labels, structures) if labels else None
    annotator = NAME if url is None else f"model {model}"
    shown = Shown(figures, summaries, annotator, unit, measured, left_out)
    if labels_to is not None:
        write_labels(labels_to, structures)
    if as_json:
        typer.echo(json.dumps(_json(shown), indent=1))
    else:
        console.print(Markdown(markdown(shown)))
    if html is not None:
        write_page(html, shown)
        typer.echo(f"written: {html}", err=True)
    if bad:
        raise typer.Exit(1)


def _names(files: list[Path]) -> dict[str, Path]:
    """Files by name; by path where names are equal.

    Raises:
        UsageError: one is named twice.
    """
    names = [path.name for path in files]
    found = {n if names.count(n) == 1 else str(p): p for n, p in zip(names, files, strict=True)}
    if len(found) < len(files):
        raise UsageError("a file is named twice")
    return found


def _read(path: Path, field: str, bad: list[str]) -> list[Trace]:
    found = list(read_traces(path, field=field, on_error=lambda error: bad.append(str(error))))
    if not found and not bad:
        raise RecordError("holds no trace", path=path)
    return found


def _measure(tokenizer: Path | None) -> tuple[Callable[[str], float], str]:
    from anabranch.analysis.structure import quarter

    if tokenizer is None:
        return quarter, "a quarter of the characters"
    from anabranch.engines.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    return lambda text: len(loaded.encode(text)), f"of the tokenizer in {tokenizer}"


def _each(rows: Rows, told: dict[str, list[Told]]) -> list[tuple[str, Trace, Told]]:
    return [
        (name, trace, said)
        for name, of in rows.items()
        for trace, said in zip(of, told[name], strict=True)
    ]


def _known(rows: Rows, told: dict[str, list[Told]]) -> dict[tuple[str, str], Structure]:
    found: dict[tuple[str, str], Structure] = {}
    for name, trace, said in _each(rows, told):
        if said.structure is None:
            continue
        if (name, trace.id) in found:
            raise UsageError(f"{name}: two traces have the id {trace.id!r}: labels need unique ids")
        found[name, trace.id] = said.structure
    return found


def _figures(traces: list[Trace], told: list[Told], count: Callable[[str], float]) -> list[Any]:
    from anabranch.analysis.report import figures_of

    return [
        figures_of(
            trace.id,
            text_of(trace.row, "problem"),
            text_of(trace.row, "difficulty"),
            said.structure,
            count,
            faults=said.faults,
            itself=said.itself,
        )
        for trace, said in zip(traces, told, strict=True)
        if said.structure is not None
    ]


def _json(shown: Any) -> dict[str, Any]:
    from anabranch.analysis.report import by_difficulty

    files = {
        name: {
            **summary.to_json(),
            "left_out": shown.left_out.get(name, 0),
            "by_difficulty": {k: v.to_json() for k, v in by_difficulty(shown.traces[name]).items()},
        }
        for name, summary in shown.summaries.items()
    }
    known = shown.measured
    return {
        "annotator": "parallel form" if shown.itself else shown.annotator,
        "unit": shown.unit,
        "agreement": agreement_json(known.kinds) if known else None,
        "agreement_on_needs": agreement_json(known.needs) if known and known.needs else None,
        "files": files,
    }
