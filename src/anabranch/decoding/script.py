"""A text becomes a trajectory by running the decoding machine over it.

What the runtime would force is forced, every segment is encoded on its own as decoding would, and
cancelled branches end where a race in lockstep would have ended them: training data and decoding
agree by construction. The text must be canonical (:func:`anabranch.dialects.write`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count

from anabranch.decoding.events import Cancel, Output, Start, Wake
from anabranch.decoding.machine import Machine
from anabranch.decoding.setup import Setup
from anabranch.dialects import Dialect
from anabranch.engines.base import Chunk
from anabranch.errors import DialectError
from anabranch.records import Trajectory


@dataclass(slots=True)
class _Strand:
    """The text of the main line or of one branch: what is still to be handed out of it.

    ``numbers`` are those of the branches it stands in, its own last; ``block`` is the path of the
    block it hangs in.
    """

    at: int
    end: int
    block: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    blocks: int = 0


class Script:
    """Hands out the pieces of a canonical text in the order in which the machine asks for them.

    A block inside a branch is a fork where the call may stop at its fork tag, and text where not.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text, self.dialect = text, dialect
        self._strands: dict[tuple[tuple[int, ...], int | None], _Strand] = {
            ((), None): _Strand(0, len(text))
        }
        self._width = 0

    def piece(self, start: Start) -> tuple[str, str | None]:
        """The text that this call is to sample, and the stop string that it ends with."""
        dialect = self.dialect
        if start.kind == "merge":
            strand = self._around(start.block)
            piece, strand.at = self._until(dialect.merge_stop, strand.at)
            strand.at = self._skip(dialect.after_merge, strand.at)
            return piece, dialect.merge_stop
        strand = self._strands[start.block, start.branch]
        fork = self.text.find(dialect.fork_tag, strand.at, strand.end)
        if fork < 0 or dialect.fork_tag not in start.call.stop:
            piece, strand.at = self.text[strand.at : strand.end], strand.end
            return piece, None if start.kind == "main" else dialect.branch_stop
        piece, strand.at = self._until(dialect.fork_tag, strand.at)
        self._open(strand)
        return piece, dialect.fork_tag

    def width(self) -> int:
        """Branches of the block that is about to open."""
        return self._width

    def _around(self, block: tuple[int, ...]) -> _Strand:
        """The strand that a block stands in."""
        return self._strands[block[:-2], block[-2]] if len(block) > 1 else self._strands[(), None]

    def _open(self, strand: _Strand) -> None:
        """Take the branches behind a fork tag as strands; the strand goes on behind their join."""
        spans, strand.at = self._branches(strand.at, strand.numbers)
        strand.blocks += 1
        path = (*strand.block, *strand.numbers[-1:], strand.blocks)
        for number, (at, end) in enumerate(spans, start=1):
            self._strands[path, number] = _Strand(at, end, path, (*strand.numbers, number))
        self._width = len(spans)

    def _branches(self, at: int, numbers: tuple[int, ...]) -> tuple[list[tuple[int, int]], int]:
        """Where each branch begins and ends, from a fork tag on, and where the join ends."""
        dialect = self.dialect
        at = self._skip(dialect.fork_text, at)
        found: list[tuple[int, int]] = []
        header = dialect.branch_header(1, numbers)
        while self.text.startswith(header, at):
            start = at + len(header)
            at = self._branch_end(start, (*numbers, len(found) + 1))
            found.append((start, at))
            header = dialect.branch_header(len(found) + 1, numbers)
            if self.text.startswith(dialect.branch_separator + header, at):
                at += len(dialect.branch_separator)
        if not found:
            raise DialectError(f"character {at}: branch 1 is missing or not canonical")
        return found, self._skip(dialect.join_text(), at)

    def _branch_end(self, at: int, numbers: tuple[int, ...]) -> int:
        dialect = self.dialect
        while True:
            end = self._until(dialect.branch_stop, at)[1]
            fork = self.text.find(dialect.fork_tag, at, end) if dialect.nesting else -1
            if fork < 0:
                return end
            at = self._branches(fork + len(dialect.fork_tag), numbers)[1]
            if dialect.merge_stop:
                at = self._skip(dialect.after_merge, self._until(dialect.merge_stop, at)[1])

    def _until(self, stop: str | None, at: int) -> tuple[str, int]:
        assert stop is not None
        end = self.text.find(stop, at)
        if end < 0:
            raise DialectError(f"character {at}: {stop} is missing")
        return self.text[at : end + len(stop)], end + len(stop)

    def _skip(self, expected: str, at: int) -> int:
        if not self.text.startswith(expected, at):
            found = self.text[at : at + len(expected)]
            raise DialectError(f"character {at}: {expected!r} is expected, not {found!r}")
        return at + len(expected)


