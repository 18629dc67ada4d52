"""What the fork-join machine says: the calls to make, and the events worth showing.

Plain data only. :class:`Start`, :class:`Cancel` and :class:`Wake` are orders for whoever drives the
machine; all others are :class:`Event` and only inform.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.engines.base import Call
from anabranch.records import RequestKind, Trajectory


@dataclass(frozen=True, slots=True)
class Start:
    """Send this call; feed what comes back under ``request``."""

    request: int
    call: Call
    kind: RequestKind
    block: tuple[int, ...]
    branch: int | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Abort this request in the engine; nothing more is to be fed for it."""

    request: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Call :meth:`Machine.wake` at this time, in seconds since the trajectory began."""

    at: float


@dataclass(frozen=True, slots=True)
class Event:
    """Base of what is only information."""


@dataclass(frozen=True, slots=True)
class Token(Event):
    """New text of one request: ``kind`` is main, branch or merge; ``count`` its sampled tokens."""

    request: int
    kind: RequestKind
    block: tuple[int, ...]
    branch: int | None
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Forced(Event):
    """Text that the runtime wrote into the main line (``branch`` None) or in front of a branch."""

    block: tuple[int, ...]
    branch: int | None
    text: str


@dataclass(frozen=True, slots=True)
class BlockOpened(Event):
    """A fork: ``plan`` holds one ``(number, kind, title)`` per branch."""

    block: tuple[int, ...]
    plan: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, slots=True)
class BranchClosed(Event):
    """A branch ended; ``outcome`` as in :data:`anabranch.records.BranchOutcome`."""

    block: tuple[int, ...]
    branch: int
    outcome: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """A join policy has ended branches: by which others, and why."""

    block: tuple[int, ...]
    winners: tuple[int, ...]
    losers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """All branches that count are in; ``text`` is what the line now holds of the block."""

    block: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class LimitHit(Event):
    """A limit was met: its name as in :class:`anabranch.records.Limits`, and what was done."""

    limit: str
    action: str


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """A deviation was met and handled; also in :attr:`Trajectory.findings`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer(Event):
    """The end: always the last event of a trajectory, whatever its outcome."""

    trajectory: Trajectory


Output = Start | Cancel | Wake | Event
