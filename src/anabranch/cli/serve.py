"""`anabranch serve`: the gateway in front of an engine."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.common import DialectName, EngineOptions, console, open_engine, takes_engine
from anabranch.decoding import make_policy
from anabranch.dialects import get_dialect
from anabranch.errors import UsageError
from anabranch.records import Limits


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
    limits = Limits(
        max_total_tokens=max_total,
        max_path_tokens=max_path,
        max_branches=max_branches,
        answer_reserve=reserve,
        deadline=deadline,
    )
    defaults = {"mode": mode, "dialect": dialect, "join": join, "limits": limits}
    asyncio.run(
        _serve(options, host, port, name, defaults, max_requests, max_body, tls_cert, tls_key)
    )


async def _serve(
    options: EngineOptions,
    host: str,
    port: int,
    name: str | None,
    defaults: dict[str, Any],
    max_requests: int,
    max_body: int,
    cert: Path | None,
    key: Path | None,
) -> None:
    import uvicorn

    from anabranch.gateway import Defaults, Model, OpenLedger, Service, create_app

    async with open_engine(options) as opened:
        shown = name or Path(opened.engine.model).name or "model"
        model = Model(shown, opened.engine, opened.info, opened.folder)
        service = Service(
            {shown: model}, Defaults(**defaults), ledger=OpenLedger(max_requests), max_body=max_body
        )
        config = uvicorn.Config(
            create_app(service),
            host=host,
            port=port,
            log_level="warning",
            ssl_certfile=cert,
            ssl_keyfile=key,
            timeout_keep_alive=75,
        )
        server = _announced()(config, f"{shown}, {service.defaults.mode}")
        await server.serve()


def _announced() -> Any:
    import uvicorn

    class Announced(uvicorn.Server):
        """Says where it listens once it does."""

        def __init__(self, config: Any, what: str) -> None:
            super().__init__(config)
            self.what = what

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for listening in self.servers:
                address, port = listening.sockets[0].getsockname()[:2]
                scheme = "https" if isinstance(self.config.ssl, ssl.SSLContext) else "http"
                console.print(f"{self.what}: {scheme}://{address}:{port}/v1")

    return Announced
