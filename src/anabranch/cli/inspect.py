"""`anabranch inspect`: what is in a file of traces: blocks, deviations, figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.cli.traces import Trace, choose_dialect, read_traces
from anabranch.dialects import Dialect, Document, parse
from anabranch.errors import RecordError
from anabranch.metrics import Metrics, document_metrics, summarise, trajectory_metrics


@dataclass
class _Counts:
    rows: int = 0
    malformed: list[dict[str, Any]] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    blocks_per_row: Counter[int] = field(default_factory=Counter)
    branches_per_block: Counter[int] = field(default_factory=Counter)
    metrics: list[Metrics] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def add(self, trace: Trace, document: Document, metrics: Metrics) -> None:
        self.rows += 1
        blocks = list(document.all_blocks())
        self.blocks_per_row[len(blocks)] += 1
        self.branches_per_block.update(len(block.branches) for block in blocks)
        self.codes.update({d.code for d in document.diagnostics})
        if not document.well_formed:
            codes = sorted({d.code for d in document.diagnostics if d.is_error})
            self.malformed.append({"id": trace.id, "codes": codes})
        self.metrics.append(metrics)

    def as_json(self, dialect: Dialect, unit: str) -> dict[str, Any]:
        return {
            "dialect": dialect.name,
            "rows": self.rows,
            "well_formed": self.rows - len(self.malformed),
            "malformed": self.malformed,
            "blocks_per_row": {str(n): c for n, c in sorted(self.blocks_per_row.items())},
            "branches_per_block": {str(n): c for n, c in sorted(self.branches_per_block.items())},
            "diagnostics": dict(sorted(self.codes.items())),
            "unit": unit,
            "metrics": summarise(self.metrics).model_dump() if self.metrics else None,
            "unreadable": self.unreadable,
        }


def inspect(
    file: Annotated[Path, typer.Argument(help="JSON Lines: trajectories, or rows with a text.")],
    dialect: Annotated[str | None, typer.Option(help="Default: read from the file.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Count in this tokenizer's tokens; default: words.")
    ] = None,
    text_field: Annotated[str, typer.Option("--field", help="The field with the text.")] = "text",
    rows: Annotated[int, typer.Option(min=0, help="Rows to list.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count blocks and deviations of traces, and measure them."""
    count, unit = _counter(tokenizer)
    chosen = choose_dialect(dialect, file, text_field)
    counts = _Counts()
    listing = Table(title=f"{file.name} · {chosen.title}", title_justify="left")
    for name in ("row", "blocks", "branches", "total", "critical", "ratio", "deviations"):
        left = name in ("row", "deviations")
        listing.add_column(name, justify="left" if left else "right", overflow="fold")

    def bad(error: RecordError) -> None:
        counts.unreadable.append(str(error))

    for trace in read_traces(file, field=text_field, on_error=bad):
        document = parse(trace.text, chosen)
        if trace.trajectory is not None:
            metrics = trajectory_metrics(trace.trajectory)
        else:
            metrics = document_metrics(document, chosen, count)
        counts.add(trace, document, metrics)
        if counts.rows <= rows:
            listing.add_row(*_cells(trace, document, metrics))
    if as_json:
        print(json.dumps(counts.as_json(chosen, unit)))
    else:
        _print(counts, listing, chosen, unit, rows)
    for line in counts.unreadable:
        typer.echo(f"anabranch: {line}", err=True)
    if counts.unreadable or counts.rows == 0:
        if counts.rows == 0 and not counts.unreadable:
            typer.echo(f"anabranch: {file}: no rows", err=True)
        raise typer.Exit(1)


def _counter(tokenizer: Path | None) -> tuple[Callable[[str], int], str]:
    if tokenizer is None:
        return lambda text: len(text.split()), "words"
    from anabranch.engines.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    return lambda text: len(loaded.encode(text)), "tokens"


def _cells(trace: Trace, document: Document, metrics: Metrics) -> list[str]:
    blocks = list(document.all_blocks())
    codes = Counter(d.code for d in document.diagnostics if d.is_error)
    return [
        trace.id,
        str(len(blocks)),
        "+".join(str(len(b.branches)) for b in blocks) or "–",
        str(metrics.total_tokens),
        str(metrics.critical_path),
        f"{metrics.acceleration_ratio:.2f}",
        ", ".join(sorted(codes)),
    ]


def _print(counts: _Counts, listing: Table, dialect: Dialect, unit: str, rows: int) -> None:
    if rows:
        console.print(listing)
    if counts.rows > rows:
        console.print(f"… {counts.rows - rows} more rows (--rows)", style="dim")
    well = counts.rows - len(counts.malformed)
    console.print(f"{counts.rows} rows, {well} well formed, {len(counts.malformed)} malformed")
    for row in counts.malformed[:20]:
        console.print(f"  malformed {row['id']}: {', '.join(row['codes'])}", markup=False)
    pairs = ", ".join(f"{n}: {c}" for n, c in sorted(counts.blocks_per_row.items()))
    console.print(f"blocks per row  {pairs}", soft_wrap=True)
    pairs = ", ".join(f"{n}: {c}" for n, c in sorted(counts.branches_per_block.items()))
    console.print(f"branches per block  {pairs or 'none'}", soft_wrap=True)
    if counts.codes:
        pairs = ", ".join(f"{code}: {n}" for code, n in counts.codes.most_common())
        console.print(f"rows with deviations  {pairs}", soft_wrap=True)
    if counts.metrics:
        summary = summarise(counts.metrics)
        for name, value in summary.model_dump(exclude={"rows"}, exclude_none=True).items():
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            console.print(f"{name.replace('_', ' ')}  {shown}")
        console.print(f"counted in {unit}", style="dim")
