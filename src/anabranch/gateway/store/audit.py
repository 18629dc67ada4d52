"""The audit trail: every decision about a request, each record chained to the one before it.

A record's hash is over the hash before it and its own content, so a record that was changed, taken
out or slipped in shows. Texts are not in the chain: they are kept apart, only their hash is in the
record, and deleting them (by subject, by age) leaves the chain whole.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from anabranch.gateway.store.database import Database
from anabranch.gateway.store.schema import audit, chain, contents

_GENESIS = "0" * 64


@dataclass(frozen=True)
class Content:
    """The texts of one request; ``subject`` is whom they concern, as the client named them."""

    ticket: str
    subject: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One link of the chain."""

    number: int
    time: float
    ticket: str
    event: str
    data: dict[str, Any]
    hash: str


class AuditTrail:
    """The audit trail of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def read(self, since: float = 0.0, until: float | None = None) -> Iterator[Record]:
        """The records of a span of time, in order, a thousand at a time."""
        last = -1
        while True:
            query = select(audit).where(audit.c.number > last, audit.c.time >= since)
            if until is not None:
                query = query.where(audit.c.time < until)
            with self.database.transaction() as connection:
                rows = connection.execute(query.order_by(audit.c.number).limit(1000)).all()
            for row in rows:
                yield Record(
                    row.number, row.time, row.ticket, row.event, json.loads(row.data), row.hash
                )
            if len(rows) < 1000:
                return
            last = rows[-1].number

    def verify(self) -> tuple[int, str | None]:
        """How many records there are, and what is wrong with the first bad one (None: nothing)."""
        before, number = _GENESIS, 0
        for record in self.read():
            number += 1
            if record.number != number:
                return number - 1, f"record {number} is missing"
            text = _canonical(record.data)
            if record.hash != _link(before, number, record.time, record.ticket, record.event, text):
                return number - 1, f"record {number} was changed, or does not follow {number - 1}"
            before = record.hash
        with self.database.transaction() as connection:
            head = connection.execute(select(chain.c.number, chain.c.hash)).one()
        if (head.number, head.hash) != (number, before):
            return number, f"the chain ends at {head.number}, its records at {number}"
        return number, None

    def forget(self, *, subject: str | None = None, before: float | None = None) -> int:
        """Delete texts by subject, by age, or both; returns how many. The chain stays."""
        query = delete(contents)
        if subject is not None:
            query = query.where(contents.c.subject == subject)
        if before is not None:
            query = query.where(contents.c.time < before)
        if subject is None and before is None:
            raise ValueError("name a subject or a time")
        with self.database.transaction() as connection:
            return int(connection.execute(query).rowcount)

    def contents(self, subject: str | None = None) -> list[Content]:
        """The texts that are kept, of one subject or of all."""
        query = select(contents).order_by(contents.c.time)
        if subject is not None:
            query = query.where(contents.c.subject == subject)
        with self.database.transaction() as connection:
            rows = connection.execute(query).all()
        return [Content(row.ticket, row.subject, json.loads(row.data)) for row in rows]


def append(connection: Connection, events: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    """Add records ``(ticket, event, data)`` inside a transaction.

    The head of the chain is locked, so appends of several processes follow one another.
    """
    head = connection.execute(select(chain).with_for_update()).one()
    number, before = head.number, head.hash
    for ticket, event, data in events:
        number += 1
        now, text = time.time(), _canonical(data)
        before = _link(before, number, now, ticket, event, text)
        row = {"number": number, "time": now, "ticket": ticket, "event": event, "data": text,
               "hash": before}  # fmt: skip
        connection.execute(insert(audit).values(row))
    connection.execute(update(chain).values(number=number, hash=before))


def holder(connection: Connection, ticket: str) -> str | None:
    """The key that a request was admitted with; None where none was of that name."""
    query = select(audit.c.data).where(audit.c.ticket == ticket, audit.c.event == "admitted")
    row = connection.execute(query).first()
    return None if row is None else str(json.loads(row.data)["key"])


def keep(connection: Connection, content: Content) -> str:
    """Keep the texts of a request inside a transaction; returns their hash, for the record."""
    text = _canonical(content.data)
    connection.execute(
        insert(contents).values(
            ticket=content.ticket, time=time.time(), subject=content.subject, data=text
        )
    )
    return digest(content.data)


def digest(data: Any) -> str:
    """SHA-256 of plain data in its canonical form."""
    return hashlib.sha256(_canonical(data).encode("ascii")).hexdigest()


def _link(before: str, number: int, now: float, ticket: str, event: str, text: str) -> str:
    whole = _canonical([before, number, now, ticket, event, text])
    return hashlib.sha256(whole.encode("ascii")).hexdigest()


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
