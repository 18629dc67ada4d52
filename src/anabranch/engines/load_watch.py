"""A server's load, looked at again and again while something decodes on it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from anabranch.engines.load import Load, LoadReader
from anabranch.errors import EngineError

#: Seconds between two looks. Branches live for longer than that on any real model.
EVERY = 0.2


class LoadWatch:
    """Keeps the last known load of a server; run it with ``async with``.

    Args:
        reader: of the server; belongs to this object from now on.
        every: seconds between two looks.

    Attributes:
        load: the last one. Where a look fails the one before stays: a server that is too busy to
            say how busy it is has no room.
    """

    def __init__(self, reader: LoadReader, *, every: float = EVERY) -> None:
        self._reader, self._every = reader, every
        self._task: asyncio.Task[None] | None = None
        self.load: Load | None = None

    async def __aenter__(self) -> LoadWatch:
        """The first look; raises EngineError where the server shows no load."""
        try:
            self.load = await self._reader.read()
        except BaseException:
            await self._reader.close()
            raise
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._reader.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            with suppress(EngineError):
                self.load = await self._reader.read()

    def room(self, above: int) -> int:
        """How many more calls it could take before ``above`` run or wait."""
        return above - (self.load.running + self.load.waiting if self.load else 0)
