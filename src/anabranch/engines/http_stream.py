"""The body of one streamed response: its bytes, its silence, and the end of its connection.

Asking for a response, and asking again, is :mod:`anabranch.engines.transport`.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress

import aiohttp

from anabranch.engines.failures import UnreachableError
from anabranch.errors import EngineError

#: Seconds that the end of a body may take behind the end of its output.
_LINGER = 0.05


class Stream:
    """The body of one response. Exactly one of :meth:`finish` and :meth:`abort` ends it."""

    __slots__ = ("_between", "_loop", "_response", "_silent", "_since", "_timer", "first", "where")

    def __init__(
        self, response: aiohttp.ClientResponse, first: bytes, between: float, where: str
    ) -> None:
        self._response, self._between, self.where = response, between, where
        self.first = first
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._silent = False
        # One timer that looks in now and then: a time-out of its own for each read would cost
        # more than the read.
        self._timer = self._loop.call_later(between, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        waited = 0.0 if self._since is None else now - self._since
        if waited >= self._between:
            self._silent = True
            self._response.close()
        else:
            self._timer = self._loop.call_later(self._between - waited, self._look)

    async def read(self) -> bytes:
        """The next bytes, empty at the end of the body.

        Raises:
            EngineError: the connection broke (retryable) or was silent for too long (not).
        """
        self._since = self._loop.time()
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if self._silent:
                raise EngineError(
                    f"{self.where} was silent for {self._between:g} s in the middle of its output"
                ) from None
            raise UnreachableError(
                f"{self.where} broke the connection in the middle of its output: {words(error)}",
                retryable=True,
            ) from None
        finally:
            self._since = None

    async def finish(self, *, whole: bool) -> None:
        """Hands the connection back for reuse if the body is over or ends at once.

        Args:
            whole: False if the server is still sending; the connection is then closed.
        """
        self._timer.cancel()
        if whole:
            with suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_LINGER):
                    while await self._response.content.readany():
                        pass
                self._response.release()
        self._response.close()

    def abort(self) -> None:
        """Closes the connection now, which aborts the request in the server."""
        self._timer.cancel()
        self._response.close()


def words(error: BaseException) -> str:
    """The reason of a connection error without the addresses around it."""
    reason = str(error) or type(error).__name__
    numbers = re.findall(r"\[Errno (\d+)\]", reason)
    if numbers:  # one for each address of the host that was tried
        reason = os.strerror(int(numbers[0]))
    return " ".join(reason.split())
