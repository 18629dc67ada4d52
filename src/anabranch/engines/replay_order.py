"""Keeps the recorded order of events of different calls while they are replayed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence


class Order:
    """Events by their number: each waits for all that come before it.

    Args:
        calls: the numbers of the events of each call.
    """

    def __init__(self, calls: Iterable[Sequence[int]]) -> None:
        self._call = {step: steps for steps in calls for step in steps}
        self._open = deque(sorted(self._call))
        self._done: set[int] = set()
        self._stray: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def done(self, steps: Iterable[int]) -> None:
        """Events have happened, or will not happen any more."""
        self._done.update(steps)
        while self._open and self._open[0] in self._done:
            self._done.discard(self._open.popleft())
        waiter = self._waiting.get(self._open[0]) if self._open else None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def turn(self, step: int, patience: float) -> None:
        """Waits until all earlier events are done, but not for ever."""
        if not self._open or self._open[0] >= step or step in self._stray:
            await asyncio.sleep(0)
            return
        waiter = self._waiting[step] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(patience):
                await waiter
        except TimeoutError:
            # Nobody asks for the calls that are due: from here on none waits for them.
            late = [other for other in self._open if other < step and other not in self._done]
            strays = {other for first in late for other in self._call[first]}
            self._stray |= strays
            self.done(strays)
        finally:
            del self._waiting[step]
