"""Keys, budgets and the audit chain on SQLite and on a real PostgreSQL."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from anabranch.errors import UsageError
from anabranch.gateway.store import AuditTrail, Budgets, Content, Database, Keys, Over, StoreError
from anabranch.gateway.store.audit import append, keep
from anabranch.gateway.store.budgets import LEASE, reclaim, renew, reserve, settle
from anabranch.gateway.store.keys import find
from anabranch.gateway.store.schema import audit, contents, metadata


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty, migrated database."""
    where = str(tmp_path / "store.db")
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres")
    database = Database(where)
    database.migrate()
    database.close()
    yield where


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


def test_migrations_make_the_tables_that_the_code_knows(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    database.migrate()  # again: nothing to do


def test_keys(database: Database) -> None:
    keys = Keys(database)
    key, text = keys.create("one", ("infer",), days=1)
    _, other = keys.create("two", ("admin", "infer"))

    def found(credential: str | None) -> str | None:
        with database.transaction() as connection:
            known = find(connection, credential)
        return known.name if known else None

    assert (found(text), found(other)) == ("one", "two")
    assert [found(bad) for bad in (None, "", "x", text[:-1], text[:-1] + "é", text + "x")] == [
        None
    ] * 6
    mixed = text[:16] + other[16:]
    assert found(mixed) is None
    fresh = keys.rotate(key.id, grace_seconds=60)
    assert found(text) == found(fresh) == "one"
    newest = keys.rotate(key.id)
    assert (found(text), found(fresh), found(newest)) == (None, None, "one")
    keys.revoke(key.id)
    assert found(newest) is None
    _, old = keys.create("old", days=-1)
    assert found(old) is None
    assert [k.name for k in keys.list()] == ["one", "two", "old"]
    with database.transaction() as connection:
        kept = str(connection.exec_driver_sql("SELECT * FROM keys").all())
    assert text.rpartition("-")[2] not in kept
    for wrong in (lambda: keys.create("x", ("root",)), lambda: keys.revoke("nobody"),
                  lambda: keys.create(""), lambda: keys.rotate("nobody")):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


AMOUNTS = {"tokens": 200.0, "money": 0.0, "requests": 1.0, "concurrency": 1.0}


def test_budgets_are_reserved_and_settled(database: Database) -> None:
    budgets = Budgets(database)
    key, _ = Keys(database).create("k")
    budgets.set("tokens", 500, key=key.id)
    budgets.set("concurrency", 2)
    with database.transaction() as connection:
        reserve(connection, "a", "h", key.id, AMOUNTS)
        reserve(connection, "b", "h", key.id, AMOUNTS)
    with (
        pytest.raises(Over, match="concurrency for all keys"),
        database.transaction() as connection,
    ):
        reserve(connection, "c", "h", "", AMOUNTS)
    with database.transaction() as connection:
        settle(connection, "a", {"tokens": 30.0, "money": 0, "requests": 1, "concurrency": 0})
        settle(connection, "a", {"tokens": 30.0, "money": 0, "requests": 1, "concurrency": 0})
    with database.transaction() as connection:
        reserve(connection, "c", "h", key.id, AMOUNTS)
    assert [(b.kind, b.spent, b.reserved) for b in budgets.list()] == [
        ("tokens", 30, 400),
        ("concurrency", 0, 2),
    ]
    with pytest.raises(LookupError), database.transaction() as connection:
        reserve(connection, "d", "h", key.id, {**AMOUNTS, "tokens": None})
    budgets.set("tokens", 10, key=key.id)
    assert budgets.list()[0].cap == 10
    budgets.remove("concurrency")
    for wrong in (lambda: budgets.set("hope", 1), lambda: budgets.set("tokens", -1),
                  lambda: budgets.set("tokens", 1, key="nobody"),
                  lambda: budgets.remove("money")):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


def test_a_refusal_reserves_on_no_budget(database: Database) -> None:
    budgets = Budgets(database)
    budgets.set("requests", 100)
    budgets.set("tokens", 100)
    with pytest.raises(Over), database.transaction() as connection:
        reserve(connection, "a", "h", "", AMOUNTS)
    assert [b.reserved for b in budgets.list()] == [0, 0]


def test_windows_start_anew(database: Database) -> None:
    budgets = Budgets(database)
    budgets.set("requests", 1, seconds=3600)
    with database.transaction() as connection:
        reserve(connection, "a", "h", "", AMOUNTS)
        settle(connection, "a", {**AMOUNTS, "concurrency": 0})
    with pytest.raises(Over) as over, database.transaction() as connection:
        reserve(connection, "b", "h", "", AMOUNTS)
    assert 3500 < (over.value.retry_after or 0) <= 3600
    with database.transaction() as connection:
        connection.exec_driver_sql("UPDATE budgets SET since = since - 3601")
        reserve(connection, "b", "h", "", AMOUNTS)


def test_leases_of_a_dead_holder_are_booked_in_full_and_once(database: Database) -> None:
    budgets = Budgets(database)
    budgets.set("tokens", 1000)
    budgets.set("concurrency", 10)
    with database.transaction() as connection:
        reserve(connection, "dead", "one", "", AMOUNTS)
        reserve(connection, "alive", "two", "", AMOUNTS)
    later = time.time() + LEASE + 1
    with database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE reservations SET until = until - {LEASE + 5}")
        renew(connection, "two")
        assert reclaim(connection) == 2  # of one request, on two budgets
        assert reclaim(connection) == 0
        settle(connection, "dead", {**AMOUNTS, "concurrency": 0})  # it was not dead after all
    assert [(b.kind, b.spent, b.reserved) for b in budgets.list()] == [
        ("tokens", 200, 200),
        ("concurrency", 0, 1),
    ]
    assert later > time.time()


def _take(url: str, start: Any, results: Any, name: str) -> None:
    database = Database(url)
    start.wait()

    def one(number: int) -> bool:
        try:
            with database.transaction() as connection:
                reserve(connection, f"{name}-{number}", name, "", AMOUNTS)
        except Over:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        results.put(sum(pool.map(one, range(8))))
    database.close()


def test_two_processes_never_overspend(url: str, database: Database) -> None:
    """16 requests of at most 200 at once against a budget of 1,000: 5 get in."""
    Budgets(database).set("tokens", 1000)
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_take, args=(url, start, results, f"p{n}")) for n in range(2)]
    for worker in workers:
        worker.start()
    start.set()
    admitted = sum(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(30)
    assert admitted == 5
    (budget,) = Budgets(database).list()
    assert (budget.spent, budget.reserved) == (0, 1000)


def test_the_chain_holds_and_shows_every_change(database: Database) -> None:
    trail = AuditTrail(database)

    def write(number: int) -> None:
        with database.transaction() as connection:
            append(connection, [(f"t{number}", "ended", {"n": number}), ("x", "y", {})])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trail.verify() == (40, None)
    assert {r.ticket for r in trail.read()} == {"x", *(f"t{n}" for n in range(20))}
    with database.transaction() as connection:
        connection.execute(update(audit).where(audit.c.number == 7).values(data='{"n":"forged"}'))
    assert trail.verify() == (6, "record 7 was changed, or does not follow 6")
    with database.transaction() as connection:
        connection.execute(delete(audit).where(audit.c.number == 7))
    assert trail.verify() == (6, "record 7 is missing")
    with database.transaction() as connection:
        connection.execute(delete(audit).where(audit.c.number > 5))
    assert trail.verify() == (5, "the chain ends at 40, its records at 5")


def test_texts_can_be_forgotten_and_the_chain_stays(database: Database) -> None:
    trail = AuditTrail(database)
    with database.transaction() as connection:
        for number, subject in enumerate(["ann", "ann", "bob"]):
            hash = keep(connection, Content(f"t{number}", subject, {"prompt": "secret \ud83c"}))
            append(connection, [(f"t{number}", "ended", {"content": hash})])
    assert trail.forget(subject="ann") == 2
    assert [c.subject for c in trail.contents()] == ["bob"]
    assert trail.forget(before=time.time() + 1) == 1
    assert trail.verify() == (3, None)
    with database.transaction() as connection:
        connection.execute(update(contents).values(data="{}"))
    with pytest.raises(ValueError):
        trail.forget()


def test_bad_stores(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--store"):
        Database("nonsense://x/y")
    (tmp_path / "no.db").write_text("this is no database, it is a text of more than 100 bytes" * 3)
    database = Database(str(tmp_path / "no.db"))
    with pytest.raises(StoreError, match="not a database"):
        database.migrate()
    database.close()
