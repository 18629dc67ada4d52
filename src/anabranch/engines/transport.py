"""HTTP for a completions server: one session, bounded retries, time-outs, connections that close.

Delivers the bytes of a streamed response; what they mean is :mod:`anabranch.engines.reader`. A
request that has delivered a byte of output is never sent again from here.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from anabranch.engines.failures import UnreachableError, error_message, status_error
from anabranch.engines.http_stream import Stream, words
from anabranch.engines.retry import BUSY, Retries, parse_retry_after
from anabranch.errors import EngineError, UsageError

#: Below the 5 s after which common servers close an idle connection: a request that meets a
#: connection in the moment of its closing fails without having been read.
KEEP_ALIVE = 3.0
ERROR_BODY = 65_536
JSON_BODY = 2**24
#: Seconds for a short question about the server itself.
SHORT = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a silent server counts as failed.

    Attributes:
        connect: until the connection stands.
        first: until the first byte of output; waiting in the server's queue is part of it.
        between: between two pieces of output.
    """

    connect: float = 10.0
    first: float = 600.0
    between: float = 120.0


class _Failed(Exception):
    """An attempt that produced nothing; may be made again."""

    def __init__(self, error: EngineError, retry_after: float | None = None) -> None:
        self.error, self.retry_after = error, retry_after


def base_url(url: str) -> str:
    """The server's root from any of the forms in use (`http://h:p`, `…/v1`, `…/v1/completions`).

    Raises:
        UsageError: not an http(s) URL.
    """
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{url!r} is not a server URL: write it like http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    for ending in ("/completions", "/v1"):
        path = path.removesuffix(ending)
    return f"{parts.scheme}://{parts.netloc}{path}"


class Transport:
    """A server seen through HTTP.

    Args:
        url: the server, in any form that :func:`base_url` takes.
        api_key: sent as bearer token.
        sleep: waits between attempts; for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = base_url(url)
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or Retries()
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sleep = sleep
        self._rng = random.Random()
        self._session: aiohttp.ClientSession | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the key included: not to be logged."""
        return dict(self._headers)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit of connections: a fork opens as many as it has branches.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect),
                headers=self._headers,
            )
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def get_json(self, path: str) -> Any:
        """The JSON answer of a GET.

        Raises:
            EngineError: as for :meth:`begin`.
        """
        text = await self.get_text(path)
        try:
            return json.loads(text)
        except ValueError:
            where = self.url + path
            raise EngineError(f"{where} answered with something that is not JSON") from None

    async def get_text(self, path: str) -> str:
        """The answer of a GET as text.

        Raises:
            EngineError: as for :meth:`begin`.
        """
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: bytes, *, limit: float = SHORT) -> str:
        """The answer of a POST as text, whole; ``limit`` is in seconds.

        Raises:
            EngineError: as for :meth:`begin`.
        """
        return await self._ask("POST", path, body, limit)

    async def _ask(self, method: str, path: str, body: bytes | None, longest: float = SHORT) -> str:
        where = self.url + path

        async def attempt(limit: float) -> str:
            response = await self._send(method, where, body, min(limit, longest))
            try:
                async with asyncio.timeout(min(limit, longest)):
                    return await _body(response, JSON_BODY)
            finally:
                response.close()

        return await self._repeat(attempt, where)

    async def begin(self, path: str, body: bytes) -> Stream:
        """Sends a request and waits for the first bytes of its event stream.

        Raises:
            EngineError: the server is unreachable, refuses or stays silent. It is retryable only
                if no retries were configured here.
        """
        where = self.url + path

        async def attempt(limit: float) -> Stream:
            response = await self._send("POST", where, body, limit)
            try:
                await _check_type(response, where)
                async with asyncio.timeout(limit):
                    first = await response.content.readany()
                if not first:
                    raise _Failed(EngineError(f"{where} closed the stream without any output"))
            except BaseException:
                response.close()
                raise
            return Stream(response, first, self.timeouts.between, where)

        return await self._repeat(attempt, where)

    async def _send(
        self, method: str, where: str, body: bytes | None, limit: float
    ) -> aiohttp.ClientResponse:
        async with asyncio.timeout(limit):
            response = await self._client().request(method, where, data=body, allow_redirects=False)
            if response.status == 200:
                return response
            try:
                text = await _body(response, ERROR_BODY)
            finally:
                response.close()
        wait = parse_retry_after(response.headers.get("Retry-After"))
        error = status_error(response.status, text, where, wait)
        if response.status in BUSY:
            raise _Failed(error, wait)
        raise error

    async def _repeat(self, attempt: Callable[[float], Awaitable[T]], where: str) -> T:
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        while True:
            made += 1
            limit = min(self.timeouts.first, self.retries.deadline - (loop.time() - began))
            try:
                return await self._once(attempt, limit, where)
            except _Failed as failure:
                elapsed = loop.time() - began
                wait = self.retries.wait(made, elapsed, failure.retry_after, self._rng)
                if wait is None:
                    raise self._final(failure.error, made) from None
            await self._sleep(wait)

    async def _once(self, attempt: Callable[[float], Awaitable[T]], limit: float, where: str) -> T:
        try:
            return await attempt(limit)
        except aiohttp.ConnectionTimeoutError:
            reason = f"no connection within {self.timeouts.connect:g} s"
            raise _Failed(self._unreachable(reason)) from None
        except TimeoutError:
            # Not sent again: a server that is slow under load only gets slower that way.
            raise EngineError(f"{where} gave no output within {limit:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise _Failed(self._unreachable(words(error.os_error))) from None
        except aiohttp.InvalidURL as error:
            raise UsageError(f"{where} is not a URL: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Failed(
                UnreachableError(f"{where} broke the connection before any output: {words(error)}")
            ) from None

    def _unreachable(self, reason: str) -> EngineError:
        return UnreachableError(f"cannot reach {self.url}: {reason}; is the server running?")

    def _final(self, error: EngineError, made: int) -> EngineError:
        if made == 1:
            error.retryable = self.retries.attempts == 0
        else:
            error.args = (f"{error} (after {made} attempts)",)
        return error


async def _check_type(response: aiohttp.ClientResponse, where: str) -> None:
    if response.content_type == "text/event-stream":
        return
    async with asyncio.timeout(10):
        body = await _body(response, ERROR_BODY)
    raise _Failed(
        EngineError(
            f"{where} answered with {response.content_type} and not with an event stream: "
            f"{error_message(body)}"
        )
    )


async def _body(response: aiohttp.ClientResponse, limit: int) -> str:
    """The body as text, as far as ``limit`` bytes."""
    pieces, size = [], 0
    while size < limit and (piece := await response.content.readany()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)[:limit].decode("utf-8", "replace")
