"""`anabranch serve`: the gateway in front of an engine."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli.common import DialectName, EngineOptions, console, open_engine, takes_engine
from anabranch.decoding import make_policy
from anabranch.dialects import get_dialect
from anabranch.errors import UsageError
from anabranch.records import Limits

if TYPE_CHECKING:
    from starlette.routing import Route

    from anabranch.gateway import Ledger, Service
    from anabranch.gateway.tracing import Spans


@takes_engine
def serve(
    options: EngineOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8100,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name for clients.")
    ] = None,
    dialect: DialectName = None,
    mode: Annotated[str, typer.Option(help="Where requests say nothing.")] = "parallel",
    join: Annotated[str, typer.Option(help="Join policy where requests say nothing.")] = "all",
    max_total: Annotated[
        int | None, typer.Option(min=1, help="Most sampled tokens of one answer.")
    ] = None,
    max_path: Annotated[
        int | None, typer.Option(min=1, help="Longest critical path of one answer.")
    ] = None,
    max_branches: Annotated[int, typer.Option(min=1, help="Branches of one block.")] = 50,
    reserve: Annotated[int, typer.Option(min=0, help="Tokens kept back for the answer.")] = 0,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds until an answer is forced.")
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 1024,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 4 * 2**20,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="ANABRANCH_STORE",
            help="Keys, budgets, audit: a SQLite file or postgresql://…; default: none of them.",
        ),
    ] = None,
    need_key: Annotated[
        bool, typer.Option("--need-key/--no-key", help="With --store: refuse requests without key.")
    ] = True,
    price_prompt: Annotated[
        float, typer.Option(min=0, help="Money for a million prompt tokens.")
    ] = 0,
    price_sampled: Annotated[
        float, typer.Option(min=0, help="Money for a million sampled tokens.")
    ] = 0,
    contents: Annotated[
        str, typer.Option(help="What the audit keeps of texts: metadata (nothing) or full.")
    ] = "metadata",
    drain_seconds: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM: seconds in which /ready says so, before closing."),
    ] = 0,
    experiment: Annotated[
        Path | None, typer.Option(help="Arms to give requests to: a TOML file.")
    ] = None,
    shadow: Annotated[
        str | None, typer.Option(help="Ask this candidate some of the requests too.")
    ] = None,
    shadow_share: Annotated[float, typer.Option(min=0, max=1, help="Of the requests.")] = 0.1,
    shadow_log: Annotated[Path, typer.Option(help="Comparisons, for `experiment compare`.")] = Path(
        "shadow.jsonl"
    ),
    shadow_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_SHADOW_KEY")] = None,
    otel: Annotated[
        str | None, typer.Option(help="Send spans to this OTLP collector, http://HOST:4318.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM).")] = None,
) -> None:
    """Serve the OpenAI API with fork-join decoding behind it."""
    make_policy(join)
    if dialect is not None:
        get_dialect(dialect)
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    for file in (tls_cert, tls_key):
        if file is not None and not file.is_file():
            raise UsageError(f"{file}: no such file")
    if contents not in ("metadata", "full"):
        raise UsageError(f"--contents {contents!r}: use metadata or full")
    limits = Limits(
        max_total_tokens=max_total,
        max_path_tokens=max_path,
        max_branches=max_branches,
        answer_reserve=reserve,
        deadline=deadline,
    )
    plan = _Plan(
        host=host,
        port=port,
        name=name,
        defaults={"mode": mode, "dialect": dialect, "join": join, "limits": limits},
        max_requests=max_requests,
        max_body=max_body,
        tls=(tls_cert, tls_key),
        drain_seconds=drain_seconds,
        experiment=experiment,
        otel=otel,
        shadow=None if shadow is None else (shadow, shadow_share, shadow_log, shadow_key),
        store=store,
        books={
            "need_key": need_key,
            "prices": (price_prompt, price_sampled),
            "contents": contents,
        },
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, plan))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (it is not made for Windows): it saves a third of the CPU."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@dataclass(frozen=True)
class _Plan:
    """The command's options, checked."""

    host: str
    port: int
    name: str | None
    defaults: dict[str, Any]
    max_requests: int
    max_body: int
    tls: tuple[Path | None, Path | None]
    drain_seconds: float
    experiment: Path | None
    otel: str | None
    shadow: tuple[str, float, Path, str | None] | None
    store: str | None
    books: dict[str, Any]


