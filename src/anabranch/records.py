"""The currency of the library: what one answer was made of, as one JSON line.

A :class:`Trajectory` holds the :class:`Segment` runs of token ids and the :class:`Request` calls
that one answer took; text, training units and token counts are pure functions of it. Reading and
writing of files is in :mod:`anabranch.jsonl`; figures (critical path and so on) are in
:mod:`anabranch.metrics`; this module knows no dialect, tokenizer or engine.

Strings may hold lone surrogates: model output does, and a record must not lose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, model_validator

#: pydantic's own ``str`` refuses lone surrogates; an instance check keeps them.
Text = Annotated[str, InstanceOf()]

Origin = Literal["prompt", "sampled", "forced"]
RequestKind = Literal["main", "branch", "merge"]
FinishReason = Literal["stop", "eos", "length", "cancelled", "error"]
BranchOutcome = Literal["closed", "unclosed", "truncated", "cancelled", "failed", "skipped"]
BlockOutcome = Literal["joined", "open", "skipped"]
Outcome = Literal[
    "answered",  # the model ended its answer by itself
    "truncated",  # a limit ended it, in the answer or before
    "context_exhausted",  # the model's window ended it
    "protocol_error",  # the output could not be brought to an answer
    "failed",  # the engine failed beyond its retries
    "cancelled",  # the caller stopped it
]
VerdictStatus = Literal["correct", "wrong", "unparsed", "timeout", "error", "truncated"]


class Record(BaseModel):
    """Base of all records. Unknown fields are kept: a newer file survives an older reader."""

    model_config = ConfigDict(extra="allow")

    def to_json(self) -> dict[str, Any]:
        """Plain data for :func:`anabranch.jsonl.dump_line`."""
        return self.model_dump(mode="python")


class Problem(Record):
    """A question with, where known, its right answer.

    ``answer`` is the gold as text; ``source`` and ``family`` say where the problem comes from.
    """

    id: Text
    problem: Text
    answer: Text | None = None
    source: Text | None = None
    family: Text | None = None

    @property
    def text(self) -> str:
        return self.problem


class Verdict(Record):
    """What a grader said of an answer, and why."""

    status: VerdictStatus
    answer: Text | None = None
    gold: Text | None = None
    reason: Text = ""

    @property
    def correct(self) -> bool:
        return self.status == "correct"


class Sampling(Record):
    """How tokens are drawn. ``temperature`` 0 is greedy; ``seed`` is the root of derived seeds."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = 0


class Limits(Record):
    """What an answer may cost. None is no limit; tokens are sampled tokens.

    ``answer_reserve`` tokens of the total and of the path are kept back for the answer: no branch
    can spend them. ``max_prefill_tokens`` caps what the engine must compute of prompts: the context
    of each request without what the trajectory's requests before it have left in a prefix cache.
    ``on_exhausted`` is what is done when a limit is reached: ``answer`` closes the
    reasoning and lets the model answer from the reserve, ``stop`` ends.
    """

    max_total_tokens: int | None = Field(default=None, ge=1)
    max_path_tokens: int | None = Field(default=None, ge=1)
    max_branch_tokens: int | None = Field(default=None, ge=1)
    min_branch_tokens: int = Field(default=16, ge=1)
    max_branches: int = Field(default=50, ge=1)
    max_blocks: int | None = Field(default=None, ge=0)
    max_depth: int = Field(default=1, ge=0)
    max_prefill_tokens: int | None = Field(default=None, ge=1)
    deadline: float | None = Field(default=None, gt=0, description="seconds")
    answer_reserve: int = Field(default=0, ge=0)
    on_exhausted: Literal["answer", "stop"] = "answer"
    on_refused_fork: Literal["fewer", "sequential", "stop"] = "fewer"

    @model_validator(mode="after")
    def _reserve_fits(self) -> Limits:
        for name in ("max_total_tokens", "max_path_tokens"):
            cap = getattr(self, name)
            if cap is not None and self.answer_reserve >= cap:
                raise ValueError(f"answer_reserve {self.answer_reserve} is not below {name} {cap}")
        return self


class Segment(Record):
    """A run of tokens with one origin. ``logprobs`` (one a token) only where sampled."""

    origin: Origin
    ids: tuple[int, ...] = ()
    text: Text = ""
    logprobs: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Request(Record):
    """What one engine call saw and gave.

    ``context`` and ``output`` index :attr:`Trajectory.segments`. ``block`` is the path of the
    block the call belongs to: block ordinals and branch numbers in turn, so ``(1,)`` is the first
    block of the main line and ``(1, 2, 1)`` the first block inside its branch 2; a ``main``
    request has ``()``. Times are seconds since the trajectory began. ``counted_tokens`` is the
    server's own count of what it sampled, where ids are not the server's.
    """

    kind: RequestKind
    context: tuple[int, ...]
    output: int
    block: tuple[int, ...] = ()
    branch: int | None = None
    attempt: int = 0
    finish: FinishReason = "stop"
    stop: Text | None = None
    seed: int = 0
    max_tokens: int | None = None
    cached_tokens: int | None = None
    counted_tokens: int | None = None
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None
    error: Text | None = None


