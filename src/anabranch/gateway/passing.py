"""Requests with tools go on to the engine as they are: forks and the client's tools do not mix.

The answer comes back byte for byte. Its usage is read on the way, so that the books are right.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from anabranch.engines.sse import SseReader, json_objects
from anabranch.gateway.errors import ApiError, refused, upstream_failed
from anabranch.gateway.serving import Service, credential
from anabranch.gateway.tickets import Ticket


def passes(data: dict[str, Any]) -> bool:
    """Whether a request has tools of the client in it, or results of theirs."""
    if data.get("tools") or data.get("functions"):
        return True
    messages = data.get("messages")
    if not isinstance(messages, list):
        return False
    return any(
        isinstance(m, dict) and (m.get("role") in ("tool", "function") or m.get("tool_calls"))
        for m in messages
    )


async def pass_through(
    request: Request, service: Service, ticket: Ticket, data: dict[str, Any]
) -> Response:
    """Send the request on and the answer back."""
    wanted = data.get("model")
    if not isinstance(wanted, str | None):
        raise ApiError("model: has to be text", param="model", code="invalid_value")
    model = service.model(wanted)
    url, headers = upstream_of(model.engine)
    if url is None:
        raise refused("tools", f"the engine {model.engine.name} has no chat endpoint to pass to")
    body = {name: value for name, value in data.items() if name != "anabranch"}
    body["model"] = model.engine.model
    stream = bool(data.get("stream"))
    asked = isinstance(data.get("stream_options"), dict) and data["stream_options"].get(
        "include_usage"
    )
    if stream:
        body["stream_options"] = {"include_usage": True}
    ticket.model, ticket.mode, ticket.stream = model.name, "passed", stream
    cap = data.get("max_completion_tokens") or data.get("max_tokens")
    ticket.cap = _most(cap, data.get("n") or 1)
    await service.ledger.admit(ticket, credential(request))
    service.observers.began(ticket)
    passage = _Passage(service, ticket, hide_usage=stream and not asked)
    try:
        answer = await passage.open(f"{url}/v1/chat/completions", headers, body)
    except BaseException:
        await passage.close()
        raise
    if stream and answer.status == 200:
        return _Passed(passage.lines(), passage)
    try:
        content = await answer.read()
        passage.read_usage(content)
        if answer.status >= 400 and not _is_json(content):
            # A page of a proxy, or of a server without this endpoint: clients expect JSON.
            passage.ticket.outcome, passage.ticket.status = "failed", 502
            raise upstream_failed(f"{url} answers {answer.status} to a request with tools")
    except aiohttp.ClientError as error:
        raise upstream_failed(f"{url}: {error}") from None
    finally:
        await asyncio.shield(passage.close())
    return Response(content, status_code=answer.status, media_type="application/json")


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _most(cap: Any, count: Any) -> int | None:
    """Tokens of all choices together; None where the engine has to say what is wrong."""
    for value in (cap, count):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return None
    return int(cap * count)


def upstream_of(engine: Any) -> tuple[str | None, dict[str, str]]:
    """Where an engine's server lies, and the headers it wants; of a fleet, its first replica."""
    engines = getattr(engine, "engines", None)
    transport = getattr(engines[0] if engines else engine, "transport", None)
    if transport is None:
        return None, {}
    return transport.url, dict(transport.headers)


class _Passage:
    """One request on the other side."""

    def __init__(self, service: Service, ticket: Ticket, *, hide_usage: bool) -> None:
        self.service, self.ticket, self.hide = service, ticket, hide_usage
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=10))
        self.answer: aiohttp.ClientResponse | None = None
        self.pieces = 0
        self.closed = False
        ticket.spent.calls = 1

    async def open(
        self, url: str, headers: dict[str, str], body: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        try:
            self.answer = await self.session.post(url, json=body, headers=headers)
        except aiohttp.ClientError as error:
            self.ticket.outcome, self.ticket.status = "failed", 502
            raise upstream_failed(f"{url}: {error}") from None
        self.ticket.status = self.answer.status
        self.ticket.outcome = "answered" if self.answer.status == 200 else "failed"
        return self.answer

    async def lines(self) -> AsyncIterator[bytes]:
        """Events as they come, the usage taken out where the client did not ask for it."""
        assert self.answer is not None
        reader = SseReader()
        try:
            async for piece in self.answer.content.iter_any():
                for data in reader.feed(piece):
                    if data != "[DONE]" and not self._keep(data):
                        continue
                    yield b"data: " + data.encode() + b"\n\n"
        except aiohttp.ClientError as error:
            # The status is long sent: an error event is how such a stream tells of a failure.
            self.ticket.outcome, self.ticket.status = "failed", 502
            told = upstream_failed(f"the stream broke off: {error}").body()
            yield b"data: " + json.dumps(told).encode("ascii") + b"\n\n"

    def _keep(self, data: str) -> bool:
        try:
            (event,) = json_objects(data)
        except ValueError:
            return True
        if not isinstance(event, dict):
            return True
        if event.get("choices"):
            self.pieces += 1
        if not event.get("usage"):
            return True
        self._book(event["usage"])
        return bool(event.get("choices")) or not self.hide

    def read_usage(self, content: bytes) -> None:
        """The usage of an answer that came whole."""
        try:
            usage = json.loads(content).get("usage")
        except (ValueError, AttributeError):
            return
        if isinstance(usage, dict):
            self._book(usage)

    def _book(self, usage: dict[str, Any]) -> None:
        spent = self.ticket.spent
        spent.prompt = int(usage.get("prompt_tokens") or 0)
        spent.sampled = spent.path = int(usage.get("completion_tokens") or 0)
        spent.context = spent.prefill = spent.prompt

    async def close(self) -> None:
        """Close the connection, which aborts the request, and settle."""
        if self.closed:
            return
        self.closed = True
        if not self.ticket.spent.sampled and self.pieces:
            # The stream broke off before its usage: one piece is at least one token.
            self.ticket.spent.sampled = self.ticket.spent.path = self.pieces
            self.ticket.spent.estimated = True
        if self.answer is not None:
            self.answer.close()
        await self.session.close()
        self.ticket.end()
        try:
            await self.service.ledger.settle(self.ticket)
        finally:
            self.service.observers.ended(self.ticket)


class _Passed(StreamingResponse):
    def __init__(self, lines: AsyncIterator[bytes], passage: _Passage) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._passage = passage

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(self._passage.close())
