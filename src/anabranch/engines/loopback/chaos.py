"""A proxy in front of a completions server that breaks a share of its answers, for tests.

It stands between a client and any real server, passes streamed completions on event by event, and
keeps a book of what the server sent and what the client was sent, against which a client's own
count can be checked. Which answer breaks, how and where is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import aiohttp
from aiohttp import web

__all__ = ["BEFORE", "ChaosProxy", "Havoc", "Passed"]

Havoc = Literal[
    "busy",  # 429 with Retry-After, the server is not asked
    "error",  # 500, the server is not asked
    "type",  # 200 with a page instead of a stream, the server is not asked
    "refuse",  # resets the connection before any output
    "reset",  # resets the connection in the middle of the output
    "stall",  # falls silent in the middle until the client leaves
    "torn",  # ends in the middle of an event
    "double",  # sends an event twice
    "joined",  # holds events back and sends several in one write
    "split",  # sends events in pieces, cut anywhere
    "no_ids",  # takes the token ids out of an event
    "unclosed",  # ends as if the model had ended by itself, without the closing tag
]
KINDS: tuple[Havoc, ...] = get_args(Havoc)
#: Those that break a request before the client has seen any output of it.
BEFORE: frozenset[Havoc] = frozenset({"busy", "error", "type", "refuse"})


@dataclass(slots=True)
class Passed:
    """One request in the book.

    Attributes:
        body: what the client sent.
        havoc: what was done to its answer, None for nothing.
        server_ids: token ids that came from the server; ``client_ids`` those that went on to the
            client, each once, also where the event was sent twice.
        usage: the server's own count, if it came.
        outcome: "open", "done", "broken" by the proxy, or "left" by the client.
    """

    body: dict[str, Any]
    havoc: Havoc | None
    server_ids: list[int] = field(default_factory=list)
    client_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    outcome: str = "open"

    @property
    def key(self) -> str:
        """Equal for requests that ask for the same."""
        return json.dumps(self.body, sort_keys=True)


class ChaosProxy:
    """The proxy. It belongs to the event loop in which it is entered.

    Args:
        upstream: URL of the server.
        seed: of the draws.
        kinds: what may be done.
        retry_after: seconds that a "busy" answer asks for.

    Attributes:
        url: of the proxy, once it runs.
        rate: share of the requests that is broken; may be changed at any time.
        window: refuses prompts that exceed it, with a server's words; None refuses nothing.
        book: all completion requests so far.
    """

    def __init__(
        self,
        upstream: str,
        *,
        seed: int = 0,
        kinds: Sequence[Havoc] = KINDS,
        retry_after: float = 0.01,
    ) -> None:
        self.rate = 0.0
        self.window: int | None = None
        self.book: list[Passed] = []
        self.url = ""
        self._upstream = upstream
        self._draw = random.Random(seed)
        self._kinds = tuple(kinds)
        self._retry_after = retry_after
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._changed = asyncio.Event()

    @property
    def open(self) -> int:
        """Completion requests whose connections are open."""
        return sum(passed.outcome == "open" for passed in self.book)

    async def settled(self, seconds: float = 1.0) -> bool:
        """Waits until no request is open; False if that takes longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while self.open:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> ChaosProxy:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None and self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    async def _get(self, request: web.Request) -> web.Response:
        assert self._session is not None
        async with self._session.get(self._upstream + request.path_qs) as answer:
            body = await answer.read()
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if refusal := self._too_long(body):
            return refusal
        broken = self._draw.random() < self.rate
        passed = Passed(body, self._draw.choice(self._kinds) if broken else None)
        self.book.append(passed)
        try:
            answer = await self._answer(request, passed)
        except (asyncio.CancelledError, ConnectionError):
            passed.outcome = "broken" if passed.havoc in ("refuse", "reset") else "left"
            raise
        else:
            harmless = passed.havoc in (None, "double", "joined", "split")
            passed.outcome = "done" if harmless else "broken"
            return answer
        finally:
            self._changed.set()

    def _too_long(self, body: dict[str, Any]) -> web.Response | None:
        sent, cap = len(body["prompt"]), body["max_tokens"]
        if self.window is None or sent + cap <= self.window:
            return None
        message = (
            f"This model's maximum context length is {self.window} tokens and your request has "
            f"{sent} input tokens ({cap} > {self.window} - {sent})."
        )
        return web.json_response({"error": {"message": message, "code": 400}}, status=400)

    async def _answer(self, request: web.Request, passed: Passed) -> web.StreamResponse:
        match passed.havoc:
            case "busy":
                headers = {"Retry-After": f"{self._retry_after:g}"}
                return web.json_response({"error": "busy"}, status=429, headers=headers)
            case "error":
                return web.json_response({"error": "the engine died"}, status=500)
            case "type":
                return web.Response(text="<html>a proxy's page</html>", content_type="text/html")
            case "refuse":
                _reset(request)
        assert self._session is not None
        url = self._upstream + "/v1/completions"
        async with self._session.post(url, json=passed.body) as answer:
            if answer.status != 200:
                text = await answer.text()
                return web.Response(text=text, status=answer.status, content_type="text/json")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await self._pass(request, response, passed, _events(answer))
            await response.write_eof()
            return response

    async def _pass(
        self,
        request: web.Request,
        response: web.StreamResponse,
        passed: Passed,
        events: AsyncIterator[bytes],
    ) -> None:
        havoc, place = passed.havoc, self._draw.randrange(1, 9)
        held = b""
        number = 0
        async for event in events:
            number += 1
            ids = _note(passed, event)
            due = number > place
            frame = event + b"\n\n"
            match havoc if due else None:
                case "reset":
                    _reset(request)
                case "stall":
                    await asyncio.Event().wait()
                case "torn":
                    await response.write(frame[: len(frame) // 2])
                    return
                case "unclosed":
                    await response.write(_ended(event) + b"\n\ndata: [DONE]\n\n")
                    return
                case "no_ids":
                    frame, ids = _without_ids(event) + b"\n\n", []
                case "double" if ids:
                    frame, havoc = frame + frame, None
                case "split":
                    cut = self._draw.randrange(1, len(frame))
                    await response.write(frame[:cut])
                    frame = frame[cut:]
                case "joined":
                    held += frame
                    passed.client_ids += ids
                    continue
            await response.write(held + frame)
            held = b""
            passed.client_ids += ids
        if held:
            await response.write(held)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The events of a stream, without the blank line behind each."""
    rest = b""
    async for piece in answer.content.iter_any():
        *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            yield event


def _note(passed: Passed, event: bytes) -> list[int]:
    """The ids in an event, which are put into the book."""
    value = _json(event)
    passed.usage = value.get("usage") or passed.usage
    ids = [i for choice in value.get("choices") or () for i in choice.get("token_ids") or ()]
    passed.server_ids += ids
    return ids


def _json(event: bytes) -> dict[str, Any]:
    text = event.removeprefix(b"data: ")
    return {} if text == b"[DONE]" else json.loads(text)


def _line(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode()


def _without_ids(event: bytes) -> bytes:
    value = _json(event)
    for choice in value.get("choices") or ():
        choice.pop("token_ids", None)
    return _line(value) if value else event


def _ended(event: bytes) -> bytes:
    """The frame of an event as the end of an output that has nothing more."""
    value = _json(event)
    value["choices"] = [
        {"index": 0, "text": "", "token_ids": [], "finish_reason": "stop", "stop_reason": None}
    ]
    value.pop("usage", None)
    return _line(value)


def _reset(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError
