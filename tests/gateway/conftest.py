"""A gateway on loopback in front of a loopback engine that solves lab problems without a fault."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway import Defaults, Model, Service, Ticket, create_app
from anabranch.gateway.store import Database
from anabranch.gateway.store.schema import metadata
from anabranch.gateway.telemetry import Metrics
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply


class Watcher:
    """Keeps every ticket."""

    def __init__(self) -> None:
        self.began_with: list[Ticket] = []
        self.tickets: list[Ticket] = []

    def began(self, ticket: Ticket) -> None:
        self.began_with.append(ticket)

    def ended(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)

    def refused(self, status: int, code: str | None) -> None:
        pass


@dataclass
class Running:
    """A gateway that runs: where, on what, and who watched."""

    url: str
    upstream: LoopbackServer
    service: Service
    watcher: Watcher


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """An ASGI application on a free port of loopback, in a thread; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    started = threading.Event()
    startup = server.startup

    async def announce(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = announce  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def reply(request: Any) -> str:
    """The reference solution; for anything else a text that shows what was asked."""
    try:
        return perfect_reply(request.text)
    except ValueError:
        return "12"


@pytest.fixture(scope="session")
def listen() -> Any:
    """:func:`listening`, for test files."""
    return listening


@pytest.fixture(scope="session")
def watcher_class() -> type[Watcher]:
    return Watcher


@pytest.fixture(scope="module")
def make_gateway() -> Iterator[Callable[..., Running]]:
    """Starts gateways: ``make(defaults=…, script=…, **of the service)``."""
    with ExitStack() as stack:

        def make(
            *, defaults: Defaults | None = None, script: Any = reply, **options: Any
        ) -> Running:
            tokenizer = load_tokenizer(bundled_model())
            upstream = stack.enter_context(LoopbackServer(tokenizer, script))
            engine = CompletionsEngine(upstream.url, tokenizer=tokenizer)
            watcher = Watcher()
            info = load_checkpoint_info(bundled_model())
            service = Service(
                {"lab": Model("lab", engine, info, bundled_model())},
                defaults or Defaults(temperature=0.0),
                **options,
            )
            service.observers.add(watcher)
            metrics = Metrics()
            service.observers.add(metrics)
            url = stack.enter_context(listening(create_app(service, metrics.routes())))
            upstream.served.clear()  # what was asked to find out what it can do
            upstream.sampled = 0
            return Running(url, upstream, service, watcher)

        yield make


@pytest.fixture(scope="module")
def one_gateway(make_gateway: Callable[..., Running]) -> Running:
    return make_gateway()


@pytest.fixture
def gateway(one_gateway: Running) -> Running:
    """The ordinary one, with clean books."""
    one_gateway.watcher.tickets.clear()
    one_gateway.upstream.served.clear()
    one_gateway.upstream.sampled = 0
    one_gateway.upstream.api_key = None
    return one_gateway


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


@dataclass
class Postgres:
    """A PostgreSQL that runs; it can be taken away and brought back."""

    url: str
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def running_postgres(folder: Path) -> Iterator[Postgres]:
    """An empty database; skips where PostgreSQL is not installed."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    user = None
    if os.getuid() == 0:  # it refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("no user postgres to run PostgreSQL as")
        for place in [folder, *folder.parents]:
            if place.stat().st_uid == 0 and place.name:
                place.chmod(place.stat().st_mode | 0o055)
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def call(*arguments: str) -> None:
        subprocess.run(arguments, check=True, user=user, capture_output=True, cwd=folder)

    call(str(programs / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-N")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    control = str(programs / "pg_ctl")

    def start() -> None:
        call(control, "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")

    def stop() -> None:
        call(control, "-D", str(data), "-w", "-m", "immediate", "stop")

    start()
    try:
        yield Postgres(f"postgresql://tester@127.0.0.1:{port}/postgres", stop, start)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it may be down already
            stop()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> str:
    """The URL of an empty PostgreSQL database."""
    database = Database(postgres_server.url)
    with database.transaction() as connection:
        metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")
    database.close()
    return postgres_server.url
