"""Engine for servers with an OpenAI-compatible `/v1/completions`: vLLM, and others by discovery.

Token ids in, streamed, and token ids out where the server gives them. This module writes the
requests and joins the parts: the socket is :mod:`anabranch.engines.transport`, the events are
:mod:`anabranch.engines.reader`, what a server can do is :mod:`anabranch.engines.discovery`. Chat
endpoints are not used: a fork continues raw text in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.discovery import COMPLETIONS, Found, Ids, discover, encode_body
from anabranch.engines.reader import CompletionReader, Terms
from anabranch.engines.retry import Retries
from anabranch.engines.transport import Stream, Timeouts, Transport
from anabranch.errors import ContextWindowError, UsageError

__all__ = ["CompletionsEngine", "Retries", "Timeouts"]


class CompletionsEngine:
    """An engine behind `/v1/completions`.

    It belongs to the event loop in which it is first used. It opens itself at the first call;
    :meth:`open` does it earlier, so that a wrong URL shows before any work is done.

    Args:
        url: the server, with or without `/v1`.
        model: its name at the server; None takes the only one served.
        tokenizer: the model's tokenizer. It decodes the ids that come back, so text and ids
            cannot disagree, and is checked against the server's when opening.
        api_key: sent as bearer token.
        ids: "require" refuses a server that gives no token ids; "retokenize" encodes its text
            with ``tokenizer`` instead, and ``capabilities.ids_out`` is then False.
        timeouts, retries: seconds and repetitions; there is no other retry layer below.
        extra: fields to add to every request, or to take away where the value is None.

    Raises (from :meth:`open` and :meth:`generate`):
        ContextWindowError: the prompt leaves no room in the model's window.
        EngineError: everything else that the server or the connection does wrong; retryable
            where the same call may be made again.
        UsageError: the URL or the model's name cannot be right.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer,
        api_key: str | None = None,
        ids: Ids = "require",
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._transport = Transport(url, api_key=api_key, timeouts=timeouts, retries=retries)
        self.name = self._transport.url
        self.model = model or ""
        self.tokenizer = tokenizer
        self._ids: Ids = ids
        self._extra = dict(extra or {})
        self._found: Found | None = None
        self._opening = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """What the server was found to do; assumptions before :meth:`open`."""
        return self._found.capabilities if self._found else Capabilities()

    async def open(self) -> CompletionsEngine:
        """Discovers what the server can do, once; later calls return at once."""
        await self._open()
        return self

    async def close(self) -> None:
        """Closes all connections; running calls end with an error."""
        await self._transport.close()

    async def __aenter__(self) -> CompletionsEngine:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams one call. The cap sent is never more than the window leaves after the prompt."""
        found = self._found or await self._open()
        cap = self._cap(call)
        reader = CompletionReader(
            self.tokenizer,
            Terms(
                call,
                cap,
                self._transport.url + COMPLETIONS,
                ids=found.capabilities.ids_out,
                server_stops=found.server_stops,
            ),
        )
        stream = await self._begin(self._body(call, cap, found))
        try:
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
            yield last
        finally:
            # Also reached when the caller leaves early: closing aborts the request in the server.
            stream.abort()

    async def _open(self) -> Found:
        async with self._opening:
            if self._found is None:
                try:
                    self._found = await discover(
                        self._transport, self.model or None, self.tokenizer, self._ids, self._extra
                    )
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

    async def _begin(self, body: bytes) -> Stream:
        try:
            return await self._transport.begin(COMPLETIONS, body)
        except ContextWindowError as error:
            # The window is smaller than promised: later calls are capped by what was now learnt.
            if error.window is not None and self._found is not None:
                known = replace(self._found.capabilities, window=error.window)
                self._found = replace(self._found, capabilities=known)
            raise

    def _body(self, call: Call, cap: int, found: Found) -> bytes:
        body: dict[str, Any] = {
            "model": found.model,
            "prompt": call.ids,
            "max_tokens": cap,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k or -1,
            "seed": call.seed,
        }
        if call.stop and found.server_stops:
            body["stop"] = call.stop
        if call.logprobs and found.logprobs is not None:
            body["logprobs"] = found.logprobs
        return encode_body(body, self._extra)
