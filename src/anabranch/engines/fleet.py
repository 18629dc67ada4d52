"""Several replicas behind one engine: routing, limits, health, failover and hedging.

A fleet is an :class:`~anabranch.engines.base.Engine` made of engines of any kind that serve one
model. A call that failed before its first token is made on another replica at once. One that
failed later is not repeated here: its error goes up as retryable, and the decoder sends that one
branch again, which goes to another replica. The parts: :mod:`~anabranch.engines.fleet_replicas`,
:mod:`~anabranch.engines.fleet_routing`, :mod:`~anabranch.engines.fleet_pool`,
:mod:`~anabranch.engines.fleet_attempt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from anabranch.dialects.grammar import Flavour
from anabranch.engines.base import Call, Capabilities, Chunk, Engine, Tokenizer, find_grammar
from anabranch.engines.failures import UnreachableError
from anabranch.engines.fleet_attempt import Attempt, Hedging, Race
from anabranch.engines.fleet_pool import Check, Pool
from anabranch.engines.fleet_replicas import (
    Health,
    Replica,
    ReplicaStatistics,
    check,
    may_go_elsewhere,
    name_replicas,
    weakest,
)
from anabranch.engines.fleet_routing import Routing
from anabranch.errors import EngineError, UsageError

__all__ = ["FleetEngine", "FleetStatistics", "Health", "Hedging", "ReplicaStatistics", "Routing"]

_SAMPLE = "1 + 2 = 3\n<Parallel> a </Parallel>"


@dataclass(frozen=True, slots=True)
class FleetStatistics:
    """What a fleet has done since it was made.

    Attributes:
        waiting: calls in the queue now.
        failovers: calls that failed on a replica before a token came and went to another.
        broken: calls that failed in the middle of their output; the caller may repeat them.
        hedges: second copies sent; ``hedges_won`` those that were first.
    """

    replicas: tuple[ReplicaStatistics, ...]
    waiting: int
    failovers: int
    broken: int
    hedges: int
    hedges_won: int


class FleetEngine:
    """The fleet.

    It opens its replicas at the first call that meets them; :meth:`open` does it earlier, and
    says which are there. Replicas that speak HTTP are best made with ``Retries(attempts=0)``: a
    replica's own retries come before the fleet looks elsewhere.

    Args:
        replicas: engines that serve the same model.
        routing: which replica takes a call.
        limit: most calls that one replica gets at once: a number for all, one for each, or None.
            When all are full, calls wait in a queue, first come, first served.
        health: when a replica is ejected and how it returns.
        hedging: a second copy for calls whose first token is late; None for none.
        check: how an ejected replica is asked for a sign of life.

    Raises:
        UsageError: there is no replica, a limit is below 1, or the tokenizers differ.
    """

    def __init__(
        self,
        replicas: Sequence[Engine],
        *,
        routing: Routing = "affinity",
        limit: int | Sequence[int | None] | None = None,
        health: Health | None = None,
        hedging: Hedging | None = None,
        check: Check = check,
        name: str = "fleet",
    ) -> None:
        if not replicas:
            raise UsageError("a fleet needs at least one replica")
        limits = _limits(limit, len(replicas))
        names = name_replicas(replicas)
        self._members = [
            Replica(engine, name, most)
            for engine, name, most in zip(replicas, names, limits, strict=True)
        ]
        self.name = name
        self.model = replicas[0].model
        self.tokenizer: Tokenizer = replicas[0].tokenizer
        self._same_tokenizer()
        self._pool = Pool(self._members, routing, health or Health(), check)
        self._hedging = hedging
        self._failovers = self._broken = self._hedges = self._hedges_won = 0

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Its replicas, as they were given."""
        return tuple(member.engine for member in self._members)

    @property
    def capabilities(self) -> Capabilities:
        """What all replicas can do; the window is the smallest."""
        found = weakest(self._members)
        models = sorted({member.engine.model for member in self._members if member.engine.model})
        if len(models) > 1:
            note = f"the replicas name their model differently: {', '.join(models)}"
            found = replace(found, notes=(*found.notes, note))
        return found

    def statistics(self) -> FleetStatistics:
        """The numbers now, for the fleet and for each replica."""
        return FleetStatistics(
            tuple(member.statistics() for member in self._members),
            self._pool.waiting,
            self._failovers,
            self._broken,
            self._hedges,
            self._hedges_won,
        )

    async def open(self) -> FleetEngine:
        """Opens all replicas. Those that cannot be reached are ejected, and probed from now on.

        Raises:
            EngineError: none can be reached, or one is not what it should be.
        """
        results = await asyncio.gather(
            *(_open(member.engine) for member in self._members), return_exceptions=True
        )
        errors: list[BaseException] = [r for r in results if isinstance(r, BaseException)]
        away = [error for error in errors if isinstance(error, UnreachableError)]
        if len(away) < len(errors) or len(away) == len(self._members):
            await self.close()
            raise next((error for error in errors if error not in away), errors[0])
        for member, result in zip(self._members, results, strict=True):
            if isinstance(result, UnreachableError):
                member.last_error = str(result)
                self._pool.eject(member)
        self._name_model()
        return self

    async def close(self) -> None:
        """Ends all probes and closes all replicas."""
        await self._pool.close()
        await asyncio.gather(*(member.engine.close() for member in self._members))

    async def __aenter__(self) -> FleetEngine:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def find_grammar(self) -> Flavour | None:
        """The flavour of grammar that all replicas take; None if they differ."""
        engines = [member.engine for member in self._members]
        found = await asyncio.gather(*(find_grammar(engine) for engine in engines))
        return found[0] if len(set(found)) == 1 else None

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams one call from the replica that takes it."""
        attempt, chunk = await self._start(call)
        try:
            while chunk.finish is None:
                yield chunk
                chunk = await attempt.next()
            # Before the last chunk: many a caller leaves right behind it.
            await attempt.close()
            yield chunk
        except EngineError:
            self._broken += 1
            raise
        finally:
            await attempt.close()

    async def _start(self, call: Call) -> tuple[Attempt, Chunk]:
        """The first chunk, from whichever replica gives one."""
        tried: set[Replica] = set()
        last: EngineError | None = None
        while True:
            replica = await self._pool.acquire(call, tried)
            if replica is None:
                assert last is not None
                raise last
            self._failovers += last is not None
            race = Race(self._pool, call, tried)
            try:
                started = await race.run(Attempt(self._pool, replica, call), self._hedging)
            except EngineError as error:
                if not may_go_elsewhere(error):
                    raise
                last = error
            else:
                self._name_model()
                return started
            finally:
                self._hedges += race.hedged
                self._hedges_won += race.won

    def _name_model(self) -> None:
        if not self.model:
            self.model = next((m.engine.model for m in self._members if m.engine.model), "")

    def _same_tokenizer(self) -> None:
        ours = self.tokenizer
        for member in self._members[1:]:
            theirs = member.engine.tokenizer
            if theirs is ours:
                continue
            if theirs.encode(_SAMPLE) != ours.encode(_SAMPLE) or theirs.eos_ids != ours.eos_ids:
                raise UsageError(
                    f"{self._members[0].name} and {member.name} have different tokenizers: "
                    "all replicas of a fleet must serve the same model"
                )


def _limits(limit: int | Sequence[int | None] | None, number: int) -> list[int | None]:
    limits = [limit] * number if limit is None or isinstance(limit, int) else list(limit)
    if len(limits) != number:
        raise UsageError(f"{len(limits)} limits were given for {number} replicas")
    if any(most is not None and most < 1 for most in limits):
        raise UsageError("a replica's limit must be at least 1")
    return limits


async def _open(engine: Engine) -> None:
    opening = getattr(engine, "open", None)
    if opening is not None:
        await opening()
