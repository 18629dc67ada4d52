"""The fork-join machine: told what came back, it answers with the calls to make next.

It has no clock, no socket and no task: times are handed in, calls are handed out
(:mod:`anabranch.decoding.events`), and the same machine drives a live engine, the making of
training data, replay and simulation. Where control passes is said by the dialect. How a block
opens and joins is in :mod:`anabranch.decoding.forks`; retries and engine failures are here.
"""

from __future__ import annotations

from anabranch.decoding import forks, races
from anabranch.decoding.budget import Budget
from anabranch.decoding.calls import Calls
from anabranch.decoding.constrained import phase_grammar
from anabranch.decoding.events import Answer, Cancel, Forced, LimitHit, Noted, Output
from anabranch.decoding.recorder import Recorder
from anabranch.decoding.setup import Setup
from anabranch.decoding.state import BlockState, BranchState, Line, Live
from anabranch.decoding.stops import stops
from anabranch.dialects import parse
from anabranch.engines.base import Chunk
from anabranch.errors import ContextWindowError, EngineError, UsageError
from anabranch.records import FinishReason, Outcome, RequestKind, Trajectory


class Machine:
    """One trajectory from prompt to answer. Feed it until :attr:`done`.

    Every method takes ``now``, seconds since the trajectory began, and returns orders and events
    in the order in which they happened.
    """

    def __init__(self, setup: Setup) -> None:
        if setup.policy.needs_logprobs and not setup.logprobs:
            raise UsageError(f"join policy {setup.policy.name} needs log-probs: ask for them")
        self.setup = setup
        self.record = Recorder(setup.tokenizer)
        self.done = False
        self.trajectory: Trajectory | None = None
        self.now = 0.0
        self.main = Line()
        self._open: list[BlockState] = []
        self._expired = False
        self._out: list[Output] = []
        self.calls = Calls(setup, self.record, lambda output: self._out.append(output))

    # What the driver calls -------------------------------------------------------------------

    def start(self, now: float = 0.0) -> list[Output]:
        """The first call."""
        self.now = now
        self.main.context = [self.record.add("prompt", self.setup.prompt_ids, self.setup.prompt)]
        self.resume(self.main)
        return self._drain()

    def feed(self, request: int, chunk: Chunk, now: float = 0.0) -> list[Output]:
        """A piece of output. Pieces of a call that was cancelled or has ended are passed over."""
        live = self.calls.live.get(request)
        if live is None:
            return []
        self.now = now
        if self.calls.take(live, chunk, now):
            self.note("cap_ignored", f"the engine passed its cap of {live.cap} tokens", live)
            self._cut(live, live.limit)
        elif ">" in chunk.text and (found := forks.soft_stop(self, live)) is not None:
            self._out.append(Cancel(request))
            self._complete(live, "stop", found)
        elif chunk.finish is not None:
            self._complete(live, chunk.finish, chunk.stop)
        elif self.setup.policy.counts_tokens and live.block is not None:
            for block in list(self._open):
                if block in self._open and live.place[: len(block.path)] == block.path:
                    races.ask(self, block)
        return self._drain()

    def wake(self, now: float = 0.0) -> list[Output]:
        """The time that a :class:`~anabranch.decoding.events.Wake` named has come."""
        self.now = now
        for block in list(self._open):
            if block in self._open:
                races.ask(self, block)
        return self._drain()

    def fail(self, request: int, error: EngineError, now: float = 0.0) -> list[Output]:
        """A call failed. It is sent again if that is safe, else its loss is recorded."""
        live = self.calls.live.get(request)
        if live is None:
            return []
        self.now = now
        live.error = str(error)
        self.calls.end(live, "error", None, now)
        live.line.path += len(live.ids)
        if isinstance(error, ContextWindowError):
            again = live.attempt == 0 and self.calls.learn_window(live, error)
        else:
            again = error.retryable and live.attempt < self.setup.retries
        if again:
            self._send(live.kind, live.line, live.block, live.branch, live.attempt + 1)
        else:
            self.note("request_failed", str(error), live)
            self._failed(live, window=isinstance(error, ContextWindowError))
        return self._drain()

    def expire(self, now: float = 0.0) -> list[Output]:
        """The deadline has passed: branches are cut where they are and the answer is forced."""
        self.now, self._expired = now, True
        for live in list(self.calls.live.values()):
            if live.request in self.calls.live and not live.line.answering:
                self._cut(live, "deadline")
        return self._drain()

    def abort(self, now: float = 0.0) -> list[Output]:
        """The caller wants no more: everything is cancelled, what was sampled is kept."""
        self.now = now
        for live in list(self.calls.live.values()):
            self._out.append(Cancel(live.request))
            output = self.calls.end(live, "cancelled", None, now)
            if live.line is self.main and live.kind != "branch":
                self.main.context.append(output)
        self.finish("cancelled")
        return self._drain()

    def waits_for(self, request: int) -> bool:
        """Whether a call is still in flight as far as the machine is concerned."""
        return request in self.calls.live

    # What the fork rules call ------------------------------------------------------------------

    def resume(self, line: Line) -> None:
        """Let a line sample on, or close it when a limit leaves no room."""
        if line is self.main:
            self._send("main", line, None, None, 0)
        else:
            self._send("branch", line, *forks.owner(self, line), 0)

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

    def cancel_branch(self, block: BlockState, branch: BranchState) -> None:
        """Stop a losing branch and all in it; what was sampled stays in the record."""
        inside = (*block.path, branch.number)
        for live in list(self.calls.live.values()):
            if live.branch is branch or live.place[: len(inside)] == inside:
                self._out.append(Cancel(live.request))
                self.calls.end(live, "cancelled", None, self.now)
                live.line.path += len(live.ids)
        for inner in reversed(self._open):  # the innermost first: paths add up outwards
            if inner.path[: len(inside)] == inside:
                self._abandon(inner)

    def cut_branch(self, block: BlockState, branch: BranchState, limit: str) -> None:
        """End a branch where it is: it and all in it is closed by force, and its text is kept."""
        branch.line.cut = limit
        inside = (*block.path, branch.number)
        for live in list(self.calls.live.values()):
            mine = live.branch is branch or live.place[: len(inside)] == inside
            if mine and live.request in self.calls.live:
                self._cut(live, limit)

    def _abandon(self, block: BlockState) -> None:
        for branch in block.branches:
            branch.outcome = branch.outcome or "cancelled"
            block.line.path = max(block.line.path, branch.line.path)
        self._open = [other for other in self._open if other is not block]
        self.record.block(block, self.setup.policy.name, joined=False)

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
            grammar=setup.grammar,
            seconds=self.now,
        )
        self._out.append(Answer(self.trajectory))

    @property
    def budget(self) -> Budget:
        return self.calls.budget

    @property
    def open_blocks(self) -> list[BlockState]:
        return self._open

    def opened(self, block: BlockState) -> None:
        self._open.append(block)

    def joined(self, block: BlockState) -> None:
        self._open.remove(block)
        self.record.block(block, self.setup.policy.name, joined=True)

    def settle(self, block: BlockState) -> None:
        """Join a block once all of its branches have an outcome."""
        if not block.joining and all(b.outcome is not None for b in block.branches):
            block.joining = True
            self.join(block)

    def join(self, block: BlockState) -> None:
        """All branches of a block have an outcome: its line goes on."""
        forks.join_texts(self, block)

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
        if dialect.think:
            past = dialect.think.is_closed_in(self.record.generated(line.context))
        else:  # an answer inside a branch is not the line's own
            past = dialect.close_reasoning.strip() in line.fresh
        if not past:
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
        room, limit = self._room(kind, line)
        if room <= 0:
            forks.no_room(self, kind, line, block, branch, limit)
            return
        hard, soft = stops(self.setup, kind, line)
        live = Live(kind, line, tuple(line.context), attempt, block, branch, room, limit, soft)
        live.started = self.now
        self.calls.begin(live, hard, phase_grammar(self, kind, line))

    def _room(self, kind: RequestKind, line: Line) -> tuple[int, str]:
        """Tokens that a call may sample now, and the name of what decides."""
        if line.ended_by:
            return 0, line.ended_by
        if self._expired and not line.answering:
            return 0, "deadline"
        return self.calls.room(line, branch=kind == "branch")

    def _cut(self, live: Live, limit: str) -> None:
        """End a call from outside, as if its cap had ended it."""
        live.limit = limit
        self._out.append(Cancel(live.request))
        self._complete(live, "length", None)

    def _failed(self, live: Live, *, window: bool) -> None:
        forks.failed(self, live, window=window)

    def _complete(self, live: Live, finish: FinishReason, stop: str | None) -> None:
        output = self.calls.end(live, finish, stop, self.now)
        forks.completed(self, live, output)

    def _note_format(self) -> None:
        known = {finding.code for finding in self.record.findings}
        text = self.record.generated(self.main.context)
        for diagnostic in parse(text, self.setup.dialect).diagnostics:
            if diagnostic.code not in known:
                self.record.note(diagnostic.code, diagnostic.message)

    def _drain(self) -> list[Output]:
        out, self._out = self._out, []
        return out
