"""Measures a running engine from outside: cold prompts, steady batches, and bursts of short calls.

Everything goes through the same engine object as decoding would, so the client's part of each call
and of each token is in the figures. Every point is taken several times, in rounds over all points,
so that a disturbance of some seconds does not fall on one point alone; the median counts. The
engine should be idle otherwise. The model is fitted in :mod:`anabranch.engines.profile_fit`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

from anabranch.engines.base import Call, Engine
from anabranch.engines.profile import BurstPoint, PrefillPoint, Profile, StepPoint
from anabranch.engines.profile_fit import fit
from anabranch.errors import EngineError, UsageError

#: Told after each point: how many are done, of how many.
Progress = Callable[[int, int], None]

_FEWEST = 4
_AGAIN = 4


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        lengths: prompt lengths of cold calls, in tokens.
        batches: outputs at once in steady decoding and in bursts.
        contexts: prompt lengths of steady decoding.
        tokens: tokens that each output of a batch decodes; its steps are averaged.
        repeats: how often each point is taken.
        seed: of the random prompts.
    """

    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (64, 256)
    tokens: int = 48
    repeats: int = 3
    seed: int = 0

    def within(self, window: int | None) -> Plan:
        """The part of the plan that fits into a window.

        Raises:
            UsageError: fewer than two prompt lengths do.
        """
        if window is None:
            return self
        lengths = tuple(n for n in self.lengths if n + 1 <= window)
        contexts = tuple(n for n in self.contexts if n + self.tokens <= window)
        if len(lengths) < 2 or not contexts:
            raise UsageError(
                f"the model's window of {window} tokens is too small for these prompt lengths: "
                "name shorter ones"
            )
        return replace(self, lengths=lengths, contexts=contexts)


@dataclass(slots=True)
class _Output:
    """When the tokens of one call came: ``(seconds, tokens so far)``."""

    prompt: int
    times: list[tuple[float, int]] = field(default_factory=list)

    def at(self, when: float) -> int:
        return max((count for time, count in self.times if time <= when), default=0)


class _Meter:
    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.engine, self.plan = engine, plan
        self.random = random.Random(plan.seed)
        special = engine.tokenizer.eos_ids | {engine.tokenizer.bos_id}
        words = engine.tokenizer.encode("0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n + - = ;")
        self.ids = sorted({token for token in words if token not in special})
        self.cached = 0

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self.random.choices(self.ids, k=length))

    async def call(self, ids: tuple[int, ...], tokens: int) -> _Output:
        output = _Output(len(ids))
        count = 0
        # Greedy: vLLM on the CPU dies of a seeded draw whose prompt takes more than one step.
        call = Call(ids, (), tokens, logprobs=False)
        async with aclosing(self.engine.generate(call)) as chunks:
            async for chunk in chunks:
                count += len(chunk.ids)
                if chunk.ids:
                    output.times.append((perf_counter(), count))
                if chunk.cached_tokens is not None:
                    self.cached = chunk.cached_tokens
        return output

    async def cold(self, length: int) -> float:
        began = perf_counter()
        await self.call(self.prompt(length), 1)
        return perf_counter() - began

    async def burst(self, calls: int, ids: tuple[int, ...]) -> float:
        began = perf_counter()
        await asyncio.gather(*(self.call(ids, 1) for _ in range(calls)))
        return perf_counter() - began

    async def steady(self, batch: int, context: int) -> tuple[float, float] | None:
        """Seconds of a step while all outputs run, and the sum of their contexts meanwhile."""
        for _ in range(_AGAIN):
            outputs = await asyncio.gather(
                *(self.call(self.prompt(context), self.plan.tokens) for _ in range(batch))
            )
            if any(len(one.times) < 2 for one in outputs):
                continue
            begin = max(one.times[0][0] for one in outputs)
            end = min(one.times[-1][0] for one in outputs)
            grown = sum(one.at(end) - one.at(begin) for one in outputs) / batch
            if end > begin and grown >= _FEWEST:
                inside = sum(one.prompt + (one.at(begin) + one.at(end)) / 2 for one in outputs)
                return (end - begin) / grown, inside
        return None


async def measure(
    engine: Engine, plan: Plan | None = None, progress: Progress | None = None
) -> Profile:
    """Profile an engine that is idle otherwise.

    Args:
        engine: opened.
        plan: what to measure; what does not fit into the model's window is left out.
        progress: told after each point.

    Raises:
        EngineError: a call failed, or outputs ended too early to see a step.
        UsageError: the window is too small for the plan.
    """
    plan = (plan or Plan()).within(engine.capabilities.window)
    meter = _Meter(engine, plan)
    shared = meter.prompt(max(plan.contexts))
    grid = [(batch, context) for batch in plan.batches for context in plan.contexts]
    total = plan.repeats * (len(plan.lengths) + len(plan.batches) + len(grid))
    cold: dict[int, list[float]] = {n: [] for n in plan.lengths}
    bursts: dict[int, list[float]] = {n: [] for n in plan.batches}
    steps: dict[tuple[int, int], list[tuple[float, float]]] = {point: [] for point in grid}
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    await meter.call(meter.prompt(max(plan.contexts)), plan.tokens)  # the first call warms up
    await meter.burst(2, shared)
    for _ in range(plan.repeats):
        for length in plan.lengths:
            cold[length].append(await meter.cold(length))
            tick()
        for calls in plan.batches:
            bursts[calls].append(await meter.burst(calls, shared))
            tick()
        for point in grid:
            found = await meter.steady(*point)
            if found is not None:
                steps[point].append(found)
            tick()
    left = len(shared) - meter.cached if engine.capabilities.prefix_cache else len(shared)
    return _profile(engine, cold, steps, {n: (left, times) for n, times in bursts.items()})


def _profile(
    engine: Engine,
    cold: dict[int, list[float]],
    steps: dict[tuple[int, int], list[tuple[float, float]]],
    bursts: dict[int, tuple[int, list[float]]],
) -> Profile:
    missing = [point for point, found in steps.items() if not found]
    if len(steps) - len(missing) < 2:
        raise EngineError(
            f"{engine.name}: the outputs ended too early to see a step: the model ends its text "
            "at once on random prompts"
        )
    profile = fit(
        [PrefillPoint(tokens=n, seconds=tuple(times)) for n, times in cold.items()],
        [
            StepPoint(
                batch=batch,
                context=median(inside for _, inside in found),
                seconds=tuple(seconds for seconds, _ in found),
            )
            for (batch, _), found in steps.items()
            if found
        ],
        [
            BurstPoint(calls=n, tokens=max(1, tokens), seconds=tuple(times))
            for n, (tokens, times) in bursts.items()
        ],
    )
    notes = [f"no steady step at {batch} outputs of {context}" for batch, context in missing]
    found = {
        "engine": engine.name,
        "model": engine.model,
        "window": engine.capabilities.window,
        "versions": _versions(),
        "notes": tuple(notes),
    }
    return profile.model_copy(update=found)


def _versions() -> dict[str, str]:
    return {
        "anabranch": importlib.metadata.version("anabranch"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, separated by commas, in rising order.

    Raises:
        UsageError: the text is something else.
    """
    try:
        found: Sequence[int] = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = (0,)
    if found[0] < 1:
        raise UsageError(f"{name} {text!r}: use whole numbers separated by commas, as 1,4,16")
    return tuple(found)
