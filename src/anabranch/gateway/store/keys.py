"""API keys: made, rotated, revoked, checked. Only hashes are kept.

A key is ``ab-ID-SECRET``; the secret has 256 random bits, so a plain SHA-256 of it cannot be
guessed back and needs no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import Connection, Row, insert, select, update

from anabranch.errors import UsageError
from anabranch.gateway.store.database import Database
from anabranch.gateway.store.schema import keys

SCOPES = ("infer", "admin")
_SHAPE = re.compile(r"ab-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
#: Compared with when there is no such key, so that the time taken tells nothing.
_NOBODY = hashlib.sha256(b"nobody").hexdigest()


@dataclass(frozen=True)
class Key:
    """A key without its secret. Times are seconds since 1970."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: float
    expires: float | None
    revoked: bool


class Keys:
    """The keys of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(
        self, name: str, scopes: tuple[str, ...] = ("infer",), days: float | None = None
    ) -> tuple[Key, str]:
        """A new key and its text, which is shown once and kept nowhere.

        Raises:
            UsageError: a scope is unknown, or the name is empty or too long.
        """
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UsageError(f"scope {', '.join(unknown) or 'none'}: use {', '.join(SCOPES)}")
        if not 0 < len(name) <= 200:
            raise UsageError("a key's name has 1 to 200 characters")
        now, id, secret = time.time(), secrets.token_hex(6), secrets.token_urlsafe(32)
        key = Key(id, name, scopes, now, None if days is None else now + days * 86_400, False)
        row = {
            "id": id,
            "name": name,
            "hash": _hash(secret),
            "scopes": ",".join(scopes),
            "created": now,
            "expires": key.expires,
            "revoked": False,
        }
        with self.database.transaction() as connection:
            connection.execute(insert(keys).values(row))
        return key, f"ab-{id}-{secret}"

    def rotate(self, id: str, grace_seconds: float = 0.0) -> str:
        """A new secret for a key; the old one stays good for a while.

        Raises:
            UsageError: there is no such key, or it was revoked.
        """
        secret = secrets.token_urlsafe(32)
        with self.database.transaction() as connection:
            row = connection.execute(
                select(keys).where(keys.c.id == id).with_for_update()
            ).one_or_none()
            if row is None or row.revoked:
                raise UsageError(f"key {id}: there is no such key that is good")
            connection.execute(
                update(keys)
                .where(keys.c.id == id)
                .values(
                    hash=_hash(secret), old_hash=row.hash, old_until=time.time() + grace_seconds
                )
            )
        return f"ab-{id}-{secret}"

    def revoke(self, id: str) -> None:
        """End a key now.

        Raises:
            UsageError: there is no such key.
        """
        with self.database.transaction() as connection:
            done = connection.execute(update(keys).where(keys.c.id == id).values(revoked=True))
            if not done.rowcount:
                raise UsageError(f"key {id}: there is no such key")

    def list(self) -> list[Key]:
        """All keys, oldest first."""
        with self.database.transaction() as connection:
            return [_key(row) for row in connection.execute(select(keys).order_by(keys.c.created))]


def find(connection: Connection, credential: str | None) -> Key | None:
    """The key that a credential is, if it is good now; every comparison takes the same time."""
    shape = _SHAPE.fullmatch(credential or "")
    id, secret = shape.groups() if shape else ("", "")
    row = connection.execute(select(keys).where(keys.c.id == id)).one_or_none()
    now, given = time.time(), _hash(secret)
    current = hmac.compare_digest(given, row.hash if row else _NOBODY)
    former = hmac.compare_digest(given, row.old_hash or _NOBODY if row else _NOBODY)
    if row is None or row.revoked or (row.expires is not None and row.expires <= now):
        return None
    good = current or (former and (row.old_until or 0.0) > now)
    return _key(row) if good else None


def _key(row: Row[tuple[object, ...]]) -> Key:
    return Key(
        row.id, row.name, tuple(row.scopes.split(",")), row.created, row.expires, row.revoked
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
