"""What all engines behind a streaming HTTP server have in common: opening, caps, the stream's end.

A subclass says how a server is discovered, how a request is written and how its events are read.
The socket is :mod:`anabranch.engines.transport`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.discovery import Found
from anabranch.engines.failures import StatusError, UnreachableError
from anabranch.engines.http_stream import Stream
from anabranch.engines.transport import Transport
from anabranch.errors import ContextWindowError, EngineError, UsageError


class Reader(Protocol):
    """Reads the bytes of an answer; as :class:`anabranch.engines.reader.CompletionReader` does."""

    @property
    def done(self) -> bool: ...

    @property
    def cut(self) -> bool: ...

    def feed(self, data: bytes) -> Chunk | None: ...

    def end(self) -> Chunk | None: ...

    def last(self) -> Chunk: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent, and what reads its answer; ``rid`` is its id at the server."""

    path: str
    body: bytes
    reader: Reader
    rid: str = ""


class HttpEngine(ABC):
    """An engine behind a server. It belongs to the event loop in which it is first used.

    It opens itself at the first call; :meth:`open` does it earlier, so that a wrong URL shows
    before any work is done.
    """

    def __init__(self, transport: Transport, model: str | None, tokenizer: Tokenizer) -> None:
        self._transport = transport
        self.name = transport.url
        self.model = model or ""
        self.tokenizer = tokenizer
        self._found: Found | None = None
        self._opening = asyncio.Lock()

    @property
    def transport(self) -> Transport:
        """The server itself, for questions that are no calls."""
        return self._transport

    @property
    def capabilities(self) -> Capabilities:
        """What the server was found to do; assumptions before :meth:`open`."""
        return self._found.capabilities if self._found else Capabilities()

    @abstractmethod
    async def _discover(self) -> Found:
        """Asks the server what it can do."""

    @abstractmethod
    def _request(self, call: Call, cap: int, found: Found) -> Request:
        """Writes a request for at most ``cap`` tokens."""

    def _abandon(self, request: Request) -> None:  # noqa: B027 - most servers see the connection
        """A request was left before its end; its connection is closed already."""

    async def open(self) -> Self:
        """Discovers what the server can do, once; later calls return at once."""
        await self._open()
        return self

    async def close(self) -> None:
        """Closes all connections; running calls end with an error."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams one call. The cap sent is never more than the window leaves after the prompt."""
        found = self._found or await self._open()
        request = self._request(call, self._cap(call), found)
        async with aclosing(self._answer(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _answer(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Sends a request and streams what comes back."""
        reader = request.reader
        stream: Stream | None = None
        running = True
        try:
            stream = await self._transport.begin(request.path, request.body)
            data = stream.first
            while True:
                chunk = reader.feed(data) if data else reader.end()
                if chunk is not None:
                    yield chunk
                if reader.done:
                    break
                data = await stream.read()
            last = reader.last()
            # Before the last chunk: many a caller leaves right behind it.
            await stream.finish(whole=not reader.cut)
            running = reader.cut
            yield last
        except EngineError as error:
            running = not isinstance(error, UnreachableError | StatusError | ContextWindowError)
            if isinstance(error, ContextWindowError):
                self._learn(error)
            raise
        finally:
            # Also reached when the caller leaves early: closing aborts the request in the server.
            if stream is not None:
                stream.abort()
            if running:
                self._abandon(request)

    async def _open(self) -> Found:
        async with self._opening:
            if self._found is None:
                try:
                    self._found = await self._discover()
                except BaseException:
                    await self._transport.close()
                    raise
                self.model = self._found.model
            return self._found

    def _cap(self, call: Call) -> int:
        if call.max_tokens < 1:
            raise UsageError(f"max_tokens is {call.max_tokens}: a call samples at least one token")
        window = self.capabilities.window
        if window is None:
            return call.max_tokens
        room = window - len(call.ids)
        if room < 1:
            raise ContextWindowError(
                f"{self.name}: the prompt of {len(call.ids)} tokens leaves no room "
                f"in the window of {window}",
                window=window,
                prompt_tokens=len(call.ids),
            )
        return min(call.max_tokens, room)

    def _learn(self, error: ContextWindowError) -> None:
        """The window is smaller than promised: later calls are capped by what was now learnt."""
        if error.window is not None and self._found is not None:
            known = replace(self._found.capabilities, window=error.window)
            self._found = replace(self._found, capabilities=known)
