"""One copy of a call on one replica, and the race of two copies for the first token.

An attempt holds a slot of its replica until it is closed; closing it aborts what still runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from anabranch.engines.base import Call, Chunk
from anabranch.engines.failures import UnreachableError
from anabranch.engines.fleet_pool import Pool
from anabranch.engines.fleet_replicas import Replica
from anabranch.errors import EngineError


@dataclass(frozen=True, slots=True)
class Hedging:
    """A second copy of a call whose first token is late.

    Attributes:
        after: seconds without a token until the copy is sent to another replica that has a free
            slot. The first token wins, the other copy is aborted.
    """

    after: float


class Attempt:
    """A call on a replica whose slot was already taken."""

    def __init__(self, pool: Pool, replica: Replica, call: Call) -> None:
        self.replica = replica
        self.received = 0
        self._pool, self._call = pool, call
        self._chunks = replica.engine.generate(call)
        self._begun = self._ended = self._closed = False

    async def next(self) -> Chunk:
        """The next chunk; the last one has ``finish``.

        Raises:
            EngineError: as the replica says; one that broke its connection may be tried again.
        """
        replica = self.replica
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            error = EngineError(f"{replica.name}: the stream broke off", retryable=True)
            self._fail(error)
            raise error from None
        except EngineError as error:
            if isinstance(error, UnreachableError):
                error.retryable = True
            self._fail(error)
            raise
        self._begun = True
        self.received += len(chunk.ids)
        replica.tokens += len(chunk.ids)
        if chunk.finish is not None:
            self._ended = True
            replica.finished += 1
            replica.prompt_tokens += chunk.prompt_tokens or 0
            replica.cached_tokens += chunk.cached_tokens or 0
            self._pool.worked(replica)
        return chunk

    def _fail(self, error: EngineError) -> None:
        self._ended = True
        self.replica.failed += 1
        self._pool.failed(self.replica, error, self._call, self._begun)

    async def close(self) -> None:
        """Aborts what still runs and gives the slot back; more than once does no harm."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._chunks.aclose()
        finally:
            self.replica.left += not self._ended
            self._pool.release(self.replica, self._call)


class Race:
    """The first chunk of a call, from its first copy or, if that is late, from a second.

    Attributes:
        tried: gets the replicas that failed.
        hedged: whether a second copy was sent; ``won`` whether it won.
    """

    def __init__(self, pool: Pool, call: Call, tried: set[Replica]) -> None:
        self._pool, self._call, self.tried = pool, call, tried
        self.hedged = self.won = False

    async def run(self, first: Attempt, hedging: Hedging | None) -> tuple[Attempt, Chunk]:
        """The attempt that wins and its first chunk; all others are closed.

        Raises:
            EngineError: the last failure, if no copy gave a token.
        """
        if hedging is None:
            return first, await self._alone(first)
        loop = asyncio.get_running_loop()
        racers = {loop.create_task(first.next()): first}
        try:
            done, _ = await asyncio.wait(racers, timeout=hedging.after)
            replica = None if done else self._pool.take(self._call, {*self.tried, first.replica})
            if replica is not None:
                self.hedged = True
                second = Attempt(self._pool, replica, self._call)
                racers[loop.create_task(second.next())] = second
            winner, chunk = await self._first(racers)
        except BaseException:
            await _drop(racers)
            raise
        self.won = winner is not first
        try:
            await _drop(racers)
        except BaseException:
            await winner.close()
            raise
        return winner, chunk

    async def _alone(self, attempt: Attempt) -> Chunk:
        try:
            return await attempt.next()
        except BaseException as error:
            if isinstance(error, EngineError):
                self.tried.add(attempt.replica)
            await attempt.close()
            raise

    async def _first(self, racers: dict[asyncio.Task[Chunk], Attempt]) -> tuple[Attempt, Chunk]:
        while True:
            await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in racers if task.done())
            error = task.exception()
            if error is None:
                return racers.pop(task), task.result()
            if not isinstance(error, EngineError):
                raise error
            self.tried.add(racers[task].replica)
            if len(racers) == 1:
                raise error
            await racers.pop(task).close()


async def _drop(racers: dict[asyncio.Task[Chunk], Attempt]) -> None:
    """Cancels and closes all racers, also when the caller is cancelled meanwhile."""
    for task in racers:
        task.cancel()
    cancelled = False
    while any(not task.done() for task in racers):
        try:
            await asyncio.wait(racers)
        except asyncio.CancelledError:
            cancelled = True
    await asyncio.gather(*racers, return_exceptions=True)  # takes note of their errors
    for attempt in racers.values():
        await attempt.close()
        attempt.replica.lost_tokens += attempt.received
    if cancelled:
        raise asyncio.CancelledError
