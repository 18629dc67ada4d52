"""Turns calls in flight and forced text into the segments and requests of a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from anabranch.decoding.state import BlockState, Live
from anabranch.engines.base import Tokenizer
from anabranch.records import Block, Branch, Finding, Origin, Request, Segment


class Recorder:
    """Segments, requests, blocks and findings, in the order in which they came to be."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.segments: list[Segment] = []
        self.requests: list[Request] = []
        self.blocks: list[Block] = []
        self.findings: list[Finding] = []

    def add(self, origin: Origin, ids: Sequence[int], text: str) -> int:
        self.segments.append(Segment(origin=origin, ids=tuple(ids), text=text))
        return len(self.segments) - 1

    def force(self, text: str) -> list[int]:
        """The segment for text that the runtime writes; none for empty text."""
        if not text:
            return []
        return [self.add("forced", self._tokenizer.encode(text), text)]

    def open(self, live: Live) -> None:
        """Reserve the request's record and its output segment."""
        output = self.add("sampled", (), "")
        self.requests.append(Request(kind=live.kind, context=live.context, output=output))

    def close(self, live: Live, now: float) -> int:
        """Write what the call gave; returns the index of its output segment."""
        output = self.requests[live.request].output
        scored = live.scored and len(live.logprobs) == len(live.ids)
        self.segments[output] = Segment(
            origin="sampled",
            ids=tuple(live.ids),
            text=live.text,
            logprobs=tuple(live.logprobs) if scored and live.ids else None,
        )
        self.requests[live.request] = Request(
            kind=live.kind,
            context=live.context,
            output=output,
            block=live.place,
            branch=live.number,
            attempt=live.attempt,
            finish=live.finish,
            stop=live.stop,
            seed=live.seed,
            max_tokens=live.cap,
            cached_tokens=live.cached,
            started=live.started,
            first_token=live.first_token,
            finished=now,
            error=live.error,
        )
        return output

    def counted(self, request: int, tokens: int) -> None:
        """Keep the server's own count of what a call sampled."""
        known = self.requests[request]
        self.requests[request] = known.model_copy(update={"counted_tokens": tokens})

    def without_eos(self, index: int) -> list[int]:
        """The segment as context for text that follows it: an end-of-text token is left out."""
        segment = self.segments[index]
        ids = list(segment.ids)
        while ids and ids[-1] in self._tokenizer.eos_ids:
            ids.pop()
        if len(ids) == len(segment.ids):
            return [index]
        return [self.add("forced", ids, segment.text)] if ids else []

    def tokens_from(self, index: int, offset: int) -> int:
        """How many tokens of a segment end behind the character at ``offset`` of its text."""
        ids = self.segments[index].ids
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._tokenizer.decode(ids[:middle])) > offset:
                high = middle
            else:
                low = middle + 1
        return len(ids) - max(0, low - 1)

    def block(self, state: BlockState, policy: str, joined: bool) -> None:
        branches = tuple(
            Branch(
                number=b.number,
                kind=b.kind,
                title=b.title,
                outcome=b.outcome or "unclosed",
                requests=tuple(b.requests),
            )
            for b in state.branches
        )
        self.blocks.append(
            Block(
                path=state.path,
                opener=state.opener,
                plan_tokens=state.plan_tokens,
                branches=branches,
                merge=state.merge,
                policy=policy,
                decisions=tuple(state.decisions),
                outcome="joined" if joined else "open",
            )
        )

    def note(
        self, code: str, message: str, *, request: int | None = None, block: tuple[int, ...] = ()
    ) -> None:
        self.findings.append(
            Finding(code=code, message=message, request=request, block=block or None)
        )

    def drift(self, context: Sequence[int]) -> int:
        """Positions in which a context's ids differ from its text encoded in one piece."""
        parts = [s for s in (self.segments[i] for i in context) if s.origin != "prompt"]
        stop = self._tokenizer.eos_ids
        ids = [token for part in parts for token in part.ids if token not in stop]
        whole = self._tokenizer.encode("".join(part.text for part in parts))
        differing = sum(a != b for a, b in zip(ids, whole, strict=False))
        return differing + abs(len(ids) - len(whole))

    def length(self, context: Sequence[int]) -> int:
        return sum(len(self.segments[index].ids) for index in context)

    def ids(self, context: Sequence[int]) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self.segments[index].ids for index in context))

    def generated(self, context: Sequence[int]) -> str:
        """The text of a context without the prompt."""
        pieces = (self.segments[index] for index in context)
        return "".join(s.text for s in pieces if s.origin != "prompt")
