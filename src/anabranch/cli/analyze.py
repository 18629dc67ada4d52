"""`anabranch analyze` and `anabranch agreement`: what is in traces, and who agrees on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from anabranch.cli.common import console
from anabranch.cli.traces import Trace, read_traces
from anabranch.dialects import Dialect, get_dialect
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import write_records

if TYPE_CHECKING:
    from anabranch.analysis.agreement import Agreement, Label
    from anabranch.analysis.structure import Structure


def analyze(
    files: Annotated[list[Path], typer.Argument(help="Traces: JSON Lines.")],
    dialect: Annotated[
        str | None, typer.Option(help="The traces are parallel, in this dialect.")
    ] = None,
    field: Annotated[str, typer.Option(help="Where a row has its text.")] = "text",
    labels: Annotated[
        Path | None, typer.Option(help="Labels by hand of these files, to measure agreement.")
    ] = None,
    write_labels: Annotated[
        Path | None, typer.Option(help="Write the labels found, for `anabranch agreement`.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Endpoint of a model that judges, instead of the classifier.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model there.")] = "",
    api_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY")] = None,
    cache: Annotated[Path, typer.Option(help="File of the model's answers.")] = Path(
        "answers.sqlite"
    ),
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of a tokenizer; else a token is 4 characters.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
) -> None:
    """Shares of serial, AND and OR steps, and the ideal path of parallel decoding."""
    from anabranch.analysis import classifier
    from anabranch.analysis.page import ITSELF, markdown, write_page
    from anabranch.analysis.report import by_difficulty, figures_of, summarise

    if url is not None and (not model or dialect is not None):
        raise UsageError("--url needs --model, and is for sequential traces")
    count, unit = _measure(tokenizer)
    rows = {path.name: _read(path, field) for path in files}
    every = [trace for of_file in rows.values() for trace in of_file]
    if dialect is not None:
        chosen = get_dialect(dialect)
        annotator, structures = ITSELF, _parallel(every, chosen)
    elif url is not None:
        annotator, structures = f"model {model}", _judged(every, url, model, api_key, cache)
    else:
        annotator = classifier.NAME
        structures = [classifier.classify(trace.text) for trace in every]
    by_file = dict(zip(rows, _split(structures, [len(of) for of in rows.values()]), strict=True))
    figures = {
        name: [
            figures_of(
                trace.id, _text(trace.row, "problem"), _text(trace.row, "difficulty"), s, count
            )
            for trace, s in zip(rows[name], found, strict=True)
        ]
        for name, found in by_file.items()
    }
    summaries = {name: s for name, of in figures.items() if (s := summarise(of)) is not None}
    if not summaries:
        raise RecordError("no trace has a step", path=", ".join(map(str, files)))
    measured = None
    if labels is not None:
        measured = _against(labels, rows, classifier.classify if url is None else None, by_file)
    if write_labels is not None:
        _write_labels(write_labels, rows, by_file)
    if html is not None:
        write_page(html, figures, summaries, measured, annotator, unit)
        typer.echo(f"written: {html}", err=True)
    if as_json:
        data = {
            name: {
                **summary.to_json(),
                "by_difficulty": {k: v.to_json() for k, v in by_difficulty(figures[name]).items()},
            }
            for name, summary in summaries.items()
        }
        known = _agreement_json(measured) if measured else None
        typer.echo(
            json.dumps({"annotator": annotator, "agreement": known, "files": data}, indent=1)
        )
    else:
        console.print(Markdown(markdown(summaries, measured, annotator, unit)))


def _read(path: Path, field: str) -> list[Trace]:
    found = list(read_traces(path, field=field))
    if not found:
        raise RecordError("holds no trace", path=path)
    return found


def _measure(tokenizer: Path | None) -> tuple[Callable[[str], float], str]:
    from anabranch.analysis.structure import quarter

    if tokenizer is None:
        return quarter, "a quarter of the characters"
    from anabranch.engines.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    return lambda text: len(loaded.encode(text)), f"of the tokenizer in {tokenizer}"


def _parallel(traces: list[Trace], dialect: Dialect) -> list[Structure]:
    from anabranch.analysis.parallel import structure_of

    return [structure_of(trace.text, dialect) for trace in traces]


def _judged(
    traces: list[Trace], url: str, model: str, key: str | None, cache: Path
) -> list[Structure]:
    from anabranch.analysis.judge import judge
    from anabranch.annotation import Annotator, AnswerCache
    from anabranch.engines.retry import Retries
    from anabranch.engines.transport import Transport

    async def main() -> list[Structure]:
        transport = Transport(url, api_key=key, retries=Retries(attempts=0))
        answers = AnswerCache(cache, "analyze")
        annotator = Annotator(transport, model, answers)
        try:
            asks = [judge(_text(t.row, "problem"), t.text, annotator) for t in traces]
            return await asyncio.gather(*asks)
        finally:
            await transport.close()
            answers.close()

    return asyncio.run(main())


def _split(structures: list[Structure], sizes: list[int]) -> list[list[Structure]]:
    found, at = [], 0
    for size in sizes:
        found.append(structures[at : at + size])
        at += size
    return found


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _against(
    path: Path,
    rows: dict[str, list[Trace]],
    classify: Callable[..., Structure] | None,
    found: dict[str, list[Structure]],
) -> Agreement | None:
    """Agreement with held-out labels by hand of the files that are there."""
    from anabranch.analysis.agreement import agree, compare_labels, read_labels

    texts = {(name, t.id): t.text for name, of in rows.items() for t in of}
    judged = {
        (name, t.id): s for name, of in rows.items() for t, s in zip(of, found[name], strict=True)
    }

    def structure(file: str, row: str) -> Structure:
        # Labels may be of the answer too, which the shares leave out.
        return classify(texts[file, row], whole=True) if classify else judged[file, row]

    labels = [one for one in read_labels(path) if one.held_out and (one.file, one.id) in texts]
    if not labels:
        raise RecordError("no held-out label is of these files", path=path)
    _check(labels, texts, path)
    return agree(compare_labels(labels, structure)[0])


def _check(labels: list[Label], texts: dict[tuple[str, str], str], path: Path) -> None:
    for label in labels:
        if label.end > len(texts[label.file, label.id]):
            where = f"{label.file} {label.id}"
            raise RecordError(f"a label is behind the end of {where}: other traces?", path=path)


def _write_labels(
    path: Path, rows: dict[str, list[Trace]], found: dict[str, list[Structure]]
) -> None:
    from anabranch.analysis.agreement import label_rows

    write_records(
        path,
        (
            row
            for name, of in rows.items()
            for trace, structure in zip(of, found[name], strict=True)
            for row in label_rows(name, trace.id, structure)
        ),
    )


def _agreement_json(found: Agreement) -> dict[str, Any]:
    return {
        "steps": found.total,
        "accuracy": found.accuracy,
        "interval": found.interval,
        "kappa": found.kappa,
        "pairs": {" as ".join(pair): count for pair, count in sorted(found.pairs.items())},
    }


def agreement(
    first: Annotated[Path, typer.Argument(help="Labels of one annotator.")],
    second: Annotated[Path, typer.Argument(help="Labels of another one.")],
) -> None:
    """How far two annotators agree, by Cohen's kappa over the places of the first."""
    from anabranch.analysis.agreement import agree, compare_labels, read_labels
    from anabranch.analysis.structure import Step, Structure

    labels, others = read_labels(first), read_labels(second)
    by_trace: dict[tuple[str, str], list[Label]] = {}
    for label in others:
        by_trace.setdefault((label.file, label.id), []).append(label)
    common = [label for label in labels if (label.file, label.id) in by_trace]
    if not common:
        raise UsageError(f"{first} and {second} have no trace in common")

    def structure(file: str, row: str) -> Structure:
        of_trace = by_trace[file, row]
        return Structure("", tuple(Step(one.start, one.end, one.kind) for one in of_trace))

    found = agree(compare_labels(common, structure)[0])
    low, high = found.interval
    console.print(f"{found.total} places: equal {found.accuracy:.1%} ({low:.1%} to {high:.1%})")
    kappa, low, high = found.kappa
    console.print(f"Cohen's kappa {kappa:.2f} ({low:.2f} to {high:.2f})")
    for (one, other), count in sorted(found.pairs.items()):
        if one != other:
            console.print(f"{one} as {other}: {count}")
