"""The tables. Changes go through the migrations beside this file, which a test compares with it."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

#: 64 bits in both databases; SQLite counts rows up only in its own INTEGER.
Big = BigInteger().with_variant(Integer, "sqlite")

keys = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("old_hash", String(64)),
    Column("old_until", Float),
    Column("scopes", String(200), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Boolean, nullable=False),
)

budgets = Table(
    "budgets",
    metadata,
    Column("id", Integer, primary_key=True),
    # "" is everybody's: a budget of the whole gateway.
    Column("key", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("cap", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("spent", Float, nullable=False),
    Column("reserved", Float, nullable=False),
    Column("since", Float, nullable=False),
    UniqueConstraint("key", "kind", "seconds"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("ticket", String(64), primary_key=True),
    Column("budget", Integer, ForeignKey("budgets.id", ondelete="CASCADE"), primary_key=True),
    Column("amount", Float, nullable=False),
    Column("holder", String(64), nullable=False),
    Column("until", Float, nullable=False),
    Index("reservations_until", "until"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", Big, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("ticket", String(64), nullable=False),
    Column("event", String(32), nullable=False),
    Column("data", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Index("audit_time", "time"),
    Index("audit_ticket", "ticket"),
)

#: One row: the last number and hash of the chain, locked by whoever appends.
chain = Table(
    "chain",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", Big, nullable=False),
    Column("hash", String(64), nullable=False),
)

contents = Table(
    "contents",
    metadata,
    Column("ticket", String(64), primary_key=True),
    Column("time", Float, nullable=False),
    Column("subject", String(200), nullable=False),
    Column("data", Text, nullable=False),
    Index("contents_subject", "subject"),
    Index("contents_time", "time"),
)
