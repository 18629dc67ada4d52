"""One replica of a fleet as the fleet sees it: its limit, its health, what it has done so far.

Plain state and pure functions. Which replica takes a call is decided in
:mod:`anabranch.engines.fleet_routing`; who waits, and when an ejected one is probed, in
:mod:`anabranch.engines.fleet_pool`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from anabranch.engines.base import Call, Capabilities, Engine
from anabranch.engines.failures import StatusError, UnreachableError
from anabranch.engines.retry import BUSY
from anabranch.errors import ContextWindowError, EngineError


@dataclass(frozen=True, slots=True)
class Health:
    """When a replica leaves the fleet, and how it comes back. Times are in seconds.

    Attributes:
        failures: failed calls in a row that eject a replica. A broken connection or an unreachable
            server ejects at once; a refusal that is the request's own fault never counts.
        backoff: until the first check of an ejected replica; doubled each time up to ``longest``.
        timeout: that one check may take.
        patience: that calls wait while no replica is left at all.
    """

    failures: int = 3
    backoff: float = 0.5
    longest: float = 30.0
    timeout: float = 5.0
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """What one replica has done since the fleet was made.

    Attributes:
        healthy: whether it takes calls now.
        running: calls in flight now; ``peak`` the most so far.
        calls: calls sent to it: ``finished``, ``failed``, ``left`` by the caller, or running.
        tokens: that arrived from it; ``lost_tokens`` those of a copy that lost the race.
        prompt_tokens, cached_tokens: of finished calls, where the engine tells.
        ejections, probes: how often it left the fleet, and was checked while away.
        last_error: the last failure, None so far.
    """

    name: str
    healthy: bool
    running: int
    peak: int
    calls: int
    finished: int
    failed: int
    left: int
    tokens: int
    lost_tokens: int
    prompt_tokens: int
    cached_tokens: int
    ejections: int
    probes: int
    last_error: str | None


class Replica:
    """An engine and the fleet's book about it; see :class:`ReplicaStatistics` for the numbers.

    Attributes:
        limit: most calls at once, None for no limit.
        keys: calls in flight by affinity key.
        row: failures since the last success.
    """

    def __init__(self, engine: Engine, name: str, limit: int | None) -> None:
        self.engine, self.name, self.limit = engine, name, limit
        self.healthy = True
        self.running = self.peak = self.calls = self.finished = self.failed = self.left = 0
        self.tokens = self.lost_tokens = self.prompt_tokens = self.cached_tokens = 0
        self.ejections = self.probes = self.row = 0
        self.last_error: str | None = None
        self.keys: Counter[str] = Counter()

    @property
    def free(self) -> bool:
        """Whether it can take a call now."""
        return self.healthy and (self.limit is None or self.running < self.limit)

    def begin(self, key: str) -> None:
        """A call goes to this replica."""
        self.calls += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.keys[key] += 1

    def end(self, key: str) -> None:
        """A call has left this replica, however it ended."""
        self.running -= 1
        self.keys[key] -= 1
        if not self.keys[key]:
            del self.keys[key]

    def statistics(self) -> ReplicaStatistics:
        """The numbers now."""
        names = ReplicaStatistics.__dataclass_fields__
        return ReplicaStatistics(**{name: getattr(self, name) for name in names})


def name_replicas(engines: Sequence[Engine]) -> list[str]:
    """The engines' names; those that share one get a number behind it."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for engine in engines:
        seen[engine.name] += 1
        number = seen[engine.name]
        names.append(engine.name if number == 1 else f"{engine.name}#{number}")
    return names


def weakest(replicas: Iterable[Replica]) -> Capabilities:
    """What every replica can do: a call must fit whichever takes it."""
    each = [(replica.name, replica.engine.capabilities) for replica in replicas]
    windows = [found.window for _, found in each if found.window is not None]
    return Capabilities(
        ids_in=all(found.ids_in for _, found in each),
        ids_out=all(found.ids_out for _, found in each),
        logprobs=all(found.logprobs for _, found in each),
        include_stop=all(found.include_stop for _, found in each),
        prefix_cache=all(found.prefix_cache for _, found in each),
        window=min(windows, default=None),
        grammar=each[0][1].grammar if len({f.grammar for _, f in each}) == 1 else None,
        notes=tuple(f"{name}: {note}" for name, found in each for note in found.notes),
    )


def blames_replica(error: EngineError) -> bool:
    """Whether a failure says something about the replica, and not about the request."""
    if isinstance(error, ContextWindowError):
        return False
    return not (isinstance(error, StatusError) and 400 <= error.status < 500)


def may_go_elsewhere(error: EngineError) -> bool:
    """Whether a call that has produced nothing may be made on another replica."""
    if error.retryable or isinstance(error, UnreachableError):
        return True
    return isinstance(error, StatusError) and error.status in BUSY


async def check(engine: Engine) -> None:
    """Asks an engine for a sign of life: its own ``check`` where it has one, else one token.

    Raises:
        Exception: it gave none.
    """
    own = getattr(engine, "check", None)
    if own is not None:
        await own()
        return
    start = engine.tokenizer.bos_id
    ids = (start,) if start is not None else tuple(engine.tokenizer.encode("1")[:1])
    async with aclosing(engine.generate(Call(ids, (), max_tokens=1, logprobs=False))) as chunks:
        async for _ in chunks:
            return
