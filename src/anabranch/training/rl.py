"""Reinforcement learning on fork-join rollouts: sample, score, update, hand over; then again.

The loop is here and reads as the algorithm does. What a step is made of: ``schedules`` (which
reward), ``rl_collect`` (rollouts, rewards, advantages), ``rl_learner`` (loss, optimizer), and
``rollouts`` (sampling and the way of the weights). Plots and trackers are fed by ``on_step``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anabranch.checkpoint import CheckpointInfo, save_checkpoint_info
from anabranch.engines.base import Tokenizer
from anabranch.engines.local_load import quiet_loading
from anabranch.errors import AnabranchError
from anabranch.jsonl import write_records
from anabranch.training import runs
from anabranch.training.batches import Place
from anabranch.training.rl_collect import Collected, Collector, Grade, MakeSetup
from anabranch.training.rl_config import RLConfig
from anabranch.training.rl_learner import Learner, NotFiniteError, UpdateReport
from anabranch.training.rl_problems import Problems, ProblemSource
from anabranch.training.rollouts import LockstepSampler, Sampler
from anabranch.training.signals import stops_on_signal

LOOP = "rl.json"
Row = dict[str, Any]
Evaluate = Callable[[Any, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned: pools of problems, how each is decoded, and who says what is right."""

    problems: Mapping[str, ProblemSource] | ProblemSource
    setup: MakeSetup
    grade: Grade


@dataclass(frozen=True, slots=True)
class RLResult:
    """The end of a run; ``rows`` are the log of this call's steps."""

    model: Any
    steps: int
    rows: list[Row]
    interrupted: bool


@dataclass(slots=True)
class _State:
    """Everything besides weights and optimizer that the next step depends on."""

    step: int = 0
    version: int = 0
    idle: int = 0


