"""One request through the gateway: admitted, decoded, streamed or not, settled, observed.

Whatever ends a request (the answer, an error, a client that leaves, a shutdown), its branches are
closed in the engine and its ticket is settled exactly once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from anabranch.errors import AnabranchError
from anabranch.gateway.answers import Choice, answer_all, choices_of
from anabranch.gateway.asking import Defaults, Model
from anabranch.gateway.bodies import Common
from anabranch.gateway.candidates import Shadow
from anabranch.gateway.errors import ApiError, upstream_failed
from anabranch.gateway.experiments import Assignment
from anabranch.gateway.shapes import Shape
from anabranch.gateway.tickets import Ledger, Observers, OpenLedger, Ticket

#: A comment line keeps proxies from closing a stream while branches run.
KEEP_ALIVE = b": branches are running\n\n"


@dataclass
class Service:
    """What the endpoints share.

    Attributes:
        models: by the names that clients use; the first is the default.
        defaults: where requests say nothing, and what bounds them.
        ledger: admission and books.
        observers: told of every request.
        max_body: bytes of a request's body.
        body_seconds: until a body has to be in.
        experiment: gives requests their arm.
        shadow: asks a candidate some of the requests too.
        keep_alive: seconds of silence after which a stream sends a comment.
    """

    models: dict[str, Model]
    defaults: Defaults = field(default_factory=Defaults)
    ledger: Ledger = field(default_factory=OpenLedger)
    observers: Observers = field(default_factory=Observers)
    max_body: int = 4 * 2**20
    body_seconds: float = 30.0
    keep_alive: float = 15.0
    draining: bool = False
    experiment: Assignment | None = None
    shadow: Shadow | None = None

    def model(self, name: str | None) -> Model:
        """The model that a request names.

        Raises:
            ApiError: it is not served here.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                f"model {name!r} is not served here (served: {known})",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self.models[name]


@dataclass
class Exchange:
    """One admitted request: its ticket, its choices, and how to write the response."""

    service: Service
    model: Model
    ticket: Ticket
    shape: Shape
    choices: list[Choice]
    events: bool = False
    _settled: bool = False

    async def settle(self) -> None:
        """Book what was spent and let go of what was reserved, once."""
        if self._settled:
            return
        self._settled = True
        ticket = self.ticket
        for choice in self.choices:
            if choice.trajectory is not None:
                ticket.book(choice.trajectory)
        ticket.end()
        try:
            await self.service.ledger.settle(ticket)
        finally:
            self.service.observers.ended(ticket)

    def judge(self) -> None:
        """Set the ticket's outcome from the choices.

        Raises:
            ApiError: the engine failed in every choice.
        """
        ended = [c.trajectory.outcome if c.trajectory else "failed" for c in self.choices]
        if all(outcome == "failed" for outcome in ended):
            self.ticket.outcome, self.ticket.status = "failed", 502
            self.ticket.error = _reason(self.choices)
            raise upstream_failed(self.ticket.error)
        limited = any(choice.finish == "length" for choice in self.choices)
        self.ticket.outcome = "truncated" if limited else "answered"


def _reason(choices: Sequence[Choice]) -> str:
    for choice in choices:
        for finding in reversed(choice.trajectory.findings if choice.trajectory else ()):
            if finding.code == "request_failed":
                return finding.message
    return "the engine failed"


async def read_json(request: Request, service: Service) -> Any:
    """The body, within the bounds of size, time and depth.

    Raises:
        ApiError: 408, 413, or 400 for what is no JSON.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > service.max_body:
        raise _too_large(service)
    body = bytearray()
    try:
        async with asyncio.timeout(service.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > service.max_body:
                    raise _too_large(service)
    except TimeoutError:
        raise ApiError("the body did not arrive in time", status=408, code="timeout") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("the body is no JSON", code="invalid_json") from None


def _too_large(service: Service) -> ApiError:
    return ApiError(
        f"the body is larger than {service.max_body} bytes", status=413, code="too_large"
    )


async def respond(request: Request, exchange: Exchange, body: Common) -> Response:
    """The response of an admitted request; the exchange is settled when it has been sent."""
    if body.stream:
        wants = body.stream_options is not None and body.stream_options.include_usage
        lines = _stream(exchange, wants or body.anabranch.trajectory)
        return _Streaming(lines, exchange)
    try:
        await _unless_gone(request, _collect(exchange))
        exchange.judge()
    except asyncio.CancelledError:
        exchange.ticket.outcome = "gone"
        raise
    except _Gone:
        exchange.ticket.outcome, exchange.ticket.status = "gone", 499
        return Response(status_code=499)
    finally:
        await asyncio.shield(exchange.settle())
    return JSONResponse(exchange.shape.whole(exchange.choices))


class _Gone(Exception):
    """The client is not there any more."""


async def _unless_gone(request: Request, work: Awaitable[None]) -> None:
    """Wait for the work; leave it when the client leaves."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Gone
        await task
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _collect(exchange: Exchange) -> None:
    async with aclosing(answer_all(exchange.choices, exchange.model.engine)) as items:
        async for _ in items:
            exchange.ticket.first = exchange.ticket.first or _elapsed(exchange.ticket)


def _elapsed(ticket: Ticket) -> float:
    loop = asyncio.get_running_loop()
    return max(1e-9, loop.time() - ticket.started)


class _Streaming(StreamingResponse):
    """Settles its exchange however the stream ends."""

    def __init__(self, lines: AsyncGenerator[bytes, None], exchange: Exchange) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._lines, self._exchange = lines, exchange

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = self._exchange
        try:
            await super().__call__(scope, receive, send)
        finally:
            with suppress(RuntimeError):  # it is closing itself already
                await asyncio.shield(self._lines.aclose())
            if exchange.ticket.outcome == "refused":
                exchange.ticket.outcome, exchange.ticket.status = "gone", 499
            await asyncio.shield(exchange.settle())


async def _stream(exchange: Exchange, usage: bool) -> AsyncGenerator[bytes, None]:
    shape, ticket = exchange.shape, exchange.ticket
    for choice in exchange.choices:
        if (chunk := shape.first(choice)) is not None:
            yield _event(chunk)
    pulse = exchange.service.keep_alive
    items = answer_all(exchange.choices, exchange.model.engine, events=exchange.events, pulse=pulse)
    async with aclosing(items):
        async for item in items:
            if item.pulse:
                yield KEEP_ALIVE
                continue
            ticket.first = ticket.first or _elapsed(ticket)
            if item.delta is None and item.event is None and item.choice.finish is None:
                continue  # a choice whose engine failed has no finish; the error is told below
            yield _event(shape.chunk(item))
    try:
        exchange.judge()
    except ApiError as error:
        # The status is long sent: an error event is how such a stream tells of a failure.
        yield _event(error.body())
        return
    await asyncio.shield(exchange.settle())
    if usage:
        yield _event(shape.last())
    yield b"data: [DONE]\n\n"


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n\n"


def credential(request: Request) -> str | None:
    """The bearer token that came with the request."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def failure(error: AnabranchError) -> JSONResponse:
    """Any error that is meant for the reader, as a response."""
    if not isinstance(error, ApiError):
        error = ApiError(str(error))
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


def open_exchange(
    service: Service, model: Model, ticket: Ticket, shape: Shape, body: Common,
    setups: Sequence[Any], *, whole: bool,
) -> Exchange:  # fmt: skip
    """The exchange of a request whose setups are made."""
    return Exchange(
        service,
        model,
        ticket,
        shape,
        choices_of(setups, body.stops, whole=whole),
        events=body.anabranch.events,
    )
