"""A trajectory as a river: lanes of pieces that fork and join, ready to be drawn.

Only structure is here, in tokens and in seconds; where it lies on the screen is the page's matter.
A lane's length in tokens is the critical path that :mod:`anabranch.metrics` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anabranch.dialects import Block as DocumentBlock
from anabranch.dialects import Dialect, Document, TextPart, get_dialect
from anabranch.dialects.writer import opening
from anabranch.errors import DialectError
from anabranch.records import Block, Branch, Request, Trajectory

#: The text of each of some token ids, as long as the ids.
Spell = Callable[[Sequence[int]], list[str]]


@dataclass(slots=True)
class Piece:
    """A run of one lane.

    Attributes:
        kind: ``text``, ``plan``, ``merge``, or ``forced`` for what the runtime wrote.
        text: as written.
        size: sampled tokens (of the counter given, for texts); 0 for forced pieces.
        wait: seconds between the end of what came before it and its own start.
        seconds: how long it took, where known.
        finish: how the request ended; None where the piece is not the end of one.
        attempt: 0, or how often it had been sent before.
        mean: mean log-prob of its tokens, where known.
        tokens: ``(text, log-prob)`` of each token, where the tokens can be spelt.
    """

    kind: str
    text: str
    size: int = 0
    wait: float = 0.0
    seconds: float | None = None
    finish: str | None = None
    attempt: int = 0
    mean: float | None = None
    tokens: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Fork:
    """A block: its lanes, and what is written after them."""

    path: tuple[int, ...]
    policy: str
    outcome: str
    lanes: list[Lane] = field(default_factory=list)


@dataclass(slots=True)
class Lane:
    """The main line (number 0) or one branch: pieces and forks in order."""

    number: int
    kind: str
    title: str
    outcome: str
    items: list[Piece | Fork] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens from its start to its end, along the longest lane of every fork."""
        return sum(
            item.size
            if isinstance(item, Piece)
            else max((lane.length for lane in item.lanes), default=0)
            for item in self.items
        )


def river_of_trajectory(trajectory: Trajectory, spell: Spell | None = None) -> Lane:
    """The main lane of a record.

    Args:
        trajectory: finished or not.
        spell: texts of single tokens, for shading by log-prob; without it pieces carry a mean only.
    """
    return _Reader(trajectory, spell).main()


