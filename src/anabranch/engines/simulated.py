"""An engine without a model: a script says what is generated, rates say how long it takes.

For tests, overhead measurements and capacity studies. Time is the event loop's, so in
:mod:`anabranch.engines.virtual_time` a simulation takes no real time and is exactly repeatable;
in an ordinary loop the engine waits as long as it says, with late steps made up for. One prefill
runs at a time, all outputs decode together. It is no model of any one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.output import IdOutput
from anabranch.engines.prefix_cache import PrefixCache
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import AnabranchError, ContextWindowError, EngineError, UsageError
from anabranch.records import FinishReason

__all__ = ["Script", "ScriptedReply", "Served", "SimulatedEngine"]


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What one call generates, and how it fails.

    Attributes:
        text: encoded to the sampled ids; an end token follows unless a stop string or the cap
            comes first.
        ids: instead of ``text``; the end token is added here too.
        logprob: of every token.
        error: raised in place of the token behind ``after`` tokens.
        after: see ``error``; also the place of ``stall``.
        stall: seconds that the output stands still there.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    logprob: float = -0.5
    error: EngineError | None = None
    after: int = 0
    stall: float = 0.0


@dataclass(slots=True)
class Served:
    """A call and what became of it; times are the loop's seconds.

    Attributes:
        finish: how it ended: as the chunk said, "cancelled" if the caller left, "error".
        tokens: sampled tokens.
        cached: prompt tokens that needed no prefill.
    """

    call: Call
    started: float
    cached: int = 0
    first_token: float | None = None
    finished: float | None = None
    tokens: int = 0
    finish: FinishReason = "cancelled"


Script = Callable[[Call], "ScriptedReply | str"]
Rate = Callable[[int], float]


class SimulatedEngine:
    """The engine.

    Args:
        script: the reply to a call, or replies by the text that the prompt ends with (the longest
            ending that fits is taken).
        tokenizer: by default one token per character.
        prefill_rate: prompt tokens per second that are not in the cache; None takes no time.
        decode_rate: tokens per second of one output: a number, or a function of how many decode
            at the time; None takes no time.
        window: the model's window in tokens.
        cache: the prefix cache, None for none.
        tokens_per_chunk: of each chunk, at most.
        record: keep every call in ``served``.

    Attributes:
        running: calls that are in prefill or decode; ``peak`` the most so far.
        sampled: tokens of all calls so far.
        cancelled: calls that the caller left.
        served: all calls in the order in which they came.
    """

    def __init__(
        self,
        script: Script | Mapping[str, ScriptedReply | str],
        tokenizer: Tokenizer | None = None,
        *,
        prefill_rate: float | None = None,
        decode_rate: float | Rate | None = None,
        window: int | None = None,
        cache: PrefixCache | None = None,
        tokens_per_chunk: int = 1,
        record: bool = True,
        name: str = "simulated",
        model: str = "script",
    ) -> None:
        self.name, self.model = name, model
        self.tokenizer: Tokenizer = tokenizer or CharTokenizer()
        self._script = script if callable(script) else self._by_ending(script)
        self._prefill_rate = prefill_rate
        self._decode_rate = decode_rate
        self._cache = cache
        self._size = tokens_per_chunk
        self._record = record
        self._prefill_free = 0.0
        self._decoding = 0
        self._eos = min(self.tokenizer.eos_ids, default=None)
        self.capabilities = Capabilities(prefix_cache=cache is not None, window=window)
        self.running = self.peak = self.sampled = self.cancelled = 0
        self.served: list[Served] = []

    async def check(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """Nothing is open."""

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams the script's reply at the given rates."""
        self._check(call)
        loop = asyncio.get_running_loop()
        served = Served(call, loop.time())
        if self._record:
            self.served.append(served)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await _until(loop, self._prefilled(served))
            self._decoding += 1
            try:
                async with aclosing(self._decode(served, loop)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                self._decoding -= 1
        except AnabranchError:
            served.finish = "error"
            raise
        finally:
            served.finished = loop.time()
            self.running -= 1
            self.sampled += served.tokens
            self.cancelled += served.finish == "cancelled"

    def _by_ending(self, replies: Mapping[str, ScriptedReply | str]) -> Script:
        endings = sorted(replies, key=len, reverse=True)

        def script(call: Call) -> ScriptedReply | str:
            prompt = self.tokenizer.decode(call.ids)
            for ending in endings:
                if prompt.endswith(ending):
                    return replies[ending]
            raise UsageError(f"the script has no reply to a prompt that ends in {prompt[-40:]!r}")

        return script

    def _check(self, call: Call) -> None:
        window = self.capabilities.window
        if window is not None and len(call.ids) + call.max_tokens > window:
            raise ContextWindowError(
                f"{self.name}: {len(call.ids)} prompt tokens and a cap of {call.max_tokens} "
                f"exceed the window of {window}",
                window=window,
                prompt_tokens=len(call.ids),
            )

    def _prefilled(self, served: Served) -> float:
        """The time at which the prompt is through; takes its place in the queue."""
        call = served.call
        if self._cache is not None:
            served.cached = self._cache.cached(call.ids)
            self._cache.add(call.ids)
        if self._prefill_rate is None:
            return served.started
        begin = max(served.started, self._prefill_free)
        self._prefill_free = begin + (len(call.ids) - served.cached) / self._prefill_rate
        return self._prefill_free

    def _step(self) -> float:
        rate = self._decode_rate
        if rate is None:
            return 0.0
        return 1.0 / (rate(self._decoding) if callable(rate) else rate)

    async def _decode(
        self, served: Served, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[Chunk, None]:
        call = served.call
        reply = self._script(call)
        reply = ScriptedReply(reply) if isinstance(reply, str) else reply
        ids = list(self.tokenizer.encode(reply.text) if reply.ids is None else reply.ids)
        if self._eos is not None and ids[-1:] != [self._eos]:
            ids.append(self._eos)
        output = IdOutput(self.tokenizer, call.stop, call.max_tokens)
        fails = reply.after if reply.error or reply.stall else len(ids)
        scored = reply.logprob if call.logprobs else None
        due, at = loop.time(), 0
        while not output.full and at < len(ids):
            if at >= fails:
                due += reply.stall
                await _until(loop, due)
                if reply.error:
                    raise reply.error
                fails = len(ids)
            due += self._step()
            await _until(loop, due)
            begin, at = at, at + 1
            # Steps that were due meanwhile: in real time this makes up for a late wake-up.
            limit = min(fails, begin + self._size)
            while at < limit and (late := due + self._step()) <= loop.time():
                due, at = late, at + 1
            if served.first_token is None:
                served.first_token = loop.time()
            new, text = output.push(ids[begin:at])
            served.tokens = output.count
            if new or text:
                yield _chunk(new, text, scored)
        new, text = output.close()
        served.finish = _finish(output, self.tokenizer)
        if self._cache is not None:
            self._cache.add([*call.ids, *ids[: output.count]])
        last = _chunk(new, text, scored)
        yield Chunk(
            last.ids,
            last.text,
            last.logprobs,
            served.finish,
            output.stop,
            len(call.ids),
            served.cached if self._cache is not None else None,
        )


def _chunk(ids: Sequence[int], text: str, logprob: float | None) -> Chunk:
    scores = None if logprob is None else (logprob,) * len(ids)
    return Chunk(tuple(ids), text, scores)


def _finish(output: IdOutput, tokenizer: Tokenizer) -> FinishReason:
    if output.stop is not None:
        return "stop"
    return "eos" if output.last in tokenizer.eos_ids else "length"


async def _until(loop: asyncio.AbstractEventLoop, when: float) -> None:
    """Waits for a time of the loop; others get their turn even if it is over."""
    if when <= loop.time():
        await asyncio.sleep(0)
        return
    waiter = loop.create_future()
    timer = loop.call_at(when, _wake, waiter)
    try:
        await waiter
    finally:
        timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
