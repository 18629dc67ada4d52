"""Load awareness: branches that would only queue are held back, down to one at a time.

Every trajectory may always run one branch, so it goes on; more of its branches start while the
engine has room. Nothing is dropped: what a plan asked for is decoded, later. The policy is named
``hold``, and off unless a gate is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds after which a held branch looks at the load again, besides whenever a branch ends.
AGAIN = 0.05


class LoadGate:
    """Decides when a branch of one trajectory may start.

    Args:
        room: how many more calls the engine could take without queueing or slowing down; asked
            before each start.

    Attributes:
        held: branches that had to wait.
    """

    def __init__(self, room: Callable[[], int], again: float = AGAIN) -> None:
        self._room, self._again = room, again
        self._running = 0
        self._ended = asyncio.Event()
        self.held = 0

    async def enter(self) -> bool:
        """Wait for the turn of a branch; whether it had to wait."""
        waited = False
        while self._running and self._room() <= 0:
            self.held += not waited
            waited = True
            self._ended.clear()
            try:
                async with asyncio.timeout(self._again):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self._running += 1
        return waited

    def leave(self) -> None:
        """A branch that was let in has ended."""
        self._running -= 1
        self._ended.set()
