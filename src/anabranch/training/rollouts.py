"""Where rollouts come from: the decoding machine, driven in lockstep here or by an engine.

:class:`LockstepSampler` steps all machines and the model under training together, in one thread
and in a fixed order: the same weights and seeds give the same rollouts bit for bit, which a run
that resumes exactly needs. :class:`EngineSampler` drives any engine, over HTTP too, and hands it
the weights through :mod:`anabranch.training.weight_sync`. Rewards are given elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from anabranch.decoding import Cancel, Machine, Setup, Start, decode_many
from anabranch.decoding.events import Output
from anabranch.engines.base import Call, Capabilities, Chunk, Engine, Tokenizer
from anabranch.engines.local_audit import choose_forward
from anabranch.engines.local_batch import Batch
from anabranch.engines.local_job import Job
from anabranch.engines.local_load import end_ids, window_of
from anabranch.errors import EngineError, ModelError
from anabranch.records import Trajectory
from anabranch.training.attention import NAME
from anabranch.training.weight_sync import Probe, WeightSync, check_probe

#: Finished sequences whose keys and values are kept for their continuations, in tokens.
CACHE_TOKENS = 1 << 16


class Sampler(Protocol):
    """Gives rollouts of the current policy.

    ``engine`` describes where tokens come from, for :func:`anabranch.decoding.make_setup`.
    """

    @property
    def engine(self) -> Engine: ...

    def sample(self, setups: Sequence[Setup]) -> list[Trajectory]:
        """One trajectory per setup, in order; engine failures have outcome ``failed``."""

    def update(self, model: Any) -> float | None:
        """Take over the model's weights and make sure of it; returns the gap found, if any."""

    def close(self) -> None: ...


@dataclass
class _Face:
    """The in-process model as an engine, for setups only; it is stepped, never called."""

    model: str
    tokenizer: Tokenizer
    capabilities: Capabilities
    name: str = "lockstep"

    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        raise EngineError("the lockstep sampler takes no single calls")

    async def close(self) -> None:
        return None


