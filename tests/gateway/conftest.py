"""A gateway on loopback in front of a loopback engine that solves lab problems without a fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway import Defaults, Model, Service, Ticket, create_app
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
            url = stack.enter_context(listening(create_app(service)))
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
