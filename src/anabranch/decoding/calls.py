"""The calls in flight of one trajectory: their caps and seeds, what they gave, how they end.

Keeps the budget and the record in step with every token. What a call's end means for its line is
in :mod:`anabranch.decoding.forks`.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.decoding.budget import Budget
from anabranch.decoding.events import Output, Start, Token
from anabranch.decoding.prefill import Prefill
from anabranch.decoding.recorder import Recorder
from anabranch.decoding.seeds import derive_seed
from anabranch.decoding.setup import Setup
from anabranch.decoding.state import Line, Live
from anabranch.engines.base import Call, Chunk
from anabranch.errors import ContextWindowError
from anabranch.records import FinishReason


class Calls:
    """All calls of one trajectory that have begun and not ended.

    Args:
        setup: of the trajectory.
        record: gets every call.
        emit: takes orders and events.
    """

    def __init__(self, setup: Setup, record: Recorder, emit: Callable[[Output], None]) -> None:
        self.setup, self.record, self._emit = setup, record, emit
        self.budget = Budget(setup.limits, setup.window)
        self.live: dict[int, Live] = {}
        most = setup.limits.max_prefill_tokens
        self.prefill = Prefill(most) if most is not None else None

    def room(self, line: Line, *, branch: bool) -> tuple[int, str]:
        """Tokens that a call on this line may sample, and the limit that decides.

        Args:
            line: where it goes on.
            branch: whether it writes a branch, not the main line or a merge.
        """
        limits = self.setup.limits
        reserve = 0 if line.answering else limits.answer_reserve
        choices = [self.budget.room(line.path, self.record.length(line.context), reserve=reserve)]
        if line.answering:
            choices.append((limits.answer_reserve, "answer_reserve"))
        if line.share is not None:
            choices.append((line.share - line.spent, "max_total_tokens"))
        if branch and limits.max_branch_tokens is not None:
            choices.append((limits.max_branch_tokens - line.own, "max_branch_tokens"))
        if self.prefill is not None:
            if self.prefill.cost(self.record.ids(line.context)) > self.prefill.left:
                choices.append((0, "max_prefill_tokens"))
            if branch and line.pot is not None:  # its text is computed again in each join around it
                choices.append(((line.pot - line.charged) // line.depth, "max_prefill_tokens"))
        return min(choices, key=lambda choice: choice[0])

    def begin(self, live: Live, stops: tuple[str, ...], grammar: str | None = None) -> None:
        """Order a call; its request number, seed and record are made here."""
        setup, sampling, line = self.setup, self.setup.sampling, live.line
        live.request = len(self.record.requests)
        # Nothing in the seed depends on which of several calls happened to come first.
        live.seed = derive_seed(
            sampling.seed, setup.id, live.kind, line.block, line.branch, line.calls
        )
        line.calls += 1
        self.record.open(live)
        self.live[live.request] = live
        self.budget.hold(live.request, live.cap)
        if live.branch is not None:
            live.branch.requests.append(live.request)
        ids = self.record.ids(live.context)
        if self.prefill is not None:
            live.node = self.prefill.compute(ids)
        call = Call(
            ids=ids,
            stop=stops,
            max_tokens=live.cap,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=live.seed,
            affinity=setup.affinity or setup.id,
            logprobs=setup.logprobs,
            grammar=grammar,
        )
        self._emit(Start(live.request, call, live.kind, live.place, live.number))

    def take(self, live: Live, chunk: Chunk, now: float) -> bool:
        """Book a piece of output; whether the engine went beyond the call's cap.

        What is beyond the cap is dropped.
        """
        allowed = live.cap - len(live.ids)
        over = len(chunk.ids) > allowed
        if over:
            ids = chunk.ids[:allowed]
            text = self.setup.tokenizer.decode(ids) if ids else ""
            scores = None if chunk.logprobs is None else chunk.logprobs[:allowed]
            chunk = Chunk(ids, text, scores)
        if chunk.cached_tokens is not None:
            live.cached = chunk.cached_tokens
        if chunk.ids or chunk.text:
            self._append(live, chunk, now)
        return over

    def end(self, live: Live, finish: FinishReason, stop: str | None, now: float) -> int:
        """Close a call's record; the index of its output segment."""
        live.finish, live.stop = finish, stop
        del self.live[live.request]
        self.budget.release(live.request)
        if self.prefill is not None:
            self.prefill.sampled(live.node, live.ids)
        return self.record.close(live, now)

    def learn_window(self, live: Live, error: ContextWindowError) -> bool:
        """Take the engine's own numbers for the window; whether a smaller cap can fit."""
        if error.window is None:
            return False
        extra = 0
        if error.prompt_tokens is not None:
            extra = max(0, error.prompt_tokens - self.record.length(live.context))
        self.budget.window = error.window - extra
        return True

    def append_text(self, live: Live, ids: tuple[int, ...], text: str, now: float) -> None:
        """Book text of a server that counts for itself; beyond the cap nothing is booked here."""
        room = max(0, live.cap - len(live.ids))
        self._append(live, Chunk(ids[:room], text), now)
        live.ids += ids[room:]

    def _append(self, live: Live, chunk: Chunk, now: float) -> None:
        if live.first_token is None:
            live.first_token = now
        live.ids += chunk.ids
        live.pieces.append(chunk.text)
        if chunk.logprobs is None:
            live.scored = live.scored and not chunk.ids
        else:
            live.logprobs += chunk.logprobs
        self.budget.sample(live.request, len(chunk.ids))
        line: Line | None = live.line
        while line is not None:
            line.spent += len(chunk.ids)
            line.charged += len(chunk.ids) * live.line.depth
            line = line.parent
        self._emit(
            Token(live.request, live.kind, live.place, live.number, chunk.text, len(chunk.ids))
        )
