"""`anabranch curate check`: findings in parallel samples, as a table, JSON Lines or a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.cli.traces import choose_dialect, read_traces
from anabranch.errors import RecordError

if TYPE_CHECKING:
    from anabranch.curation.report import Report


def check(
    source: Annotated[Path, typer.Argument(help="Samples, or rows of a curation: JSON Lines.")],
    dialect: Annotated[
        str | None, typer.Option(help="Default: each row's own, or what the texts look like.")
    ] = None,
    field: Annotated[str, typer.Option(help="Where a row has its text.")] = "text",
    survived: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of the source, where it is there.")
    ] = 0.8,
    against: Annotated[
        list[Path] | None, typer.Option(help="Evaluation problems, repeatable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a row, with offsets.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the worst rows.")] = None,
    worst: Annotated[int, typer.Option(min=1, help="Rows on the page.")] = 20,
    fail: Annotated[bool, typer.Option(help="Exit with 1 where anything is found.")] = False,
) -> None:
    """Look for leaks, repetition, lost text and broken form in parallel samples."""
    from anabranch.curation.checks import KINDS, Checks
    from anabranch.curation.report import Report, sample_of

    checks = Checks(survived, tuple(str(path) for path in against or ()))
    report = Report(keep=worst)
    bad: list[RecordError] = []
    default = choose_dialect(dialect, source, field)
    for trace in read_traces(source, field=field, on_error=bad.append):
        sample = sample_of(trace.row, trace.text, default, forced=dialect is not None)
        findings = checks.run(sample)
        report.add(trace.id, sample, findings)
        if as_json:
            row = {"id": trace.id, "findings": [asdict(finding) for finding in findings]}
            typer.echo(json.dumps(row))
    for error in bad:
        typer.echo(str(error), err=True)
    if not as_json:
        _print(report, KINDS)
    if html is not None:
        from anabranch.curation.report_page import write_page

        write_page(report, html, title=source.name)
        typer.echo(f"written: {html}", err=as_json)
    if bad or (fail and report.found):
        raise typer.Exit(1)


def _print(report: Report, kinds: dict[str, str]) -> None:
    table = Table("finding", "rows", "share", "what it means", box=None, pad_edge=False)
    for kind, meaning in kinds.items():
        count = report.kinds[kind]
        if count:
            table.add_row(kind, str(count), f"{count / report.rows:.1%}", meaning)
    console.print(table)
    console.print(f"{report.rows} rows, {report.found} with findings")
    for name, findings in report.first_rows("format"):
        console.print(f"{name}: {findings[0].message}", markup=False, soft_wrap=True)
