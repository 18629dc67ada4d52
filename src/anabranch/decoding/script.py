"""A text becomes a trajectory by running the decoding machine over it.

What the runtime would force is forced, every segment is encoded on its own as decoding would, and
cancelled branches end where a race in lockstep would have ended them: training data and decoding
agree by construction. The text must be canonical (:func:`anabranch.dialects.write`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from anabranch.decoding.events import Cancel, Output, Start
from anabranch.decoding.machine import Machine
from anabranch.decoding.setup import Setup
from anabranch.dialects import Dialect
from anabranch.engines.base import Chunk
from anabranch.errors import DialectError
from anabranch.records import Trajectory


class Script:
    """Hands out the pieces of a canonical text in the order in which the machine asks for them.

    Nested blocks are left out.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text, self.dialect, self.at = text, dialect, 0
        self._branches: dict[tuple[int, ...], dict[int, str]] = {}
        self._blocks = 0

    def piece(self, start: Start) -> tuple[str, str | None]:
        """The text that this call is to sample, and the stop string that it ends with."""
        if start.kind == "branch":
            assert start.branch is not None
            return self._branches[start.block][start.branch], self.dialect.branch_stop
        if start.kind == "merge":
            return self._until(self.dialect.merge_stop), self.dialect.merge_stop
        end = self.text.find(self.dialect.fork_tag, self.at)
        if end < 0 or self.dialect.fork_tag not in start.call.stop:
            rest, self.at = self.text[self.at :], len(self.text)
            return rest, None
        piece = self._until(self.dialect.fork_tag)
        self._read_branches()
        return piece, self.dialect.fork_tag

    def _until(self, stop: str | None) -> str:
        assert stop is not None
        end = self.text.find(stop, self.at)
        if end < 0:
            raise DialectError(f"character {self.at}: {stop} is missing")
        piece = self.text[self.at : end + len(stop)]
        self.at = end + len(stop)
        return piece

    def _read_branches(self) -> None:
        dialect = self.dialect
        self._skip(dialect.fork_text)
        self._blocks += 1
        found: dict[int, str] = {}
        number = 1
        while self.text.startswith(dialect.branch_header(number), self.at):
            self._skip(dialect.branch_header(number))
            found[number] = self._until(dialect.branch_stop)
            number += 1
            separator = dialect.branch_separator
            if self.text.startswith(separator + dialect.branch_header(number), self.at):
                self._skip(separator)
        if not found:
            raise DialectError(f"character {self.at}: branch 1 is missing or not canonical")
        self._skip(dialect.join_text())
        self._branches[(self._blocks,)] = found

    def width(self) -> int:
        """Branches of the block that is about to open."""
        return len(self._branches[(self._blocks,)])

    def _skip(self, expected: str) -> None:
        if not self.text.startswith(expected, self.at):
            found = self.text[self.at : self.at + len(expected)]
            raise DialectError(f"character {self.at}: {expected!r} is expected, not {found!r}")
        self.at += len(expected)


def trajectory_from_text(
    text: str, setup: Setup, *, end: bool = True, first: int | None = None
) -> Trajectory:
    """Run the machine over a canonical text.

    Args:
        text: everything behind the prompt.
        setup: as for decoding. Under a join policy other than ``all`` the branches advance in
            lockstep, a token a round, and the policy cancels losers as in a race.
        end: whether the text is complete; then an end-of-text token is sampled behind it.
        first: number of a branch that closes before its siblings begin, instead of lockstep: with
            a policy of one's own any set of siblings can so be cancelled.

    Raises:
        DialectError: the text is not canonical; the message has the character's offset.
    """
    script = Script(text, setup.dialect)
    # A dialect without a plan opens as many branches as the text has.
    machine = Machine(replace(setup, width=script.width))
    lockstep = setup.policy.name != "all" and first is None
    running: deque[tuple[int, deque[Chunk]]] = deque()

    def take(outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Start):
                piece, stop = script.piece(output)
                item = (output.request, _chunks(piece, stop, setup, lockstep, end))
                if output.branch is not None and output.branch == first:
                    running.appendleft(item)
                else:
                    running.append(item)
            elif isinstance(output, Cancel):
                kept = [item for item in running if item[0] != output.request]
                running.clear()
                running.extend(kept)

    take(machine.start())
    while running:
        request, chunks = running.popleft()
        chunk = chunks.popleft()
        if chunks and lockstep:
            running.append((request, chunks))
        elif chunks:
            running.appendleft((request, chunks))
        take(machine.feed(request, chunk))
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
