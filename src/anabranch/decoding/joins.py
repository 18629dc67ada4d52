"""Join policies: when the branches of a block are enough, and which of them are cancelled.

AND branches (subtasks, outlines) are always waited for. OR branches (trials, paths) may race; a
policy is asked each time one ends, at times that it names, and, if it counts tokens, at every
piece of output. It holds no state and no clock: what it knows is the :class:`BlockView`. Their
names with parameters are read in :mod:`anabranch.decoding.policy_names`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.decoding.judges import Judge, Reader, answer_found, answer_of
from anabranch.records import BranchOutcome, Problem


@dataclass(frozen=True, slots=True)
class BranchView:
    """What a policy sees of a branch.

    Attributes:
        number, kind, title: of its entry in the plan; ``is_or``: one success of its kind is enough.
        outcome: None while it runs; only a ``closed`` one has said all that it wanted to.
        text: what it has written, header left out; of a running one, up to now.
        tokens: sampled in it, retries and blocks inside it included.
        logprob: mean log-prob of its own sampled tokens; None where the engine gave none.
        seconds: from the block's start to its end, or to now.
        problem: as the setup names it.
    """

    number: int
    is_or: bool = True
    outcome: BranchOutcome | None = None
    text: str = ""
    kind: str = ""
    title: str = ""
    tokens: int = 0
    logprob: float | None = None
    seconds: float = 0.0
    problem: Problem | None = None

    @property
    def running(self) -> bool:
        return self.outcome is None


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block at one moment: its branches, its age in seconds, and what has just happened.

    ``path`` is as in :class:`anabranch.records.Block`. ``ended`` is the number of the branch that
    has just ended; None when it was time that passed, or tokens.
    """

    branches: tuple[BranchView, ...]
    seconds: float = 0.0
    ended: int | None = None
    path: tuple[int, ...] = ()

    def contenders(self) -> list[BranchView]:
        """The OR branches, skipped ones left out."""
        return [b for b in self.branches if b.is_or and b.outcome != "skipped"]

    def running(self) -> tuple[int, ...]:
        return tuple(b.number for b in self.contenders() if b.running)

    def closed(self) -> list[BranchView]:
        """The OR branches that closed themselves, in the order of the plan."""
        return [b for b in self.contenders() if b.outcome == "closed"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The block is decided.

    Attributes:
        losers: numbers of running branches that end now.
        winners: numbers of the branches that decided it; none where time or tokens did.
        reason: one line for the record.
        keep: the losers are closed where they are and their text is kept, instead of dropped.
    """

    losers: tuple[int, ...]
    winners: tuple[int, ...] = ()
    reason: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """Base of all policies. ``name`` is the textual form, with parameters."""

    @property
    def name(self) -> str:
        return "all"

    @property
    def counts_tokens(self) -> bool:
        """Whether it is to be asked at every piece of output."""
        return False

    @property
    def needs_logprobs(self) -> bool:
        return False

    def decide(self, block: BlockView) -> Decision | None:
        """What ends now; None to wait. Called only while an OR branch runs."""
        return None

    def wake(self, block: BlockView) -> float | None:
        """The age of the block, in seconds, at which to ask again without an event."""
        return None


@dataclass(frozen=True, slots=True)
class WaitForAll(JoinPolicy):
    """Every branch runs to its end, as the papers do."""


@dataclass(frozen=True, slots=True)
class FirstConclusive(JoinPolicy):
    """The first OR branch that the judge accepts ends all other OR branches of its block."""

    judge: Judge = answer_found
    label: str = "first_conclusive"
    logprobs: bool = False

    @property
    def name(self) -> str:
        return self.label

    @property
    def needs_logprobs(self) -> bool:
        return self.logprobs

    def decide(self, block: BlockView) -> Decision | None:
        for branch in block.closed():
            if branch.number == block.ended and self.judge(branch):
                return Decision(block.running(), (branch.number,), "the judge accepted it")
        return None


@dataclass(frozen=True, slots=True)
class Quorum(JoinPolicy):
    """As soon as ``size`` OR branches give one answer, the others end."""

    size: int
    read: Reader = answer_of

    @property
    def name(self) -> str:
        return f"quorum:{self.size}"

    def decide(self, block: BlockView) -> Decision | None:
        for answer, voters in _votes(block, self.read).items():
            if len(voters) >= self.size:
                winners = tuple(b.number for b in voters)
                return Decision(block.running(), winners, f"{len(voters)} agree on {answer!r}")
        return None


@dataclass(frozen=True, slots=True)
class Confidence(JoinPolicy):
    """The others end when the vote for one answer exceeds ``threshold``.

    A closed branch votes for its answer with the geometric mean of its tokens' probabilities,
    ``exp(mean log-prob)``; votes are divided by the number of OR branches, those still running
    included, so that one early branch alone cannot decide a wide block. A branch without log-probs
    or without an answer has no vote.
    """

    threshold: float
    read: Reader = answer_of

    @property
    def name(self) -> str:
        return f"confidence:{self.threshold:g}"

    @property
    def needs_logprobs(self) -> bool:
        return True

    def decide(self, block: BlockView) -> Decision | None:
        wide = len(block.contenders())
        for answer, voters in _votes(block, self.read).items():
            vote = sum(math.exp(b.logprob) for b in voters if b.logprob is not None) / wide
            if vote > self.threshold:
                winners = tuple(b.number for b in voters)
                return Decision(block.running(), winners, f"vote {vote:.3f} for {answer!r}")
        return None


@dataclass(frozen=True, slots=True)
class Deadline(JoinPolicy):
    """OR branches get so many seconds, or so many tokens each, and no more.

    Both are counted from the block's start, or, with ``after_first``, from the first branch that
    the judge accepts: then that one decides, and the others get a bounded extra. If no branch has
    closed when the time is up, the branches are closed where they are and their text is kept: a
    block never ends with nothing. Where only some have closed, the others are dropped.
    """

    seconds: float | None = None
    tokens: int | None = None
    after_first: bool = False
    judge: Judge = answer_found

    @property
    def name(self) -> str:
        amount = f"{self.seconds:g}s" if self.seconds is not None else f"{self.tokens}t"
        return f"deadline:{amount}" + (",after=first" if self.after_first else "")

    @property
    def counts_tokens(self) -> bool:
        return self.tokens is not None

    def decide(self, block: BlockView) -> Decision | None:
        first = self._first(block)
        if self.after_first and first is None:
            return None
        late = self._late(block, first)
        if not late:
            return None
        closed = block.closed()
        winners = (first.number,) if first else tuple(b.number for b in closed)
        amount = self.name.partition(":")[2].partition(",")[0]
        since = f"branch {first.number}" if first else "the block's start"
        return Decision(late, winners, f"{amount} after {since}", keep=not closed)

    def wake(self, block: BlockView) -> float | None:
        first = self._first(block)
        if self.seconds is None or (self.after_first and first is None):
            return None
        return self.seconds + (first.seconds if first else 0.0)

    def _first(self, block: BlockView) -> BranchView | None:
        if not self.after_first:
            return None
        accepted = [b for b in block.closed() if self.judge(b)]
        return min(accepted, key=lambda b: (b.seconds, b.tokens, b.number), default=None)

    def _late(self, block: BlockView, first: BranchView | None) -> tuple[int, ...]:
        if self.seconds is not None:
            due = self.seconds + (first.seconds if first else 0.0)
            return block.running() if block.seconds >= due else ()
        assert self.tokens is not None
        allowed = self.tokens + (first.tokens if first else 0)
        return tuple(b.number for b in block.contenders() if b.running and b.tokens >= allowed)


def _votes(block: BlockView, read: Reader) -> dict[str, Sequence[BranchView]]:
    found: dict[str, list[BranchView]] = defaultdict(list)
    for branch in block.closed():
        if (answer := read(branch)) is not None:
            found[answer].append(branch)
    return dict(found)
