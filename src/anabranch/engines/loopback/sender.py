"""Writes the events of one response, and misbehaves on order."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from anabranch.engines.loopback.data import Fault, FaultKind, Manners, Served


class Over(Exception):
    """The fault has ended the body."""


class Sender:
    """Writes events, and misbehaves as its fault says."""

    def __init__(
        self,
        manners: Manners,
        request: web.Request,
        response: web.StreamResponse,
        served: Served,
        fault: Fault | None,
    ) -> None:
        self._manners, self._request, self._response = manners, request, response
        self._served, self._fault = served, fault
        self._kept: list[str] = []

    async def send(self, event: str) -> None:
        if self._manners.pace:
            await self._step(self._manners.pace)
        fault = self._fault
        if fault and self._served.events >= fault.after:
            await self._misbehave(fault.kind, event)
        else:
            await self._write(event)
        self._served.events += 1

    @staticmethod
    async def _step(pace: float) -> None:
        """Waits for the next step: all outputs take it together, as in a batching engine."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(pace - now % pace)

    async def flush(self) -> None:
        """Sends what a fault kept back."""
        kept, self._kept = self._kept, []
        if kept:
            await self._response.write("".join(map(self._frame, kept)).encode())

    async def _misbehave(self, kind: FaultKind, event: str) -> None:
        if kind == "reset":
            transport = self._request.transport
            if transport is not None:
                transport.abort()
            raise ConnectionResetError
        if kind == "stall":
            await asyncio.Event().wait()
        if kind == "torn":
            frame = self._frame(event)
            await self._response.write(frame[: len(frame) // 2].encode())
            raise Over
        if kind == "end":
            raise Over
        if kind in ("garbage", "error"):
            told = {"error": {"message": "the engine died", "type": "Internal", "code": 500}}
            await self._write("{not json" if kind == "garbage" else json.dumps(told))
            raise Over
        if kind == "joined":
            self._kept.append(event)
            return
        self._fault = None
        if kind == "double":
            await self._write(event)
            await self._write(event)
        elif kind == "merged":
            await self._response.write(f"data: {event}{self._manners.line_end}".encode())

    async def _write(self, event: str) -> None:
        await self._response.write(self._frame(event).encode())

    def _frame(self, event: str) -> str:
        end = self._manners.line_end
        comment = f": still here{end}{end}" if self._manners.comments else ""
        return f"{comment}data: {event}{end}{end}"
