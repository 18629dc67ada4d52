"""A recorded trajectory made again: the machine runs over what was sampled, and is compared.

Proof that a record is complete: what every request saw and sampled comes out once more, joins and
races included, from the sampled segments and the recorded decisions alone. Token limits, clocks
and log-probs decide nothing here; what they decided is read from the record.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

from anabranch.decoding.events import Cancel, Output, Start
from anabranch.decoding.joins import BlockView, Decision, JoinPolicy
from anabranch.decoding.machine import Machine
from anabranch.decoding.setup import Setup
from anabranch.engines.base import Chunk
from anabranch.errors import EngineError, RecordError
from anabranch.records import Limits, Request, Trajectory

_Key = tuple[str, tuple[int, ...], int | None]


@dataclass(frozen=True)
class _AsRecorded(JoinPolicy):
    """Drops the branches that the record says were dropped, once their winners have closed."""

    done: Trajectory
    dropped: dict[tuple[int, ...], list[Decision]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for block in self.done.blocks:
            self.dropped[block.path] = [
                Decision(one.losers, one.winners, one.reason)
                for one in block.decisions
                if not one.keep
            ]

    def decide(self, block: BlockView) -> Decision | None:
        closed = {branch.number for branch in block.closed()}
        losers: tuple[int, ...] = ()
        for one in self.dropped.get(block.path, ()):
            if closed.issuperset(one.winners) and block.ended is not None:
                losers += tuple(n for n in one.losers if n in block.running())
        return Decision(losers) if losers else None


def remake(done: Trajectory, setup: Setup) -> Trajectory:
    """The trajectory that the machine makes of a recorded one.

    Args:
        done: finished, of any policy and outcome but ``cancelled``.
        setup: the one that it was decoded with; its policy and token limits are not used.

    Raises:
        RecordError: what requests saw and sampled differs from the record.
    """
    limits = Limits(
        max_branches=done.limits.max_branches,
        max_blocks=done.limits.max_blocks,
        max_depth=done.limits.max_depth,
        answer_reserve=done.limits.answer_reserve,
        on_exhausted=done.limits.on_exhausted,
        on_refused_fork=done.limits.on_refused_fork,
    )
    tape = _Tape(done)
    made = replace(setup, limits=limits, policy=_AsRecorded(done), window=None, width=tape.width)
    machine = Machine(replace(made, retries=sum(r.finish == "error" for r in done.requests)))
    tape.take(machine.start())
    while tape.waiting and not machine.done:
        tape.step(machine)
    if machine.trajectory is None or _units(machine.trajectory) != _units(done):
        raise RecordError(f"trajectory {done.id!r} cannot be made again from its record")
    return machine.trajectory.model_copy(update={"limits": done.limits})


class _Tape:
    """Recorded requests by the place that they were made at, handed out in order of their end."""

    def __init__(self, done: Trajectory) -> None:
        self.done = done
        self.waiting: list[tuple[tuple[float, bool, int], int, int]] = []
        self._by_key: dict[_Key, deque[int]] = defaultdict(deque)
        self._widths = deque(
            sum(branch.outcome != "skipped" for branch in block.branches)
            for block in sorted(done.blocks, key=lambda block: block.opener)
        )
        for number, request in enumerate(done.requests):
            self._by_key[_key(request)].append(number)
        self._lost = [
            (*block.path, branch.number)
            for block in done.blocks
            for branch in block.branches
            if branch.outcome == "cancelled"
        ]

    def width(self) -> int:
        return self._widths.popleft() if self._widths else 1

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Start):
                known = self._by_key[output.kind, output.block, output.branch]
                if not known:
                    raise RecordError(
                        f"trajectory {self.done.id!r}: a request is not in its record"
                    )
                number = known.popleft()
                self.waiting.append((self._order(number), output.request, number))
            elif isinstance(output, Cancel):
                self.waiting = [item for item in self.waiting if item[1] != output.request]

    def step(self, machine: Machine) -> None:
        """Feed the request that ended first."""
        item = min(self.waiting)
        self.waiting.remove(item)
        _, request, number = item
        recorded = self.done.requests[number]
        output = self.done.segments[recorded.output]
        self.take(machine.feed(request, Chunk(output.ids, output.text, output.logprobs)))
        if recorded.finish == "error":
            again = bool(self._by_key[_key(recorded)])
            error = EngineError(recorded.error or "", retryable=again)
            self.take(machine.fail(request, error))
        elif recorded.finish != "cancelled":
            last = Chunk(finish=recorded.finish, stop=recorded.stop)
            self.take(machine.feed(request, last))

    def _order(self, number: int) -> tuple[float, bool, int]:
        """Losers first, where ends fall together: they had sampled before they were dropped."""
        request = self.done.requests[number]
        place = (*request.block, *((request.branch,) if request.kind == "branch" else ()))
        lost = any(place[: len(one)] == one for one in self._lost)
        if request.finish == "cancelled":
            return (-1.0, False, number)
        return (request.finished or 0.0, not lost, number)


def _key(request: Request) -> _Key:
    return request.kind, request.block, request.branch


def _units(done: Trajectory) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return sorted((unit.context, unit.completion) for unit in done.units())