class _Reader:
    def __init__(self, trajectory: Trajectory, spell: Spell | None) -> None:
        self.trajectory = trajectory
        self.spell = spell
        self.blocks: dict[int, list[Block]] = {}
        for block in trajectory.blocks:
            self.blocks.setdefault(block.opener, []).append(block)
        try:
            self.begin: str | None = get_dialect(trajectory.dialect).block_begin
        except DialectError:
            self.begin = None

    def main(self) -> Lane:
        trajectory = self.trajectory
        requests = [n for n, r in enumerate(trajectory.requests) if r.kind == "main"]
        lane = Lane(0, "main", "", trajectory.outcome)
        seen = {i for i, s in enumerate(trajectory.segments) if s.origin == "prompt"}
        self._fill(lane, requests, seen, 0.0)
        self._forced(lane, trajectory.final, seen)
        return lane

    def _fill(self, lane: Lane, requests: Sequence[int], seen: set[int], clock: float) -> None:
        """Add the requests of a lane, and the forks that they open, in order."""
        for number in requests:
            request = self.trajectory.requests[number]
            self._forced(lane, request.context, seen)
            clock = self._sampled(lane, number, request, clock)
            seen.add(request.output)
            for block in self.blocks.get(number, ()):
                clock = self._fork(lane, block, seen, clock)

    def _fork(self, lane: Lane, block: Block, seen: set[int], clock: float) -> float:
        fork = Fork(block.path, block.policy, block.outcome)
        inside: set[int] = set()
        for branch in block.branches:
            one, known = self._branch(block, branch, set(seen), clock)
            fork.lanes.append(one)
            inside |= known
        lane.items.append(fork)
        seen |= inside
        ends = [
            r.finished for r in self.trajectory.requests if r.finished and self._within(r, block)
        ]
        clock = max([clock, *ends])
        if block.merge is not None:
            request = self.trajectory.requests[block.merge]
            self._forced(lane, request.context, seen)
            clock = self._sampled(lane, block.merge, request, clock)
            seen.add(request.output)
        return clock

    def _branch(
        self, block: Block, branch: Branch, seen: set[int], clock: float
    ) -> tuple[Lane, set[int]]:
        lane = Lane(branch.number, branch.kind, branch.title, branch.outcome)
        before = set(seen)
        self._fill(lane, branch.requests, seen, clock)
        return lane, seen - before

    @staticmethod
    def _within(request: Request, block: Block) -> bool:
        return request.kind == "branch" and request.block[: len(block.path)] == block.path

    def _forced(self, lane: Lane, context: Sequence[int], seen: set[int]) -> None:
        """What the runtime wrote into the lane since its last piece."""
        fresh = [index for index in context if index not in seen]
        segments = [self.trajectory.segments[index] for index in fresh]
        text = "".join(s.text for s in segments if s.origin == "forced")
        seen.update(fresh)
        if text:
            lane.items.append(Piece("forced", text))

    def _sampled(self, lane: Lane, number: int, request: Request, clock: float) -> float:
        segment = self.trajectory.segments[request.output]
        plan = sum(block.plan_tokens for block in self.blocks.get(number, ()))
        at = segment.text.rfind(self.begin) if plan and self.begin else -1
        texts = [segment.text[:at], segment.text[at:]] if at >= 0 else [segment.text]
        cut = len(segment.ids) - plan if at >= 0 else 0
        parts = [(texts[0], 0, cut), (texts[1], cut, len(segment.ids))] if at >= 0 else []
        whole = (segment.text, 0, len(segment.ids))
        kinds = ["text", "plan"] if at >= 0 else ["plan" if plan else "text"]
        if request.kind == "merge":
            kinds = ["merge"]
        spent = None
        if request.started is not None and request.finished is not None:
            spent = max(0.0, request.finished - request.started)
        first = len(lane.items)
        for kind, (text, start, end) in zip(kinds, parts or [whole], strict=True):
            if start == end and not text:
                continue
            piece = Piece(kind, text, end - start, attempt=request.attempt)
            if spent is not None:
                piece.seconds = spent * (end - start) / max(1, len(segment.ids))
            self._shade(piece, segment.ids[start:end], segment.logprobs, start, end)
            lane.items.append(piece)
        if len(lane.items) > first:
            begun, last = lane.items[first], lane.items[-1]
            assert isinstance(begun, Piece) and isinstance(last, Piece)
            begun.wait = max(0.0, (request.started or clock) - clock)
            last.finish = request.finish
        return request.finished if request.finished is not None else clock

    def _shade(
        self,
        piece: Piece,
        ids: Sequence[int],
        logprobs: Sequence[float] | None,
        start: int,
        end: int,
    ) -> None:
        if not logprobs or start == end:
            return
        values = logprobs[start:end]
        piece.mean = sum(values) / len(values)
        if self.spell is not None:
            piece.tokens = list(zip(self.spell(ids), values, strict=True))


def river_of_document(document: Document, dialect: Dialect, count: Callable[[str], int]) -> Lane:
    """The main lane of a text that was read with :func:`anabranch.dialects.parse`.

    Args:
        document: what was read.
        dialect: of the text.
        count: how long a piece of text is, in tokens or words.
    """
    lane = Lane(0, "main", "", "well formed" if document.well_formed else "malformed")
    _fill_text(lane, document.parts, dialect, count, (), ())
    return lane


def _fill_text(
    lane: Lane,
    parts: Sequence[TextPart | DocumentBlock],
    dialect: Dialect,
    count: Callable[[str], int],
    owner: tuple[int, ...],
    path: tuple[int, ...],
) -> None:
    ordinal = 0
    for part in parts:
        if isinstance(part, TextPart):
            if part.text.strip():
                lane.items.append(Piece("text", part.text, count(part.text)))
            continue
        ordinal += 1
        here = (*path, ordinal)
        head = opening(part, dialect, owner)
        lane.items.append(Piece("plan", head, count(head)))
        titles = {item.number: item.title for item in part.plan}
        fork = Fork(here, "", "read")
        for branch in part.branches:
            outcome = "closed" if branch.closed else "unclosed"
            one = Lane(branch.number, branch.kind, titles.get(branch.number, ""), outcome)
            inner = branch.parts or [TextPart(branch.text)]
            _fill_text(one, inner, dialect, count, (*owner, branch.number), (*here, branch.number))
            fork.lanes.append(one)
        lane.items.append(fork)
        if part.merge is not None:
            lane.items.append(Piece("merge", part.merge, count(part.merge)))
