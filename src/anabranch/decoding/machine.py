"""The fork-join machine: told what came back, it answers with the calls to make next.

It has no clock, no socket and no task: times are handed in, calls are handed out
(:mod:`anabranch.decoding.events`), and the same machine drives a live engine, the making of
training data, replay and simulation. Where control passes is said by the dialect. How a block
opens and joins is in :mod:`anabranch.decoding.forks`; retries and engine failures are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from anabranch.decoding import forks
from anabranch.decoding.budget import Budget
from anabranch.decoding.events import (
    Answer,
    Cancel,
    Forced,
    LimitHit,
    Noted,
    Output,
    Start,
    Token,
)
from anabranch.decoding.joins import JoinPolicy, WaitForAll
from anabranch.decoding.recorder import Recorder
from anabranch.decoding.seeds import derive_seed
from anabranch.decoding.state import BlockState, BranchState, Line, Live
from anabranch.dialects import Dialect, parse
from anabranch.engines.base import Call, Chunk, Tokenizer
from anabranch.errors import ContextWindowError, EngineError
from anabranch.records import (
    FinishReason,
    Limits,
    Outcome,
    Problem,
    RequestKind,
    Sampling,
    Trajectory,
)

Mode = Literal["parallel", "sequential"]


@dataclass(frozen=True)
class Setup:
    """Everything that decides a trajectory, besides what the engine returns.

    Attributes:
        prompt, prompt_ids: the rendered prompt and its tokens, BOS included where wanted.
        width: branches per block in a dialect without a plan, fixed or asked for at each fork
            (None: the dialect's default).
        retokenized: the engine gives text only, and ids are the tokenizer's; drift is counted.
        retries: how often a call that failed retryably is sent again.
        affinity: key under which a fleet keeps the calls of this trajectory together.
    """

    dialect: Dialect
    tokenizer: Tokenizer
    prompt: str
    prompt_ids: tuple[int, ...]
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    policy: JoinPolicy = field(default_factory=WaitForAll)
    mode: Mode = "parallel"
    window: int | None = None
    width: int | Callable[[], int] | None = None
    retries: int = 1
    logprobs: bool = True
    retokenized: bool = False
    id: str = ""
    affinity: str = ""
    problem: Problem | None = None
    model: str = ""
    engine: str = ""
    policy_version: str | None = None


class Machine:
    """One trajectory from prompt to answer. Feed it until :attr:`done`.

    Every method takes ``now``, seconds since the trajectory began, and returns orders and events
    in the order in which they happened.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.budget = Budget(setup.limits, setup.window)
        self.record = Recorder(setup.tokenizer)
        self.done = False
        self.trajectory: Trajectory | None = None
        self.now = 0.0
        self.main = Line()
        self._live: dict[int, Live] = {}
        self._open: list[BlockState] = []
        self._expired = False
        self._out: list[Output] = []

    # What the driver calls -------------------------------------------------------------------

    def start(self, now: float = 0.0) -> list[Output]:
        """The first call."""
        self.now = now
        self.main.context = [self.record.add("prompt", self.setup.prompt_ids, self.setup.prompt)]
        self.resume(self.main)
        return self._drain()

    def feed(self, request: int, chunk: Chunk, now: float = 0.0) -> list[Output]:
        """A piece of output. Pieces of a call that was cancelled or has ended are passed over."""
        live = self._live.get(request)
        if live is None:
            return []
        self.now = now
        chunk, over = self._within_cap(live, chunk)
        self._append(live, chunk, now)
        if over:
            self.note("cap_ignored", f"the engine passed its cap of {live.cap} tokens", live)
            self._out.append(Cancel(request))
            self._complete(live, "length", None)
        elif chunk.finish is not None:
            self._complete(live, chunk.finish, chunk.stop)
        return self._drain()

    def fail(self, request: int, error: EngineError, now: float = 0.0) -> list[Output]:
        """A call failed. It is sent again if that is safe, else its loss is recorded."""
        live = self._live.get(request)
        if live is None:
            return []
        self.now = now
        live.error = str(error)
        self._end(live, "error", None)
        live.line.path += len(live.ids)
        if isinstance(error, ContextWindowError):
            again = live.attempt == 0 and self._learn_window(live, error)
        else:
            again = error.retryable and live.attempt < self.setup.retries
        if again:
            self._send(live.kind, live.line, live.block, live.branch, live.attempt + 1)
        else:
            self._give_up(live, error)
        return self._drain()

    def expire(self, now: float = 0.0) -> list[Output]:
        """The deadline has passed: branches are cut where they are and the answer is forced."""
        self.now, self._expired = now, True
        for live in list(self._live.values()):
            if live.request in self._live and not live.line.answering:
                live.limit = "deadline"
                self._out.append(Cancel(live.request))
                self._complete(live, "length", None)
        return self._drain()

    def abort(self, now: float = 0.0) -> list[Output]:
        """The caller wants no more: everything is cancelled, what was sampled is kept."""
        self.now = now
        for live in list(self._live.values()):
            self._out.append(Cancel(live.request))
            output = self._end(live, "cancelled", None)
            if live.line is self.main and live.kind != "branch":
                self.main.context.append(output)
        self.finish("cancelled")
        return self._drain()

    def waits_for(self, request: int) -> bool:
        """Whether a call is still in flight as far as the machine is concerned."""
        return request in self._live

    # What the fork rules call ------------------------------------------------------------------

    def resume(self, line: Line) -> None:
        """Let a line sample on, or close it when a limit leaves no room."""
        self._send("main" if line is self.main else "branch", line, None, None, 0)

    def sample_branch(self, block: BlockState, branch: BranchState) -> None:
        self._send("branch", branch.line, block, branch, 0)

    def sample_merge(self, block: BlockState) -> None:
        self._send("merge", block.line, block, None, 0)

    def force(self, line: Line, text: str) -> None:
        """Write text into a line."""
        if text:
            line.context += self.record.force(text)
            self._out.append(Forced(line.block, line.branch, text))

    def emit(self, *events: Output) -> None:
        self._out.extend(events)

    def note(self, code: str, message: str, live: Live | None = None) -> None:
        """Record a deviation, and tell of it."""
        block = live.block.path if live and live.block else ()
        self.record.note(code, message, request=live.request if live else None, block=block)
        self._out.append(Noted(code, message))

    def cancel_branch(self, branch: BranchState) -> None:
        """Stop a losing branch; what it sampled stays in the record."""
        for live in [live for live in self._live.values() if live.branch is branch]:
            self._out.append(Cancel(live.request))
            self._end(live, "cancelled", None)
            branch.line.path += len(live.ids)

    def finish(self, outcome: Outcome) -> None:
        """Close the record."""
        if self.done:
            return
        self.done = True
        for block in self._open:
            self.record.block(block, self.setup.policy.name, joined=False)
        self.record.blocks.sort(key=lambda block: block.path)
        self._note_format()
        setup, record = self.setup, self.record
        self.trajectory = Trajectory(
            id=setup.id,
            problem=setup.problem,
            dialect=setup.dialect.name,
            mode=setup.mode,
            model=setup.model,
            engine=setup.engine,
            sampling=setup.sampling,
            limits=setup.limits,
            segments=record.segments,
            requests=record.requests,
            blocks=record.blocks,
            final=tuple(self.main.context),
            outcome=outcome,
            findings=record.findings,
            retokenized=setup.retokenized,
            drift=record.drift(self.main.context) if setup.retokenized else 0,
            policy_version=setup.policy_version,
            seconds=self.now,
        )
        self._out.append(Answer(self.trajectory))

    @property
    def open_blocks(self) -> list[BlockState]:
        return self._open

    def opened(self, block: BlockState) -> None:
        self._open.append(block)

    def joined(self, block: BlockState) -> None:
        self._open.remove(block)
        self.record.block(block, self.setup.policy.name, joined=True)

    def exhausted(self, line: Line, limit: str) -> None:
        """No room is left on the main line: answer from the reserve, or end."""
        limits = self.setup.limits
        may_answer = limits.on_exhausted == "answer" and limits.answer_reserve > 0
        answers = may_answer and not line.answering
        self.record.note(f"limit:{limit}", "answered from the reserve" if answers else "ended")
        self._out.append(LimitHit(limit, "answer" if answers else "stop"))
        if not answers:
            self.finish("context_exhausted" if limit == "window" else "truncated")
            return
        line.answering = True
        self.close_reasoning(line)
        self.resume(line)

    def close_reasoning(self, line: Line) -> None:
        """Write the dialect's end of reasoning, unless the line is already past it."""
        line.context[-1:] = self.record.without_eos(line.context[-1])
        dialect = self.setup.dialect
        marker = dialect.think.close if dialect.think else dialect.close_reasoning.strip()
        if marker not in self.record.generated(line.context):
            self.force(line, dialect.close_reasoning)

    # Calls ---------------------------------------------------------------------------------

    def _send(
        self,
        kind: RequestKind,
        line: Line,
        block: BlockState | None,
        branch: BranchState | None,
        attempt: int,
    ) -> None:
        room, limit = self._room(line, branch)
        if self._expired and not line.answering:
            room, limit = 0, "deadline"
        if room <= 0:
            forks.no_room(self, kind, line, block, branch, limit)
            return
        request = len(self.record.requests)
        sampling = self.setup.sampling
        seed = derive_seed(
            sampling.seed,
            self.setup.id,
            kind,
            line.block,
            line.branch,
            line.blocks,
            attempt,
            request,
        )
        live = Live(
            request, kind, line, tuple(line.context), seed, room, limit, attempt, block, branch
        )
        live.started = self.now
        self.record.open(live)
        self._live[request] = live
        self.budget.hold(request, room)
        if branch is not None:
            branch.requests.append(request)
            branch.attempts = attempt
        call = Call(
            ids=self.record.ids(live.context),
            stop=forks.stops(self.setup, kind, line),
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            affinity=self.setup.affinity or self.setup.id,
            logprobs=self.setup.logprobs,
        )
        self._out.append(
            Start(request, call, kind, block.path if block else line.block, line.branch)
        )

    def _room(self, line: Line, branch: BranchState | None) -> tuple[int, str]:
        limits = self.setup.limits
        reserve = 0 if line.answering else limits.answer_reserve
        choices = [self.budget.room(line.path, self.record.length(line.context), reserve=reserve)]
        if line.answering:
            choices.append((limits.answer_reserve, "answer_reserve"))
        if branch is not None:
            if branch.share is not None:
                choices.append((branch.share, "max_total_tokens"))
            if limits.max_branch_tokens is not None:
                choices.append((limits.max_branch_tokens, "max_branch_tokens"))
        return min(choices, key=lambda choice: choice[0])

    def _within_cap(self, live: Live, chunk: Chunk) -> tuple[Chunk, bool]:
        """The part of a chunk that the cap allows, and whether the engine went beyond it."""
        allowed = live.cap - len(live.ids)
        if len(chunk.ids) <= allowed:
            return chunk, False
        ids = chunk.ids[:allowed]
        text = self.setup.tokenizer.decode(ids) if ids else ""
        logprobs = chunk.logprobs[:allowed] if chunk.logprobs is not None else None
        return Chunk(ids, text, logprobs, None), True

    def _append(self, live: Live, chunk: Chunk, now: float) -> None:
        if chunk.cached_tokens is not None:
            live.cached = chunk.cached_tokens
        if not chunk.ids and not chunk.text:
            return
        if live.first_token is None:
            live.first_token = now
        live.ids += chunk.ids
        live.pieces.append(chunk.text)
        if chunk.logprobs is None:
            live.scored = live.scored and not chunk.ids
        else:
            live.logprobs += chunk.logprobs
        self.budget.sample(live.request, len(chunk.ids))
        block = live.block.path if live.block else live.line.block
        self._out.append(
            Token(live.request, live.kind, block, live.line.branch, chunk.text, len(chunk.ids))
        )

    def _end(self, live: Live, finish: FinishReason, stop: str | None) -> int:
        live.finish, live.stop = finish, stop
        del self._live[live.request]
        self.budget.release(live.request)
        return self.record.close(live, self.now)

    def _complete(self, live: Live, finish: FinishReason, stop: str | None) -> None:
        output = self._end(live, finish, stop)
        forks.completed(self, live, output)

    def _learn_window(self, live: Live, error: ContextWindowError) -> bool:
        """Take the engine's own numbers for the window; whether a smaller cap can fit."""
        if error.window is None:
            return False
        extra = 0
        if error.prompt_tokens is not None:
            extra = max(0, error.prompt_tokens - self.record.length(live.context))
        self.budget.window = error.window - extra
        return True

    def _give_up(self, live: Live, error: EngineError) -> None:
        self.note("request_failed", str(error), live)
        forks.failed(self, live, window=isinstance(error, ContextWindowError))

    def _note_format(self) -> None:
        known = {finding.code for finding in self.record.findings}
        for diagnostic in parse(
            self.record.generated(self.main.context), self.setup.dialect
        ).diagnostics:
            if diagnostic.code not in known:
                self.record.note(diagnostic.code, diagnostic.message)

    def _drain(self) -> list[Output]:
        out, self._out = self._out, []
        return out
