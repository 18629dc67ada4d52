"""Budgets: what may be spent, by everybody or by one key, ever or in a window of time.

What a request may cost is reserved before it starts and settled when it ends, each in one
transaction whose conditions the database checks; so no budget is overspent by any race of
processes. A reservation is a lease: its holder renews it, and when the holder dies it falls back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, or_, select, update

from anabranch.errors import UsageError
from anabranch.gateway.store.database import Database
from anabranch.gateway.store.schema import budgets, keys, reservations

#: What can be counted: sampled tokens, money, requests, requests at the same time.
KINDS = ("tokens", "money", "requests", "concurrency")
#: Seconds that a reservation lives without being renewed.
LEASE = 60.0


@dataclass(frozen=True)
class Budget:
    """One budget and where it stands. ``seconds`` 0: it never starts anew."""

    id: int
    key: str
    kind: str
    cap: float
    seconds: float
    spent: float
    reserved: float


class Over(Exception):
    """A budget does not allow it.

    Attributes:
        budget: which one.
        retry_after: seconds until its window starts anew; None where waiting for other requests
            may help, or nothing will.
    """

    def __init__(self, budget: Budget, retry_after: float | None) -> None:
        whose = f"key {budget.key}" if budget.key else "all keys together"
        super().__init__(f"the budget of {budget.cap:g} {budget.kind} for {whose} is used up")
        self.budget, self.retry_after = budget, retry_after


class Budgets:
    """The budgets of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def set(self, kind: str, cap: float, *, key: str = "", seconds: float = 0.0) -> None:
        """Make a budget or change its cap; what was spent stays.

        Raises:
            UsageError: the kind is unknown, a number is negative, or there is no such key.
        """
        if kind not in KINDS:
            raise UsageError(f"budget of {kind!r}: use {', '.join(KINDS)}")
        if cap < 0 or seconds < 0 or (kind == "concurrency" and seconds):
            raise UsageError("a cap is 0 or more; concurrency has no window")
        mine = (budgets.c.key == key, budgets.c.kind == kind, budgets.c.seconds == seconds)
        with self.database.transaction() as connection:
            if (
                key
                and connection.execute(select(keys.c.id).where(keys.c.id == key)).first() is None
            ):
                raise UsageError(f"key {key}: there is no such key")
            if connection.execute(update(budgets).where(*mine).values(cap=cap)).rowcount:
                return
            connection.execute(
                insert(budgets).values(
                    key=key,
                    kind=kind,
                    cap=cap,
                    seconds=seconds,
                    spent=0,
                    reserved=0,
                    since=time.time(),
                )
            )

    def remove(self, kind: str, *, key: str = "", seconds: float = 0.0) -> None:
        """Forget a budget.

        Raises:
            UsageError: there is none like this.
        """
        mine = (budgets.c.key == key, budgets.c.kind == kind, budgets.c.seconds == seconds)
        with self.database.transaction() as connection:
            if not connection.execute(delete(budgets).where(*mine)).rowcount:
                raise UsageError(f"there is no such budget of {kind}")

    def list(self) -> list[Budget]:
        """All budgets."""
        with self.database.transaction() as connection:
            return [
                _budget(row) for row in connection.execute(select(budgets).order_by(budgets.c.id))
            ]


def reserve(
    connection: Connection, ticket: str, holder: str, key: str, amounts: Mapping[str, float | None]
) -> None:
    """Reserve on every budget that applies, or on none.

    Args:
        connection: inside a transaction, which an exception undoes.
        ticket, holder: of whom the reservation is.
        key: whose request it is.
        amounts: by kind, the most that it may cost; None: not known, and so not allowed where a
            budget counts it.

    Raises:
        Over: naming the budget.
        LookupError: a budget counts what has no known most; the argument is the kind.
    """
    now = time.time()
    rows = connection.execute(
        select(budgets).where(or_(budgets.c.key == "", budgets.c.key == key)).order_by(budgets.c.id)
    ).all()
    for row in rows:
        amount = amounts[row.kind]
        if amount is None:
            raise LookupError(row.kind)
        if row.seconds and now - row.since >= row.seconds:
            connection.execute(
                update(budgets)
                .where(budgets.c.id == row.id, budgets.c.since == row.since)
                .values(spent=0, since=now - (now - row.since) % row.seconds)
            )
        taken = connection.execute(
            update(budgets)
            .where(
                budgets.c.id == row.id,
                budgets.c.spent + budgets.c.reserved + amount <= budgets.c.cap,
            )
            .values(reserved=budgets.c.reserved + amount)
        )
        if not taken.rowcount:
            wait = row.since + row.seconds - now if row.seconds else None
            raise Over(_budget(row), wait)
        connection.execute(
            insert(reservations).values(
                ticket=ticket, budget=row.id, amount=amount, holder=holder, until=now + LEASE
            )
        )


def settle(connection: Connection, ticket: str, amounts: Mapping[str, float]) -> None:
    """Turn what was reserved into what was spent. A lease that ran out is booked in full already.

    Args:
        connection: inside a transaction.
        ticket: as reserved.
        amounts: by kind, what it cost.
    """
    rows = connection.execute(
        select(reservations.c.budget, reservations.c.amount, budgets.c.kind)
        .join(budgets, budgets.c.id == reservations.c.budget)
        .where(reservations.c.ticket == ticket)
        .order_by(reservations.c.budget)
    ).all()
    for row in rows:
        gone = connection.execute(
            delete(reservations).where(
                reservations.c.ticket == ticket, reservations.c.budget == row.budget
            )
        )
        back = row.amount if gone.rowcount else 0
        connection.execute(
            update(budgets)
            .where(budgets.c.id == row.budget)
            .values(reserved=budgets.c.reserved - back, spent=budgets.c.spent + amounts[row.kind])
        )


def renew(connection: Connection, holder: str) -> None:
    """Prolong every lease of a holder."""
    connection.execute(
        update(reservations)
        .where(reservations.c.holder == holder)
        .values(until=time.time() + LEASE)
    )


def reclaim(connection: Connection, now: float | None = None) -> int:
    """Book every lease that ran out as spent in full: its holder died, and nobody knows better.

    Returns:
        how many there were.
    """
    now = time.time() if now is None else now
    rows = connection.execute(
        select(reservations, budgets.c.kind)
        .join(budgets, budgets.c.id == reservations.c.budget)
        .where(reservations.c.until < now)
        .order_by(reservations.c.budget)
    ).all()
    count = 0
    for row in rows:
        gone = connection.execute(
            delete(reservations).where(
                reservations.c.ticket == row.ticket,
                reservations.c.budget == row.budget,
                reservations.c.until < now,
            )
        )
        if not gone.rowcount:
            continue
        count += 1
        cost = 0.0 if row.kind == "concurrency" else row.amount
        connection.execute(
            update(budgets)
            .where(budgets.c.id == row.budget)
            .values(reserved=budgets.c.reserved - row.amount, spent=budgets.c.spent + cost)
        )
    return count


def _budget(row: object) -> Budget:
    names = ("id", "key", "kind", "cap", "seconds", "spent", "reserved")
    return Budget(*(getattr(row, name) for name in names))
