"""Who takes a call and who waits: slots, a first-come queue, ejection, probing, return.

Belongs to one event loop at a time. What a call does with its replica is
:mod:`anabranch.engines.fleet_attempt`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from anabranch.engines.base import Call, Engine
from anabranch.engines.failures import UnreachableError
from anabranch.engines.fleet_replicas import Health, Replica, blames_replica
from anabranch.engines.fleet_routing import Routing, choose
from anabranch.errors import EngineError

Check = Callable[[Engine], Awaitable[None]]

#: Prompts remembered for having failed in the middle of their output.
_REMEMBERED = 1024


@dataclass(eq=False, slots=True)
class _Waiter:
    call: Call
    tried: Collection[Replica]
    future: asyncio.Future[Replica | None]


class Pool:
    """The replicas of one fleet.

    Attributes:
        replicas: all of them, also ejected ones.
        waiting: calls in the queue.
    """

    def __init__(
        self, replicas: Sequence[Replica], routing: Routing, health: Health, check: Check
    ) -> None:
        self.replicas = tuple(replicas)
        self._routing, self._health, self._check = routing, health, check
        self._waiters: dict[_Waiter, None] = {}
        self._probes: dict[Replica, asyncio.Task[None]] = {}
        self._end: asyncio.TimerHandle | None = None
        self._shunned: OrderedDict[int, Replica] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def acquire(self, call: Call, tried: Collection[Replica] = ()) -> Replica | None:
        """A slot on a replica, waited for if all are full; first come, first served.

        Args:
            tried: replicas on which the call has failed.

        Returns:
            the replica; None if the call has tried all that are there.

        Raises:
            EngineError: no replica was there for as long as the patience lasts.
        """
        self._keep_probing()
        replica = self.take(call, tried)
        if replica is not None or self._exhausted(tried):
            return replica
        waiter = _Waiter(call, tried, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        self._watch()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if future.done() and not future.cancelled() and not future.exception():
                given = future.result()  # given and cancelled in the same step
                if given is not None:
                    self.release(given, call)
            raise
        finally:
            self._waiters.pop(waiter, None)

    def take(self, call: Call, tried: Collection[Replica] = ()) -> Replica | None:
        """A slot that is free now, None if there is none."""
        free = [replica for replica in self.replicas if replica.free and replica not in tried]
        if self._shunned and len(free) > 1:
            shunned = self._shunned.pop(hash(call.ids), None)
            free = [replica for replica in free if replica is not shunned]
        replica = choose(self._routing, call.affinity, free)
        if replica is not None:
            replica.begin(call.affinity)
        return replica

    def release(self, replica: Replica, call: Call) -> None:
        """Gives a slot back, to the first in the queue that may use it."""
        replica.end(call.affinity)
        self._serve()

    def worked(self, replica: Replica) -> None:
        """A call ended well."""
        replica.row = 0

    def failed(self, replica: Replica, error: EngineError, call: Call, begun: bool) -> None:
        """A call failed; ``begun`` if it had given output.

        The same prompt is kept away from this replica once: the caller's retry goes elsewhere.
        """
        replica.last_error = str(error)
        if begun:
            self._shunned[hash(call.ids)] = replica
            if len(self._shunned) > _REMEMBERED:
                self._shunned.popitem(last=False)
        if not blames_replica(error):
            return
        replica.row += 1
        if isinstance(error, UnreachableError) or replica.row >= self._health.failures:
            self.eject(replica)

    def eject(self, replica: Replica) -> None:
        """Takes a replica out of the fleet until a check succeeds; its running calls go on."""
        if not replica.healthy:
            return
        replica.healthy = False
        replica.ejections += 1
        self._keep_probing()
        for waiter in self._waiters:
            if self._exhausted(waiter.tried) and not waiter.future.done():
                waiter.future.set_result(None)
        self._watch()

    async def close(self) -> None:
        """Ends all probes; calls in the queue end with an error."""
        probes = list(self._probes.values())
        self._probes.clear()
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        self._stop_watching()
        self._refuse("the fleet was closed")

    def _exhausted(self, tried: Collection[Replica]) -> bool:
        return bool(tried) and all(r in tried for r in self.replicas if r.healthy)

    def _serve(self) -> None:
        for waiter in list(self._waiters):
            if not any(replica.free for replica in self.replicas):
                return
            if waiter.future.done():
                continue
            replica = self.take(waiter.call, waiter.tried)
            if replica is not None:
                self._waiters.pop(waiter, None)
                waiter.future.set_result(replica)

    def _keep_probing(self) -> None:
        """Every ejected replica has a probe, also when the event loop is another than before."""
        loop = asyncio.get_running_loop()
        for replica in self.replicas:
            if replica.healthy:
                continue
            probe = self._probes.get(replica)
            if probe is None or probe.done() or probe.get_loop() is not loop:
                self._probes[replica] = loop.create_task(self._probe(replica))

    async def _probe(self, replica: Replica) -> None:
        wait = self._health.backoff
        while True:
            await asyncio.sleep(wait)
            replica.probes += 1
            try:
                async with asyncio.timeout(self._health.timeout):
                    await self._check(replica.engine)
            except Exception as error:  # whatever it is, the replica is not back
                replica.last_error = str(error) or type(error).__name__
                wait = min(self._health.longest, wait * 2)
            else:
                break
        self._probes.pop(replica, None)
        replica.healthy, replica.row = True, 0
        self._stop_watching()
        self._serve()

    def _watch(self) -> None:
        """Starts the clock of the patience if calls wait and no replica is there."""
        if self._waiters and self._end is None and not any(r.healthy for r in self.replicas):
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(self._health.patience, self._give_up)

    def _stop_watching(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _give_up(self) -> None:
        self._end = None
        reasons = "; ".join(f"{r.name}: {r.last_error}" for r in self.replicas)
        self._refuse(f"no replica was there for {self._health.patience:g} s ({reasons})")

    def _refuse(self, why: str) -> None:
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(EngineError(why))
