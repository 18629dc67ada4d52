"""`anabranch experiment …`: what arms did, from a gateway's audit; candidates beside a baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.errors import RecordError, UsageError
from anabranch.gateway.candidates import ROUTES, Candidate, replay
from anabranch.gateway.comparing import compare_rows
from anabranch.gateway.experiments import report
from anabranch.gateway.store import AuditTrail, Database
from anabranch.jsonl import atomic_writer, dump_line, read_rows

app = typer.Typer(help="Experiments on live traffic.", no_args_is_help=True)


@app.command("report")
def show(
    store: Annotated[
        str,
        typer.Option("--store", envvar="ANABRANCH_STORE", help="A SQLite file, or postgresql://…"),
    ],
) -> None:
    """Each arm's figures with 95 % intervals; times and tokens are of answered requests."""
    database = Database(store)
    try:
        database.migrate()
        arms = report(AuditTrail(database).read())
    finally:
        database.close()
    if not arms:
        raise UsageError(f"{store}: no request of an experiment is in its audit")
    fields = ("failed", "truncated", "disliked", "seconds", "sampled", "path", "cost")
    table = Table("arm", "requests", *fields)
    for arm in arms:
        table.add_row(arm.name, str(arm.requests), *(_cell(getattr(arm, f)) for f in fields))
    console.print(table)


@app.command("replay")
def replay_file(
    file: Annotated[
        Path, typer.Argument(help="JSON Lines of recorded requests: body, and route where it is.")
    ],
    baseline: Annotated[str, typer.Option(help="Gateway (or API) that serves: http://HOST:PORT.")],
    candidate: Annotated[str, typer.Option(help="The one that is tried.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Comparisons: JSON Lines.")],
    api_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY")] = None,
    candidate_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_CANDIDATE_KEY")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
) -> None:
    """Ask recorded requests of a baseline and a candidate, and compare them."""
    requests = [_recorded(row, file, number) for number, row in read_rows(file)]
    if not requests:
        raise UsageError(f"{file}: holds no request")

    async def main() -> None:
        async with (
            Candidate(baseline, api_key=api_key) as one,
            Candidate(candidate, api_key=candidate_key or api_key) as other,
        ):
            with atomic_writer(output) as handle:
                async for row in replay(requests, one, other, concurrency=concurrency):
                    handle.write(dump_line(row) + "\n")

    asyncio.run(main())
    _compared(output)


@app.command("compare")
def compare(
    file: Annotated[Path, typer.Argument(help="Comparisons of a replay or of `serve --shadow`.")],
) -> None:
    """What a candidate did against what serves, with 95 % intervals over requests."""
    _compared(file)


def _recorded(row: dict[str, Any], file: Path, number: int) -> tuple[str, str, dict[str, Any]]:
    body, route = row.get("body", row), row.get("route", ROUTES[0])
    if not isinstance(body, dict) or not ({"messages", "prompt"} & body.keys()):
        raise RecordError("messages or a prompt are needed", path=file, line=number, field="body")
    if "route" not in row and "messages" not in body:
        route = ROUTES[1]
    if route not in ROUTES:
        raise RecordError(f"one of {', '.join(ROUTES)}", path=file, line=number, field="route")
    return str(row.get("id", number)), str(route), body


def _side_by_side(file: Path) -> Iterator[dict[str, Any]]:
    for number, row in read_rows(file):
        for name in ("baseline", "candidate"):
            side = row.get(name)
            if not isinstance(side, dict) or "outcome" not in side or "same_answer" not in row:
                raise RecordError("is no comparison", path=file, line=number, field=name)
        yield row


def _compared(file: Path) -> None:
    found = compare_rows(_side_by_side(file))
    if found is None:
        raise UsageError(f"{file}: holds no comparison")
    table = Table("candidate against baseline", "95 % interval", box=None, pad_edge=False)
    table.add_row("requests", str(found.requests))
    table.add_row("answered before and not now", _cell(found.worse))
    table.add_row("same answer", _cell(found.same))
    for name in ("seconds", "tokens", "path"):
        table.add_row(f"{name}, ratio", _cell(getattr(found, name)))
    table.add_row("seconds, difference", _cell(found.slower))
    console.print(table)
    for (before, after), count in sorted(found.outcomes.items()):
        if before != after:
            console.print(f"{before} → {after}: {count}")


def _cell(interval: tuple[float, ...] | None) -> str:
    if interval is None:
        return "–"
    value, low, high = interval
    return f"{value:.4g} ({low:.3g} … {high:.3g})"