def trajectory_from_text(
    text: str, setup: Setup, *, end: bool = True, first: int | None = None, pace: float = 0.0
) -> Trajectory:
    """Run the machine over a canonical text.

    Args:
        text: everything behind the prompt.
        setup: as for decoding; blocks inside branches are forks down to ``limits.max_depth``.
            Under a join policy other than ``all`` the branches advance in lockstep, a token a
            round, and the policy ends losers as in a race. A text has no log-probs, so a policy
            that goes by them waits for all branches.
        end: whether the text is complete; then an end-of-text token is sampled behind it.
        first: number of a branch that closes before its siblings begin, instead of lockstep: with
            a policy of one's own any set of siblings can so be cancelled.
        pace: seconds that a token takes in lockstep, for policies that go by time.

    Raises:
        DialectError: the text is not canonical; the message has the character's offset.
    """
    script = Script(text, setup.dialect)
    # A dialect without a plan opens as many branches as the text has.
    machine = Machine(replace(setup, width=script.width))
    lockstep = setup.policy.name != "all" and first is None
    # What happens next, by time and then by turn; a request without chunks is a time to wake.
    agenda: list[tuple[float, int, int, deque[Chunk]]] = []
    turns = count()

    def take(outputs: list[Output], now: float) -> None:
        for output in outputs:
            if isinstance(output, Start):
                piece, stop = script.piece(output)
                ahead = output.branch is not None and output.branch == first
                turn = -next(turns) if ahead else next(turns)
                chunks = _chunks(piece, stop, setup, lockstep, end)
                heappush(agenda, (now + pace, turn, output.request, chunks))
            elif isinstance(output, Wake):
                heappush(agenda, (output.at, next(turns), -1, deque()))
            elif isinstance(output, Cancel):
                agenda[:] = [item for item in agenda if item[2] != output.request]
                heapify(agenda)

    take(machine.start(), 0.0)
    while not machine.done:
        now, turn, request, chunks = heappop(agenda)
        if not chunks:
            take(machine.wake(now), now)
            continue
        chunk = chunks.popleft()
        if chunks:
            heappush(agenda, (now + pace, next(turns) if lockstep else turn, request, chunks))
        take(machine.feed(request, chunk, now), now)
    assert machine.trajectory is not None
    return machine.trajectory


def _chunks(piece: str, stop: str | None, setup: Setup, lockstep: bool, end: bool) -> deque[Chunk]:
    tokenizer = setup.tokenizer
    ids = tuple(tokenizer.encode(piece))
    if stop is None and end and tokenizer.eos_ids:
        ids = (*ids, min(tokenizer.eos_ids))
        last = Chunk((ids[-1],), "", None, "eos")
        ids = ids[:-1]
    else:
        last = Chunk((), "", None, "stop" if stop else "eos", stop)
    if not lockstep:
        return deque([Chunk(ids, piece), last])
    steps = [Chunk((token,), tokenizer.decode([token])) for token in ids]
    if stop is None or not steps:
        return deque([*steps, last])
    final = steps.pop()
    return deque([*steps, Chunk(final.ids, final.text, None, "stop", stop)])