class LockstepSampler:
    """Rollouts of the model that is being trained, in this process.

    Args:
        model: a transformers causal LM with implementation ``"tree"``; shared, not copied.
        tokenizer: of the model.
        rows: requests that run at once.
        concurrency: trajectories that run at once.

    Raises:
        ModelError: the model cannot be decoded with the attention that it is trained with.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, rows: int = 128, concurrency: int = 64
    ) -> None:
        model.eval()
        forward = choose_forward(model).forward
        if model.config._attn_implementation != NAME:
            raise ModelError(
                f"{type(model).__name__} cannot be sampled in-process with the attention that it "
                "is trained with: use an engine"
            )
        self.tokenizer, self.concurrency = tokenizer, concurrency
        self.batch = Batch(forward, rows, CACHE_TOKENS if forward.caches else 0)
        self._model = model
        self._eos = tokenizer.eos_ids or end_ids(model)
        name = str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
        self._face = _Face(name, tokenizer, Capabilities(window=window_of(model)))

    @property
    def engine(self) -> Engine:
        return self._face

    def sample(self, setups: Sequence[Setup]) -> list[Trajectory]:
        """One trajectory per setup, in order."""
        run = _Lockstep(self, setups)
        try:
            with torch.inference_mode():
                return run.finish()
        finally:
            self.batch.reset()

    def update(self, model: Any) -> float | None:
        """The weights are shared, so only what was computed with the old ones is forgotten."""
        self._model.eval()
        self.batch.store.clear()
        return None

    def close(self) -> None:
        self.batch.reset()

    def job(self, call: Call) -> Job:
        return Job(call, self.tokenizer, self._eos)


class _Lockstep:
    """All machines of one call of :meth:`LockstepSampler.sample`."""

    def __init__(self, sampler: LockstepSampler, setups: Sequence[Setup]) -> None:
        self.sampler, self.setups = sampler, setups
        self.machines = [Machine(setup) for setup in setups]
        # Pieces matter to a machine only where one branch's end may cut off another.
        self.eager = [setup.policy.name != "all" for setup in setups]
        self.waiting = deque(range(len(setups)))
        self.running: set[int] = set()
        self.jobs: dict[Job, tuple[int, int]] = {}
        self.by_request: dict[tuple[int, int], Job] = {}
        self.began = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def finish(self) -> list[Trajectory]:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.sampler.concurrency:
                index = self.waiting.popleft()
                self.running.add(index)
                self._obey(index, self.machines[index].start(self.now))
            for job in self.sampler.batch.step():
                self._take(job)
        found = [machine.trajectory for machine in self.machines]
        return [trajectory for trajectory in found if trajectory is not None]

    def _take(self, job: Job) -> None:
        place = self.jobs.get(job)
        if place is None or job.cancelled:
            return
        index, request = place
        machine = self.machines[index]
        if job.failure is not None:
            self._forget(place)
            self._obey(index, machine.fail(request, job.failure, self.now))
        elif job.finish is not None or self.eager[index]:
            if job.finish is not None:
                self._forget(place)
            self._obey(index, machine.feed(request, job.fetch(), self.now))

    def _forget(self, place: tuple[int, int]) -> None:
        self.jobs.pop(self.by_request.pop(place))

    def _obey(self, index: int, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Start):
                self._start(index, output)
            elif isinstance(output, Cancel) and (index, output.request) in self.by_request:
                self.by_request[index, output.request].cancelled = True
                self._forget((index, output.request))
        if self.machines[index].done:
            self.running.discard(index)

    def _start(self, index: int, start: Start) -> None:
        call = start.call
        window = self.setups[index].window
        machine = self.machines[index]
        if call.max_tokens < 1:
            empty = Chunk(finish="length", prompt_tokens=len(call.ids), cached_tokens=0)
            self._obey(index, machine.feed(start.request, empty, self.now))
            return
        if window is not None and len(call.ids) + call.max_tokens > window:
            error = EngineError(
                f"prompt ({len(call.ids)}) and max_tokens ({call.max_tokens}) exceed {window}"
            )
            self._obey(index, machine.fail(start.request, error, self.now))
            return
        job = self.sampler.job(call)
        self.jobs[job] = (index, start.request)
        self.by_request[index, start.request] = job
        self.sampler.batch.add(job)


class EngineSampler:
    """Rollouts from any engine, which is given the weights before its first and every next use.

    Args:
        engine: belongs to this object from now on.
        sync: how it takes weights over; None: never (an engine with frozen weights).
        concurrency: trajectories that run at once.
        probe_prompts: ids of prompts on which each takeover is checked.
        probe_gap: largest mean difference of log-probs between engine and trainer.
    """

    def __init__(
        self,
        engine: Engine,
        sync: WeightSync | None,
        *,
        concurrency: int = 64,
        probe_prompts: Sequence[tuple[int, ...]] = (),
        probe_gap: float = 0.02,
    ) -> None:
        self._engine, self.sync, self.concurrency = engine, sync, concurrency
        self.probe_prompts, self.probe_gap = tuple(probe_prompts), probe_gap
        self._probe: Probe | None = None
        self._runner = asyncio.Runner()

    @property
    def engine(self) -> Engine:
        return self._engine

    def sample(self, setups: Sequence[Setup]) -> list[Trajectory]:
        """One trajectory per setup, in order."""
        if not self.probe_prompts:
            self.probe_prompts = tuple({s.prompt_ids: None for s in setups})[:4]
        work = decode_many(setups, self._engine, concurrency=self.concurrency)
        return self._runner.run(work)

    def update(self, model: Any) -> float | None:
        """Hand over the weights and check them.

        Raises:
            EngineError: the engine refuses, or does not answer with the new weights.
        """
        if self.sync is None:
            return None
        self._runner.run(self.sync.push(model))
        if not self.probe_prompts:
            return None
        checked = check_probe(model, self._engine, self.probe_prompts, self._probe, self.probe_gap)
        self._probe = self._runner.run(checked)
        return self._probe.gap

    def close(self) -> None:
        self._runner.run(self._engine.close())
        self._runner.close()
