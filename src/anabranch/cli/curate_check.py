"""`anabranch curate check`: findings in parallel samples, as a table, JSON Lines or a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.cli.traces import Trace, choose_dialect, read_traces
from anabranch.errors import DialectError, RecordError

if TYPE_CHECKING:
    from anabranch.curation.checks import Sample
    from anabranch.curation.report import Report
    from anabranch.dialects import Dialect


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
    """Look for leaks, repetition, lost text and broken form in parallel samples.

    Exits with 0 when all rows were read, whatever was found; with 1 where a row could not be read,
    or with --fail where anything was found.
    """
    from anabranch.curation.checks import KINDS, Checks
    from anabranch.curation.report import Report

    checks = Checks(survived, tuple(str(path) for path in against or ()))
    report = Report(keep=worst)
    bad: list[RecordError] = []
    samples = _Samples(source, field, dialect)
    for trace in read_traces(source, field=field, on_error=bad.append):
        try:
            sample = samples.of(trace)
        except DialectError as unknown:
            bad.append(RecordError(f"{trace.id}: {unknown}", path=source, field="dialect"))
            continue
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


class _Samples:
    """Samples of rows, each in its own dialect, or in the one that the file looks like."""

    def __init__(self, source: Path, field: str, dialect: str | None) -> None:
        from anabranch.dialects import get_dialect

        self._source, self._field = source, field
        self._forced = None if dialect is None else get_dialect(dialect)
        self._seen: Dialect | None = None

    def of(self, trace: Trace) -> Sample:
        """The sample of a row.

        Raises:
            DialectError: the row says a dialect that is not known.
            UsageError: neither the row nor the file says which.
        """
        from anabranch.curation.report import own_dialect, sample_of
        from anabranch.dialects import get_dialect

        if self._forced is not None:
            return sample_of(trace.row, trace.text, self._forced)
        own = own_dialect(trace.row)
        if own:
            return sample_of(trace.row, trace.text, get_dialect(own))
        if self._seen is None:
            # A file whose rows all say their dialect need not show it.
            self._seen = choose_dialect(None, self._source, self._field)
        return sample_of(trace.row, trace.text, self._seen)


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