class _Clock:
    """Where the time of a step went."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class RLTrainer:
    """One run. :func:`train_rl` is the short way in."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        task: Task,
        config: RLConfig,
        *,
        sampler: Sampler | None = None,
        output: Path | None = None,
        info: CheckpointInfo | None = None,
        on_step: Callable[[Row], None] | None = None,
        evaluate: Evaluate | None = None,
        save_tokenizer: Callable[[Path], Any] | None = None,
    ) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.model, self.config, self.output, self.info = model, config, output, info
        self.on_step, self.evaluate, self.save_tokenizer = on_step, evaluate, save_tokenizer
        self.learner = Learner(model, config)
        self.sampler = sampler or LockstepSampler(model, tokenizer, concurrency=config.concurrency)
        self.problems = Problems(task.problems, config.seed)
        self.collector = Collector(
            config, self.sampler, self.problems, task.setup, task.grade, self._recover
        )
        self.state, self.stop = _State(), threading.Event()
        self.rows: list[Row] = []

    def run(self) -> RLResult:
        """All steps that are left."""
        config, state = self.config, self.state
        self.sampler.update(self.model)
        with stops_on_signal(self.stop):
            while state.step < config.steps and not self.stop.is_set():
                self.rows.append(self._step(state.step + 1))
                if config.save_every and state.step % config.save_every == 0:
                    self._save()
        interrupted = state.step < config.steps
        if self.output is not None:
            self._save() if interrupted else self._finish()
        self.model.eval()
        return RLResult(self.model, state.step, self.rows, interrupted)

    def _step(self, step: int) -> Row:
        """Sample, score, update, hand over."""
        clock, state = _Clock(), self.state
        began = time.perf_counter()
        plan = self.config.schedule.at(step)
        with clock("sampling"):
            batch = self.collector.collect(step, plan, state.version)
        with clock("update"):
            update = self._update(batch, step, plan.clip_high)
        gap = None
        if update.stepped:
            state.version += 1
            with clock("sync"):
                gap = self.sampler.update(self.model)
        state.step = step
        self._patience(batch)
        row = {"step": step, **plan.row(), **batch.figures, **asdict(update)}
        row |= {"version": state.version, "sync_gap": gap, "rate": self.config.rate(step)}
        row |= {f"seconds_{name}": took for name, took in clock.seconds.items()}
        row["seconds"] = time.perf_counter() - began
        self._report(row, batch)
        return row

    def _update(self, batch: Collected, step: int, clip_high: float | None) -> UpdateReport:
        try:
            return self.learner.update(batch.groups, step, clip_high=clip_high)
        except NotFiniteError as error:
            where = ""
            if self.output is not None:
                path = self.output / f"failed-step-{step}.jsonl"
                write_records(path, [t for g in batch.groups for t in g.trajectories])
                where = f"; its rollouts are in {path}"
            raise NotFiniteError(
                f"step {step}: {error}, and no step was taken{where}; go on from the last "
                "checkpoint with a lower learning rate"
            ) from None

    def _patience(self, batch: Collected) -> None:
        """Steps from which nothing can be learned are counted, and bounded."""
        state = self.state
        state.idle = 0 if batch.learnable else state.idle + 1
        if state.idle < self.config.patience:
            return
        figures = batch.figures
        shares = {n: v for n, v in figures.items() if n.startswith(("groups_", "share_")) and v}
        said = ", ".join(f"{name} {value:.2g}" for name, value in sorted(shares.items()))
        if self.output is not None:
            self._save()
        raise AnabranchError(
            f"no rollout had an advantage in {state.idle} steps in a row; in the last one: "
            f"accuracy {figures['accuracy']:.2f}, {said}. Other problems, or another reward?"
        )

    def _recover(self) -> None:
        self.sampler.update(self.model)

    def _report(self, row: Row, batch: Collected) -> None:
        config, output = self.config, self.output
        if self.evaluate and config.eval_every and row["step"] % config.eval_every == 0:
            found = self.evaluate(self.model, row["step"])
            self.sampler.update(self.model)
            row |= {f"eval_{name}": value for name, value in found.items()}
        if output is not None:
            runs.append_log(output, row)
            if config.keep_trajectories and row["step"] % config.keep_trajectories == 0:
                kept = [group.trajectories[0] for group in batch.groups]
                write_records(output / "trajectories" / f"step-{row['step']}.jsonl", kept)
        if self.on_step is not None:
            self.on_step(row)

    def _save(self) -> None:
        if self.output is None:
            return
        folder = self.output / f"checkpoint-{self.state.step}"
        if (folder / runs.STATE).is_file():
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.learner.save(folder)
        self._describe(folder)
        runs.write_json(folder / LOOP, {**asdict(self.state), "drawn": self.problems.drawn})
        runs.finish_checkpoint(self.output, self.state.step, Place(), self.config.keep)

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint; the next step is the one that would have followed."""
        self.learner.load(checkpoint)
        data = json.loads((checkpoint / LOOP).read_text(encoding="utf-8"))
        self.problems.drawn.update(data.pop("drawn"))
        self.state = _State(**data)

    def _finish(self) -> None:
        assert self.output is not None
        folder = self.output / runs.MODEL
        with quiet_loading():
            self.model.save_pretrained(folder)
        self._describe(folder)
        last = self.rows[-1] if self.rows else {}
        runs.write_json(self.output / runs.RESULT, {"steps": self.state.step, "last": last})

    def _describe(self, folder: Path) -> None:
        """What a loadable checkpoint has besides weights."""
        if self.save_tokenizer is not None:
            self.save_tokenizer(folder)
        if self.info is not None:
            training = {"rl": self.config.model_dump(mode="json")}
            update = {"training": training, "versions": runs.versions()}
            save_checkpoint_info(self.info.model_copy(update=update), folder)


def train_rl(
    model: Any,
    tokenizer: Tokenizer,
    task: Task,
    config: RLConfig,
    *,
    output: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    **parts: Any,
) -> RLResult:
    """Train a model in place.

    Args:
        model: a transformers causal LM.
        tokenizer: of the model.
        task: what is learned.
        config: everything else.
        output: directory of the run; None keeps nothing on disk.
        resume, force: as in :func:`anabranch.training.sft.train_sft`.
        parts: ``sampler``, ``info``, ``on_step``, ``evaluate``, ``save_tokenizer`` of
            :class:`RLTrainer`.

    Raises:
        ModelError: the model cannot be trained on trees, or loss or gradient are not finite.
        EngineError: rollouts failed beyond the retries, or weights were not taken over.
        AnabranchError: the grader fails, or there is nothing to be learned for too long.
    """
    directory = Path(output) if output is not None else None
    resolved = config.model_dump(mode="json")
    checkpoint = runs.begin(directory, resolved, resume=resume, force=force) if directory else None
    trainer = RLTrainer(model, tokenizer, task, config, output=directory, **parts)
    if checkpoint is not None:
        trainer.resume(checkpoint)
    return trainer.run()
