"""`anabranch experiment …`: what the arms of an experiment did, from a gateway's audit."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.errors import UsageError
from anabranch.gateway.experiments import report
from anabranch.gateway.store import AuditTrail, Database

app = typer.Typer(help="Experiments on live traffic.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `report` a command of its own while it is the only one."""


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


def _cell(interval: tuple[float, ...] | None) -> str:
    if interval is None:
        return "–"
    value, low, high = interval
    return f"{value:.4g} ({low:.3g} … {high:.3g})"
