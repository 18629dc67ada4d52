"""Runs traffic through replicas in virtual time and says what came out.

The traffic is recorded trajectories: each is decoded again by the fork-join machine, which gets the
recorded outputs, each as late as the replica of its profile is done with it. Replicas do not share
work within a trajectory, so a large fleet is simulated by a part of it with its part of the load.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from anabranch.decoding import Setup
from anabranch.decoding.decoder import Source, drive
from anabranch.decoding.events import Start
from anabranch.decoding.width import LoadGate
from anabranch.dialects import get_dialect
from anabranch.engines.base import Chunk
from anabranch.engines.profile import Profile
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import UsageError
from anabranch.planning.queueing import ProfiledReplica, Work
from anabranch.records import Limits, Trajectory

#: Replicas that are really simulated; what is beyond them is a copy of what they do.
SIMULATED = 24

ArmName = Literal["sequential", "fork-join", "load-aware"]


@dataclass(frozen=True)
class Traffic:
    """What arrives.

    Attributes:
        rate: answers asked for per second, at random (Poisson), over all replicas; None: closed
            loop.
        concurrency: in a closed loop, answers in flight over all replicas.
        count: answers per simulated replica.
        seed: of the arrivals.
    """

    rate: float | None = None
    concurrency: int | None = None
    count: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Arm:
    """One way of decoding: its name and the trajectories that it would produce.

    ``room``: for load-aware decoding, calls in a replica from which on further branches wait.
    """

    name: ArmName
    trajectories: Sequence[Trajectory]
    room: int | None = None


@dataclass(frozen=True)
class Figures:
    """What an arm came to on a number of replicas. Seconds; ``cost`` per 1,000 answers."""

    arm: str
    replicas: int
    simulated: int
    answers: int
    p50: float
    p95: float
    p99: float
    mean: float
    answers_per_second: float
    tokens_per_second: float
    utilisation: float
    cost: float | None
    held_back: int = 0
    latencies: tuple[float, ...] = field(default=(), repr=False)


class _Recorded:
    """The tokenizer of a record: texts that the runtime writes, as they were encoded then."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._ids = {s.text: list(s.ids) for s in trajectory.segments}
        self.eos_ids: frozenset[int] = frozenset()
        self.bos_id: int | None = None

    def encode(self, text: str) -> list[int]:
        # Text of a branch that was cut is closed otherwise here: its length is what matters.
        return self._ids.get(text) or [0] * max(1, len(text) // 4)

    def decode(self, ids: Sequence[int]) -> str:
        return ""


class _Outputs:
    """The recorded outputs of one trajectory, by what the machine asks for, in order."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._left: dict[tuple[object, ...], deque[Chunk]] = {}
        for request in trajectory.requests:
            output = trajectory.segments[request.output]
            finish = request.finish if request.finish in ("stop", "eos", "length") else "length"
            chunk = Chunk(output.ids, output.text, None, finish, request.stop)
            key = (request.kind, request.block, request.branch)
            self._left.setdefault(key, deque()).append(chunk)

    def take(self, start: Start) -> Chunk:
        queue = self._left.get((start.kind, start.block, start.branch))
        # A retry in the record that does not happen here, or the other way round, ends the line.
        return queue.popleft() if queue else Chunk((0,), "", None, "length")


def simulate(
    profile: Profile, arm: Arm, traffic: Traffic, replicas: int, price: float | None = None
) -> Figures:
    """Run one arm.

    Args:
        profile: of one replica.
        arm: what is decoded, and how.
        traffic: what arrives; over all replicas.
        replicas: how many there are.
        price: of one replica for an hour.

    Raises:
        UsageError: there is nothing to decode, or the traffic says neither rate nor concurrency.
    """
    if not arm.trajectories:
        raise UsageError(f"{arm.name}: there are no trajectories to plan with")
    if (traffic.rate is None) == (traffic.concurrency is None):
        raise UsageError("name the rate of arrivals or the answers in flight, one of them")
    simulated = min(replicas, SIMULATED)
    if traffic.concurrency is not None and traffic.concurrency < replicas:
        simulated = min(simulated, traffic.concurrency)
    return run_virtual(_run(profile, arm, traffic, replicas, simulated, price))


async def _run(
    profile: Profile, arm: Arm, traffic: Traffic, replicas: int, simulated: int, price: float | None
) -> Figures:
    fleet = [ProfiledReplica(profile) for _ in range(simulated)]
    load = _Load(arm, fleet)
    share = simulated / replicas
    count = traffic.count * simulated
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        if traffic.rate is not None:
            await _open_loop(load, traffic.rate * share, count, traffic.seed)
        else:
            assert traffic.concurrency is not None
            await _closed_loop(load, max(1, round(traffic.concurrency * share)), count)
    finally:
        for replica in fleet:
            await replica.close()
    seconds = loop.time() - began
    latencies = sorted(load.latencies)
    busy = sum(replica.busy for replica in fleet)
    rate = len(latencies) / seconds / share
    return Figures(
        arm=arm.name,
        replicas=replicas,
        simulated=simulated,
        answers=len(latencies),
        p50=_quantile(latencies, 0.50),
        p95=_quantile(latencies, 0.95),
        p99=_quantile(latencies, 0.99),
        mean=fmean(latencies),
        answers_per_second=rate,
        tokens_per_second=sum(replica.sampled for replica in fleet) / seconds / share,
        utilisation=busy / seconds / simulated,
        cost=None if price is None else 1000 * price * replicas / 3600 / rate,
        held_back=load.held,
        latencies=tuple(latencies),
    )


class _Load:
    """Sends each trajectory, with all its calls, to the replica with the fewest of them."""

    def __init__(self, arm: Arm, fleet: Sequence[ProfiledReplica]) -> None:
        self.arm, self.fleet = arm, fleet
        self.latencies: list[float] = []
        self.held = 0
        self._open = dict.fromkeys(range(len(fleet)), 0)

    async def answer(self, number: int) -> None:
        recorded = self.arm.trajectories[number % len(self.arm.trajectories)]
        place = min(self._open, key=lambda one: (self._open[one], self.fleet[one].calls))
        replica = self.fleet[place]
        self._open[place] += 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        gate = None
        if self.arm.room is not None:
            room = self.arm.room
            gate = LoadGate(lambda: room - replica.calls)
        await drive(_setup(recorded, number), _source(recorded, replica, number), gate=gate)
        self._open[place] -= 1
        self.latencies.append(loop.time() - began)
        self.held += gate.held if gate is not None else 0


def _setup(recorded: Trajectory, number: int) -> Setup:
    """As it was recorded, without any limit: the recorded outputs are what ends it."""
    prompt = tuple(i for s in recorded.segments if s.origin == "prompt" for i in s.ids)
    return Setup(
        dialect=get_dialect(recorded.dialect or "threadweaver"),
        tokenizer=_Recorded(recorded),
        prompt=recorded.prompt_text,
        prompt_ids=prompt,
        limits=Limits(max_depth=16, max_branches=1000),
        mode="sequential" if recorded.mode == "sequential" else "parallel",
        logprobs=False,
        retries=0,
        id=f"{recorded.id}/{number}",
    )


def _source(recorded: Trajectory, replica: ProfiledReplica, number: int) -> Source:
    outputs = _Outputs(recorded)
    # Another answer to the same problem is another prompt: nothing of it is in the cache.
    mark = -1 - number

    async def source(start: Start) -> AsyncGenerator[Chunk, None]:
        chunk = outputs.take(start)
        work = Work((mark, *start.call.ids[1:]), max(1, len(chunk.ids)), chunk.ids)
        await replica.serve(work)
        yield replace(chunk, prompt_tokens=len(work.prompt), cached_tokens=work.cached)

    return source


async def _open_loop(load: _Load, rate: float, count: int, seed: int) -> None:
    rng = random.Random(seed)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(rng.expovariate(rate))
            group.create_task(load.answer(number))


async def _closed_loop(load: _Load, concurrency: int, count: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await load.answer(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def _quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values: the smallest that is at least so large as this share of them."""
    return values[min(len(values) - 1, max(0, -(-int(share * 1000 * len(values)) // 1000) - 1))]
