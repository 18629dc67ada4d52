"""What a run is judged by while it goes: loss on held-out trees, and problems solved by forking.

Each is called with the model and the step, as ``evaluate`` of :func:`train_sft` wants it, and
gives figures by name. How an answer is graded is the caller's; suites and reports are evaluation's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding import decode_many, make_setup
from anabranch.dialects import get_dialect, parse
from anabranch.engines.base import Tokenizer
from anabranch.engines.local import LocalEngine
from anabranch.errors import UsageError
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Problem, Trajectory
from anabranch.training import ranks
from anabranch.training.attention import NAME, Backend
from anabranch.training.data import Item, to_layout
from anabranch.training.loss import edge_logits, edge_logprobs, to_tensors, unwrapped
from anabranch.training.packing import collate, pack
from anabranch.training.trainer import Evaluate

Grade = Callable[[Problem, Trajectory], bool]


def together(*evaluations: Evaluate) -> Evaluate:
    """Several evaluations as one."""

    def evaluate(model: Any, step: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for evaluation in evaluations:
            found |= evaluation(model, step)
        return found

    return evaluate


class HeldOut:
    """Mean loss per target token of held-out samples; several processes share them.

    Args:
        samples: trajectories, groups or layouts.
        row_tokens: of one row; a longer tree is a row of its own.
        backend: as in training.
    """

    def __init__(
        self, samples: Iterable[Item], *, row_tokens: int = 4096, backend: Backend = "auto"
    ) -> None:
        layouts = [to_layout(item, name=f"held-out {n}") for n, item in enumerate(samples)]
        if not layouts:
            raise UsageError("there is nothing to evaluate on: the held-out data is empty")
        self.rows = pack(layouts, max(row_tokens, *map(len, layouts)))
        self.backend = backend

    def __call__(self, model: Any, step: int) -> dict[str, float]:
        device = next(model.parameters()).device
        summed = weight = 0.0
        with torch.no_grad():
            # Sharded weights are gathered by all processes at once: each makes as many calls.
            for number in range(0, len(self.rows), ranks.world()):
                mine = self.rows[number + ranks.rank() : number + ranks.rank() + 1]
                batch = to_tensors(collate(mine), device)
                logits = edge_logits(model, batch, backend=self.backend)
                logprobs = edge_logprobs(logits, batch.tokens)
                summed -= float((logprobs * batch.weights).sum())
                weight += float(batch.weights.sum())
        summed, weight = ranks.total([summed, weight])
        return {"held_out_loss": summed / weight}


@dataclass(frozen=True)
class DecodeProblems:
    """Solves a few problems by fork-join decoding with the model as it stands.

    Attributes:
        problems: few; several processes share them.
        tokenizer: of the model.
        info: how the checkpoint is meant to be run.
        grade: whether a trajectory solves its problem.
        limits: of one answer.
        concurrency: answers at once.
    """

    problems: Sequence[Problem]
    tokenizer: Tokenizer
    info: CheckpointInfo
    grade: Grade
    limits: Limits = field(default_factory=Limits)
    concurrency: int = 16

    def __call__(self, model: Any, step: int) -> dict[str, float]:
        if ranks.shards_wanted() and ranks.world() > 1:
            raise UsageError(
                "problems cannot be decoded while weights are sharded: evaluate checkpoints instead"
            )
        mine = self.problems[ranks.rank() :: ranks.world()]
        inner = unwrapped(model)
        try:
            done = asyncio.run(self._decode(inner, mine)) if mine else []
        finally:
            # The engine may have chosen another implementation for its cache.
            inner.set_attn_implementation(NAME)
        sums = ranks.total([float(len(mine)), *map(float, self._sums(mine, done))])
        count = max(sums[0], 1.0)
        names = ("accuracy", "format", "activation", "critical_path", "total_tokens")
        return {name: value / count for name, value in zip(names, sums[1:], strict=True)}

    async def _decode(self, model: Any, problems: Sequence[Problem]) -> list[Trajectory]:
        engine = LocalEngine(model, self.tokenizer, max_batch=4 * self.concurrency)
        try:
            setups = [
                replace(
                    make_setup(problem, engine, info=self.info, limits=self.limits), logprobs=False
                )
                for problem in problems
            ]
            return await decode_many(setups, engine, concurrency=self.concurrency)
        finally:
            await engine.close()

    def _sums(
        self, problems: Sequence[Problem], done: Sequence[Trajectory]
    ) -> tuple[int, int, int, int, int]:
        dialect = get_dialect(self.info.dialect)
        right = formed = forked = path = total = 0
        for problem, trajectory in zip(problems, done, strict=True):
            figures = trajectory_metrics(trajectory)
            right += trajectory.outcome == "answered" and self.grade(problem, trajectory)
            formed += parse(trajectory.text, dialect).well_formed
            forked += bool(trajectory.blocks)
            path += figures.critical_path
            total += figures.total_tokens
        return right, formed, forked, path, total