class Branch(Record):
    """One branch of a block: its number and kind in the plan, what became of it, its requests."""

    number: int
    kind: Text = "branch"
    title: Text = ""
    outcome: BranchOutcome = "closed"
    requests: tuple[int, ...] = ()


class JoinDecision(Record):
    """What a join policy decided while branches were running.

    ``losers`` ended there; ``winners`` are the branches that decided it (none: time or tokens).
    With ``keep`` the losers were closed where they were and stand in the join; otherwise a stub
    does. When that was, the losers' requests say.
    """

    losers: tuple[int, ...] = ()
    winners: tuple[int, ...] = ()
    reason: Text = ""
    keep: bool = False


class Block(Record):
    """One fork and its join.

    ``opener`` is the request that opened the block, ``plan_tokens`` how many of its sampled tokens
    lie inside the block, ``merge`` the request that wrote the merge where the dialect has one.
    ``policy`` is the join policy with its parameters, ``decisions`` what it decided.
    """

    path: tuple[int, ...]
    opener: int
    plan_tokens: int = 0
    branches: tuple[Branch, ...] = ()
    merge: int | None = None
    policy: Text = "all"
    decisions: tuple[JoinDecision, ...] = ()
    outcome: BlockOutcome = "joined"


class Finding(Record):
    """A deviation that was met and handled: a code of the dialect's diagnostics, and where."""

    code: Text
    message: Text = ""
    request: int | None = None
    block: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Unit:
    """One training unit ``<context, completion>``: exactly what one request saw and sampled."""

    context: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    request: int


class Trajectory(Record):
    """Everything of one answer. ``final`` lists the segments of the finished main line.

    ``grammar`` is the flavour in which every call was constrained to the dialect; None: it was not.
    """

    SCHEMA: ClassVar[int] = 1

    schema_version: int = SCHEMA
    id: Text = ""
    problem: Problem | None = None
    dialect: Text = ""
    mode: Text = "parallel"
    model: Text = ""
    engine: Text = ""
    sampling: Sampling = Field(default_factory=Sampling)
    limits: Limits = Field(default_factory=Limits)
    segments: list[Segment] = Field(default_factory=list)
    requests: list[Request] = Field(default_factory=list)
    blocks: list[Block] = Field(default_factory=list)
    final: tuple[int, ...] = ()
    outcome: Outcome = "answered"
    findings: list[Finding] = Field(default_factory=list)
    retokenized: bool = False
    drift: int = 0
    policy_version: Text | None = None
    grammar: Text | None = None
    seconds: float | None = None
    verdict: Verdict | None = None

    @model_validator(mode="after")
    def _indices_are_valid(self) -> Trajectory:
        if self.schema_version > self.SCHEMA:
            raise ValueError(
                f"schema_version {self.schema_version} is newer than {self.SCHEMA}: "
                "update anabranch"
            )
        count = len(self.segments)
        for number, request in enumerate(self.requests):
            for index in (*request.context, request.output):
                if not 0 <= index < count:
                    raise ValueError(f"request {number} names segment {index} of {count}")
        if any(not 0 <= index < count for index in self.final):
            raise ValueError(f"final names a segment outside 0..{count - 1}")
        return self

    @property
    def text(self) -> str:
        """The generated text of the finished main line, branches joined in, without the prompt."""
        return "".join(s.text for s in self._final() if s.origin != "prompt")

    @property
    def prompt_text(self) -> str:
        return "".join(s.text for s in self._final() if s.origin == "prompt")

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids of the finished main line, prompt included."""
        return tuple(token for segment in self._final() for token in segment.ids)

    @property
    def sampled_tokens(self) -> int:
        """Every sampled token of every request, retries and cancelled branches included."""
        return sum(len(self.segments[r.output]) for r in self.requests)

    @property
    def forced_tokens(self) -> int:
        return sum(len(s) for s in self.segments if s.origin == "forced")

    @property
    def prompt_tokens(self) -> int:
        return sum(len(s) for s in self.segments if s.origin == "prompt")

    def units(self) -> Iterator[Unit]:
        """One unit per request that sampled anything, in the order of the requests."""
        for number, request in enumerate(self.requests):
            output = self.segments[request.output]
            if output.ids:
                yield Unit(self.ids_of(request.context), output.ids, output.logprobs, number)

    def ids_of(self, segments: Sequence[int]) -> tuple[int, ...]:
        """The concatenated token ids of the segments with these indices."""
        return tuple(token for index in segments for token in self.segments[index].ids)

    def _final(self) -> Iterator[Segment]:
        return (self.segments[index] for index in self.final)
