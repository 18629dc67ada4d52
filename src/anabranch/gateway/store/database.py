"""The database behind the store: opening it, bringing it up to date, transactions off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from anabranch.errors import AnabranchError, UsageError

T = TypeVar("T")

#: Transactions are short; a wait longer than this means that something is wrong.
_BUSY_SECONDS = 15


class StoreError(AnabranchError):
    """The database cannot be used now: gone, full, or refused."""


class Database:
    """A SQLite file or a PostgreSQL database.

    Args:
        url: as SQLAlchemy writes it: ``sqlite:///FILE`` or ``postgresql+psycopg://…``; a bare path
            is a SQLite file.

    Raises:
        UsageError: the URL is not one, or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = _url(url)
        try:
            self._engine = _engine(self.url)
        except ArgumentError as error:
            raise UsageError(f"--store {url!r}: {error}") from None
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--store {url!r}: {error.name} is missing: pip install 'anabranch[postgres]'"
            ) from None
        self.sqlite = self._engine.dialect.name == "sqlite"
        # SQLite has one writer: a second thread would only wait.
        self._threads = ThreadPoolExecutor(1 if self.sqlite else 8, thread_name_prefix="store")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end, undone by any error.

        Raises:
            StoreError: the database failed; nothing was written.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise StoreError(f"the store failed: {_short(error)}") from error
        except SQLAlchemyError as error:
            raise StoreError(f"the store failed: {_short(error)}") from error

    async def do(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction in a thread; the event loop goes on meanwhile."""

        def run() -> T:
            with self.transaction() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def migrate(self) -> None:
        """Bring the tables up to date; processes that start at once take turns.

        Raises:
            StoreError: the database failed, or is of a newer version.
        """
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self.transaction() as connection:
            if not self.sqlite:
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239041)")
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                raise StoreError(f"{self.url}: {error}: update anabranch") from None

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=True)
        self._engine.dispose()


def _url(text: str) -> str:
    if "://" in text:
        return text.replace("postgresql://", "postgresql+psycopg://", 1)
    return f"sqlite:///{Path(text).absolute()}"


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_size=8, max_overflow=0, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _connect(connection: object, _: object) -> None:
        # The driver's own way begins transactions late; ours begin where we say.
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()  # type: ignore[attr-defined]
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Take the write lock at once: two readers that both want to write would deadlock.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _short(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:200]
