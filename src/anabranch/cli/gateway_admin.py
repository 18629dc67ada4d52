"""`anabranch gateway …`: keys, budgets and the audit trail of a store."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.errors import AnabranchError, UsageError
from anabranch.gateway.failures import failures
from anabranch.gateway.store import AuditTrail, Budgets, Database, Keys
from anabranch.jsonl import write_records

app = typer.Typer(help="Keys, budgets and the audit trail of a gateway.", no_args_is_help=True)
key = typer.Typer(help="API keys.", no_args_is_help=True)
budget = typer.Typer(help="What may be spent.", no_args_is_help=True)
audit = typer.Typer(help="The trail of decisions.", no_args_is_help=True)
app.add_typer(key, name="key")
app.add_typer(budget, name="budget")
app.add_typer(audit, name="audit")

Store = Annotated[
    str, typer.Option("--store", envvar="ANABRANCH_STORE", help="A SQLite file, or postgresql://…")
]
KeyId = Annotated[str, typer.Argument(help="The key's id, as `key list` shows it.")]


@contextmanager
def opened(store: str) -> Iterator[Database]:
    """The store, brought up to date."""
    database = Database(store)
    try:
        database.migrate()
        yield database
    finally:
        database.close()


@key.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    store: Store,
    scope: Annotated[list[str] | None, typer.Option(help="infer (default) or admin.")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Until it expires.")] = None,
) -> None:
    """Make a key; its text is printed once and kept nowhere."""
    with opened(store) as database:
        _, text = Keys(database).create(name, tuple(scope or ("infer",)), days)
    typer.echo(text)


@key.command("list")
def list_keys(store: Store) -> None:
    """All keys, without their secrets."""
    table = Table("id", "name", "scopes", "created", "expires", "state")
    with opened(store) as database:
        for one in Keys(database).list():
            state = "revoked" if one.revoked else "good"
            scopes = ", ".join(one.scopes)
            table.add_row(one.id, one.name, scopes, _day(one.created), _day(one.expires), state)
    console.print(table)


@key.command("rotate")
def rotate(
    id: KeyId,
    store: Store,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that the old one stays good.")] = 0,
) -> None:
    """A new secret for a key."""
    with opened(store) as database:
        typer.echo(Keys(database).rotate(id, grace))


@key.command("revoke")
def revoke(id: KeyId, store: Store) -> None:
    """End a key now."""
    with opened(store) as database:
        Keys(database).revoke(id)
    typer.echo(f"{id} is revoked")


Kind = Annotated[str, typer.Argument(help="tokens, money, requests or concurrency.")]
Whose = Annotated[str, typer.Option("--key", help="Id of a key; default: everybody together.")]
Window = Annotated[
    float, typer.Option("--per", min=0, help="Seconds after which it starts anew; 0: never.")
]


@budget.command("set")
def set_budget(
    kind: Kind,
    cap: Annotated[float, typer.Argument(min=0, help="The most that may be spent.")],
    store: Store,
    key: Whose = "",
    per: Window = 0,
) -> None:
    """Make a budget, or change its cap."""
    with opened(store) as database:
        Budgets(database).set(kind, cap, key=key, seconds=per)


@budget.command("remove")
def remove_budget(kind: Kind, store: Store, key: Whose = "", per: Window = 0) -> None:
    """Forget a budget."""
    with opened(store) as database:
        Budgets(database).remove(kind, key=key, seconds=per)


@budget.command("list")
def list_budgets(store: Store) -> None:
    """All budgets and where they stand."""
    table = Table("key", "of", "per", "cap", "spent", "reserved")
    with opened(store) as database:
        for one in Budgets(database).list():
            per = f"{one.seconds:g} s" if one.seconds else "ever"
            numbers = (f"{n:g}" for n in (one.cap, one.spent, one.reserved))
            table.add_row(one.key or "all", one.kind, per, *numbers)
    console.print(table)


@app.command("failures")
def write_failures(
    output: Annotated[Path, typer.Argument(help="The JSON Lines file to write.")],
    store: Store,
    confidence: Annotated[
        float | None, typer.Option(help="Mean log-prob below which an answer counts.")
    ] = None,
) -> None:
    """Write answers that went wrong as rows for curation; texts are needed (--contents full)."""
    with opened(store) as database:
        count = write_records(output, failures(AuditTrail(database), confidence))
    typer.echo(f"{count} answers in {output}")


@audit.command("verify")
def verify(store: Store) -> None:
    """Check the chain from its beginning."""
    with opened(store) as database:
        count, wrong = AuditTrail(database).verify()
    if wrong is not None:
        raise AnabranchError(f"{count} records hold, then: {wrong}")
    typer.echo(f"{count} records hold")


@audit.command("export")
def export(
    output: Annotated[Path, typer.Argument(help="The JSON Lines file to write.")], store: Store
) -> None:
    """Write all records of the trail."""
    with opened(store) as database:
        rows = (
            {"number": r.number, "time": r.time, "ticket": r.ticket, "event": r.event,
             "data": r.data, "hash": r.hash}
            for r in AuditTrail(database).read()
        )  # fmt: skip
        count = write_records(output, rows)
    typer.echo(f"{count} records in {output}")


@audit.command("forget")
def forget(
    store: Store,
    subject: Annotated[str | None, typer.Option(help="Whose texts to delete.")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Delete texts older than this.")] = None,
) -> None:
    """Delete kept texts, by subject, by age, or both; the chain stays."""
    if subject is None and days is None:
        raise UsageError("name --subject, --days, or both")
    before = None
    if days is not None:
        before = (datetime.datetime.now() - datetime.timedelta(days=days)).timestamp()
    with opened(store) as database:
        count = AuditTrail(database).forget(subject=subject, before=before)
    typer.echo(f"texts of {count} requests are deleted")


def _day(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
