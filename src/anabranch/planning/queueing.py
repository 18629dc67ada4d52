"""One replica in virtual time: continuous batching at the pace that a profile says.

A step computes the prompts that were just admitted, up to a bound, and one token of every output
that runs. Nothing happens token by token: between two arrivals or ends the steps are taken
together, so a simulation costs by calls and not by tokens. Pre-emption is left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from anabranch.engines.prefix_cache import PrefixCache
from anabranch.engines.profile import Profile


@dataclass(slots=True, eq=False)
class Work:
    """One call: ``prompt`` token ids, and how many tokens it samples."""

    prompt: tuple[int, ...]
    tokens: int
    output: tuple[int, ...] = ()
    cached: int = 0
    left: int = 0
    made: int = 0
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.Future())

    @property
    def context(self) -> int:
        """Tokens in the cache: what of the prompt is in, and what was made."""
        return len(self.prompt) - self.left + self.made


class ProfiledReplica:
    """A replica; use it inside a running loop, and ``close`` it at the end.

    Attributes:
        running, waiting: calls in the batch, and in front of it.
        busy: seconds in which it computed; ``sampled``, ``prefilled``: tokens.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.waiting: deque[Work] = deque()
        self.running: list[Work] = []
        self.busy = 0.0
        self.sampled = self.prefilled = 0
        self._cache = (
            PrefixCache(profile.cache_block, profile.cache_tokens) if profile.cache_block else None
        )
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._front = 0.0
        self._task = asyncio.ensure_future(self._run())

    @property
    def calls(self) -> int:
        """Calls that are in it, in the batch or not."""
        return len(self.running) + len(self.waiting)

    async def serve(self, work: Work) -> None:
        """Wait until the call is done; leaving early takes it out of the batch."""
        profile = self.profile
        now = self._loop.time()
        self._front = max(now, self._front) + profile.serial
        await asyncio.sleep(self._front - now + profile.latency / 2)
        if self._cache is not None:
            work.cached = self._cache.cached(work.prompt)
        work.left = len(work.prompt) - work.cached
        self.waiting.append(work)
        self._arrived.set()
        try:
            await work.done
        except asyncio.CancelledError:
            self._remove(work)
            raise
        await asyncio.sleep(profile.latency / 2)

    async def close(self) -> None:
        """End it; nothing may be running."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _remove(self, work: Work) -> None:
        if work in self.running:
            self.running.remove(work)
        elif work in self.waiting:
            self.waiting.remove(work)

    async def _run(self) -> None:
        while True:
            most = self.profile.max_num_seqs
            while self.waiting and (most is None or len(self.running) < most):
                self.running.append(self.waiting.popleft())
            if not self.running:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            began = self._loop.time()
            if any(work.left for work in self.running):
                await self._prefill()
            else:
                await self._decode()
            self.busy += self._loop.time() - began

    async def _prefill(self) -> None:
        """One step with prompts in it, in the order of their arrival."""
        decoding = [work for work in self.running if not work.left]
        budget = max(1, self.profile.max_batched_tokens - len(decoding))
        taken: list[tuple[Work, int]] = []
        for work in self.running:
            part = min(work.left, budget)
            if part:
                taken.append((work, part))
                budget -= part
        tokens = sum(part for _, part in taken)
        context = sum(work.context for work in self.running) + tokens
        whole = [work for work, part in taken if part == work.left]
        await asyncio.sleep(self.profile.step(len(decoding) + len(whole), context, tokens))
        self.prefilled += tokens
        for work, part in taken:
            work.left -= part
        for work in whole:
            if self._cache is not None:
                self._cache.add(work.prompt)
        self._advance([*decoding, *whole], 1)

    async def _decode(self) -> None:
        """All steps until an output ends or a call arrives."""
        outputs = list(self.running)
        context = float(sum(work.context for work in outputs))
        count = max(1, min(work.tokens - work.made for work in outputs))
        began = self._loop.time()
        self._arrived.clear()
        whole = self.profile.steps(count, len(outputs), context)
        try:
            async with asyncio.timeout(whole):
                await self._arrived.wait()
        except TimeoutError:
            pass
        else:
            # A step that has begun is finished before a call that came in its middle gets in.
            gone, took = 0, 0.0
            while gone < count and took < self._loop.time() - began:
                gone += 1
                took = self.profile.steps(gone, len(outputs), context)
            await asyncio.sleep(max(0.0, began + took - self._loop.time()))
            count = gone
        self._advance(outputs, count)

    def _advance(self, outputs: list[Work], count: int) -> None:
        for work in outputs:
            if work not in self.running:
                continue  # its caller left
            made = min(count, work.tokens - work.made)
            work.made += made
            self.sampled += made
            if work.made >= work.tokens:
                self.running.remove(work)
                if self._cache is not None:
                    self._cache.add((*work.prompt, *work.output))
                if not work.done.done():
                    work.done.set_result(None)
