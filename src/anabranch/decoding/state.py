"""The state of a trajectory that is being decoded: lines, open blocks, calls in flight.

Data without behaviour beyond small views; the rules are in :mod:`anabranch.decoding.machine`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.records import BranchOutcome, FinishReason, JoinDecision, RequestKind


@dataclass(slots=True)
class Line:
    """A line of decoding: the main line, or one branch.

    Attributes:
        block, branch: where it hangs (``()`` and None for the main line).
        context: segment indices that its next call sees.
        path: sampled tokens on the longest way to its end.
        parent: the line that opened the block it hangs in.
        own: sampled tokens of its own calls, those that were lost left out.
        spent: sampled tokens of all its calls and of everything inside it.
        share: how many those may become, where the total is limited.
        fresh: generated text since the last fork or join of this line.
        blocks: how many blocks it has opened.
        calls: how many calls it has made.
        answering: it was closed early and now spends the answer reserve.
        pot: prefill tokens that it may cause, its own text at the joins around it included, where
            prefill is limited; charged: what it and everything inside it has caused of that.
        cut: the limit that has ended it from outside; it may not sample on.
    """

    block: tuple[int, ...] = ()
    branch: int | None = None
    context: list[int] = field(default_factory=list)
    path: int = 0
    parent: Line | None = None
    own: int = 0
    spent: int = 0
    share: int | None = None
    fresh: str = ""
    blocks: int = 0
    calls: int = 0
    answering: bool = False
    pot: int | None = None
    charged: int = 0
    cut: str = ""

    @property
    def depth(self) -> int:
        return (len(self.block) + 1) // 2

    def charge(self, tokens: int) -> None:
        """Book prefill tokens that it causes, here and in all lines around it."""
        line: Line | None = self
        while line is not None:
            line.charged += tokens
            line = line.parent

    @property
    def ended_by(self) -> str:
        """The limit that has ended it, or a line that it stands in, from outside; "" for none."""
        line: Line | None = self
        while line is not None:
            if line.cut:
                return line.cut
            line = line.parent
        return ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the branches that it stands in, its own last."""
        return () if self.branch is None else (*self.block[1::2], self.branch)


@dataclass(slots=True)
class BranchState:
    """A branch while its block is open. ``body`` is what the join will hold after the header."""

    number: int
    kind: str
    title: str
    is_or: bool
    line: Line
    header: int
    outcome: BranchOutcome | None = None
    body: list[int] = field(default_factory=list)
    text: str = ""
    requests: list[int] = field(default_factory=list)
    logprob: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class BlockState:
    """A block between its fork and its join.

    Attributes:
        base: the line's context at the fork.
        started: when it opened; due: its age at which the policy wants to be asked again.
        deciding: a decision is being carried out; joining: all branches are in.
    """

    path: tuple[int, ...]
    line: Line
    opener: int
    plan_tokens: int
    branches: list[BranchState]
    base: list[int] = field(default_factory=list)
    merge: int | None = None
    started: float = 0.0
    due: float | None = None
    decisions: list[JoinDecision] = field(default_factory=list)
    deciding: bool = False
    joining: bool = False


@dataclass(slots=True)
class Live:
    """A call in flight, growing into a request record."""

    kind: RequestKind
    line: Line
    context: tuple[int, ...]
    attempt: int
    block: BlockState | None
    branch: BranchState | None
    cap: int
    limit: str
    soft: tuple[str, ...] = ()
    request: int = -1
    node: int = 0
    seed: int = 0
    ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scored: bool = True
    cached: int | None = None
    started: float = 0.0
    first_token: float | None = None
    finish: FinishReason = "stop"
    stop: str | None = None
    cut_at: int | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def place(self) -> tuple[int, ...]:
        """The path of the block that it belongs to."""
        return self.block.path if self.block else self.line.block

    @property
    def number(self) -> int | None:
        """The number of the branch that it writes; None for the main line and for merges."""
        return None if self.kind == "merge" else self.line.branch