async def _serve(options: EngineOptions, plan: _Plan) -> None:
    import uvicorn

    from anabranch.gateway import Defaults, Model, Service, create_app
    from anabranch.gateway.experiments import Assignment, load_experiment
    from anabranch.gateway.ledger import Prices
    from anabranch.gateway.telemetry import LogLines, Metrics

    async with open_engine(options) as opened:
        shown = plan.name or Path(opened.engine.model).name or "model"
        model = Model(shown, opened.engine, opened.info, opened.folder)
        defaults = Defaults(**plan.defaults)
        service = Service({shown: model}, defaults, ledger=_ledger(plan), max_body=plan.max_body)
        if plan.experiment is not None:
            arms = load_experiment(plan.experiment, service.models)
            service.experiment = Assignment(arms, Prices(*plan.books["prices"]))
            service.observers.add(service.experiment)
        metrics = Metrics()
        service.observers.add(metrics)
        service.observers.add(LogLines())
        spans = _spans(plan.otel)
        if spans is not None:
            service.observers.add(spans)
        extra = [*metrics.routes(), *_pages(plan, service)]
        config = uvicorn.Config(
            create_app(service, extra),
            host=plan.host,
            port=plan.port,
            log_level="warning",
            ssl_certfile=plan.tls[0],
            ssl_keyfile=plan.tls[1],
            timeout_keep_alive=75,
        )
        server = _server()(config, f"{shown}, {defaults.mode}", service, plan.drain_seconds)
        try:
            async with _shadowing(plan.shadow, service):
                await server.serve()
        finally:
            if spans is not None:
                spans.close()


@asynccontextmanager
async def _shadowing(
    wish: tuple[str, float, Path, str | None] | None, service: Service
) -> AsyncIterator[None]:
    """The candidate of ``--shadow`` for as long as the gateway runs."""
    if wish is None:
        yield
        return
    from anabranch.gateway.candidates import Candidate, Shadow

    url, share, log, key = wish
    async with Candidate(url, api_key=key) as candidate:
        shadow = Shadow(candidate, share, log)
        service.shadow = shadow
        service.observers.add(shadow)
        try:
            yield
        finally:
            await shadow.close()


def _spans(endpoint: str | None) -> Spans | None:
    if endpoint is None:
        return None
    from anabranch.gateway.tracing import spans_to

    return spans_to(endpoint)


def _pages(plan: _Plan, service: Service) -> list[Route]:
    """The pages: with a store behind its admin keys, without one on loopback only."""
    from anabranch.gateway.ledger import Prices, StoreLedger
    from anabranch.gateway.live import Live
    from anabranch.gateway.pages import page_routes

    ledger = service.ledger
    if plan.store is None and plan.host not in ("127.0.0.1", "::1", "localhost"):
        return []
    keep = 200 if plan.store is not None and plan.books["contents"] == "full" else 0
    live = Live(Prices(*plan.books["prices"]), keep=keep)
    service.observers.add(live)
    return page_routes(live, ledger, ledger.budgets if isinstance(ledger, StoreLedger) else None)


def _ledger(plan: _Plan) -> Ledger:
    from anabranch.gateway import OpenLedger

    if plan.store is None:
        return OpenLedger(plan.max_requests)
    from anabranch.gateway.ledger import Prices, StoreLedger
    from anabranch.gateway.store import Database

    database = Database(plan.store)
    database.migrate()
    books = plan.books
    return StoreLedger(
        database,
        most=plan.max_requests,
        need_key=books["need_key"],
        prices=Prices(*books["prices"]),
        contents=books["contents"],
    )


def _server() -> Any:
    import uvicorn

    class Server(uvicorn.Server):
        """Says where it listens once it does; on SIGTERM it drains before it ends."""

        def __init__(self, config: Any, what: str, service: Service, grace: float) -> None:
            super().__init__(config)
            self.what, self.service, self.grace = what, service, grace
            self.loop: asyncio.AbstractEventLoop | None = None

        async def startup(self, sockets: Any = None) -> None:
            self.loop = asyncio.get_running_loop()
            await super().startup(sockets)
            for listening in self.servers:
                address, port = listening.sockets[0].getsockname()[:2]
                scheme = "https" if isinstance(self.config.ssl, ssl.SSLContext) else "http"
                console.print(f"{self.what}: {scheme}://{address}:{port}/v1")

        def handle_exit(self, sig: int, frame: Any) -> None:
            """The first signal drains, the second one ends at once."""
            if self.service.draining or self.loop is None:
                self.force_exit = self.should_exit = True
                return
            # New requests are refused from here on; those that run are waited for.
            self.service.draining = True
            wait = self.grace if sig == signal.SIGTERM else 0.0
            self.loop.call_soon_threadsafe(self.loop.call_later, wait, self._close)

        def _close(self) -> None:
            self.should_exit = True

    return Server
