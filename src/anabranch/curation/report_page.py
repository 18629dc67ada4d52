"""The page of a report of checks: histograms, and the worst rows to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anabranch.curation.checks.findings import KINDS
from anabranch.curation.report import Report
from anabranch.views.plots import bars, histogram
from anabranch.views.report import (
    excerpt,
    figure,
    folded,
    heading,
    paragraph,
    table,
    write_report,
)


def write_page(report: Report, path: Path, title: str) -> None:
    """Write the page."""
    write_report(path, f"Findings in {title}", _parts(report))


def _parts(report: Report) -> Iterator[str]:
    yield paragraph(f"{report.rows} rows, {report.found} with findings.")
    found = [kind for kind in KINDS if report.kinds[kind]]
    yield heading("Findings")
    if found:
        counts = {kind: float(report.kinds[kind]) for kind in found}
        yield figure("Rows with a finding", bars(counts))
    rows = [[k, report.kinds[k], f"{report.kinds[k] / report.rows:.1%}", KINDS[k]] for k in found]
    yield table(("finding", "rows", "share", "what it means"), rows)
    yield heading("Shapes")
    counted = {f"{n} branches": float(report.branches[n]) for n in sorted(report.branches)}
    if counted:
        yield figure("Blocks by their number of branches", bars(counted))
    if report.shares:
        drawn = histogram(list(report.shares.elements()), "share of the source that survived")
        yield figure("What is left of the sources", drawn)
    worst = report.worst()
    if worst:
        yield heading(f"The {len(worst)} worst rows")
    for name, sample, findings in worst:
        kinds = ", ".join(dict.fromkeys(finding.kind for finding in findings))
        said = [[f.kind, f.block or "", f.branch or "", f.message] for f in findings]
        marks = [(f.start, f.end, f"{f.kind}: {f.message}") for f in findings]
        # Findings about a whole block would hide those inside it.
        marks = [mark for mark in marks if mark[1] - mark[0] < 200]
        yield folded(
            f"{name}: {kinds}",
            [
                paragraph(sample.problem),
                table(("finding", "block", "branch", "message"), said),
                excerpt(sample.text, marks),
            ],
        )
