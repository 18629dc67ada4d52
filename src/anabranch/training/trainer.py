"""The Hugging Face Trainer with steps, loss and checkpoints of ours, and as little else as can be.

Accelerate, precision, clipping, schedules, optimizer and distributed training are the Trainer's.
What is replaced: where batches come from, the loss over edges, its divisor, progress, and which
checkpoints count as whole. The way in for users is :mod:`anabranch.training.sft`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from anabranch.checkpoint import CheckpointInfo, save_checkpoint_info
from anabranch.errors import ModelError, RecordError
from anabranch.training import ranks, runs
from anabranch.training.adapters import has_adapters
from anabranch.training.attention import Backend
from anabranch.training.audit import TOLERANCE, audit
from anabranch.training.batches import Batches, Place, Step
from anabranch.training.loss import BatchTensors, edge_logits, edge_loss, to_tensors
from anabranch.training.rates import scale_rows
from anabranch.training.tags import embedding_weights

Evaluate = Callable[[Any, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run stands. ``loss`` is the mean per unit of weight since the last report."""

    step: int
    steps: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    seconds: float
    skipped: int


class TreeTrainer(Trainer):  # type: ignore[misc]
    """Trains on the steps of a :class:`Batches`. ``place`` is where the next step begins."""

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        batches: Batches,
        *,
        backend: Backend = "auto",
        gather: bool = True,
        optimizer_state: dict[str, Any] | None = None,
        tag_rows: Sequence[int] = (),
        tag_ratio: float | None = None,
        processing_class: Any = None,
    ) -> None:
        super().__init__(model=model, args=args, processing_class=processing_class)
        self.remove_callback(PrinterCallback)
        self.loss_is_scaled_for_ga = True
        self.tag_rows, self.tag_ratio = tag_rows, tag_ratio
        self.batches, self.backend, self.gather = batches, backend, gather
        self.optimizer_state = optimizer_state
        self.place = batches.place
        self.tokens = 0

    def get_train_dataloader(self) -> _Loader:
        return _Loader(self.batches)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], float | None]:
        samples: list[dict[str, Any]] = []
        for _ in range(num_batches):
            sample = next(epoch_iterator, None)
            if sample is None:
                break
            samples.append(sample)
        if not samples:
            return [], None
        step: Step = samples[0].pop("step")
        self.place = step.after
        self.tokens += step.tokens
        return samples, step.total_weight

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        batch = BatchTensors(**{name: inputs[name] for name in BatchTensors.__dataclass_fields__})
        dtype = torch.bfloat16 if self.args.bf16 else None
        logits = edge_logits(model, batch, dtype=dtype, backend=self.backend, gather=self.gather)
        # Every rank adds its part of one global sum; data parallelism divides by their number.
        loss = edge_loss(logits, batch, num_items_in_batch) * self.accelerator.num_processes
        return (loss, None) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        if not bool(torch.isfinite(loss)):
            raise ModelError(
                f"the loss is {float(loss)} at step {self.state.global_step + 1}: training "
                "stopped; go on from the last checkpoint with a lower learning rate"
            )
        return loss

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.optimizer_state is not None:
            # Moments go on; rates, betas and decay are those of this run.
            fresh = optimizer.state_dict()
            optimizer.load_state_dict({**fresh, "state": self.optimizer_state["state"]})
            self.optimizer_state = None
        if self.tag_ratio is not None:
            rows = None if has_adapters(self.model) else list(self.tag_rows)
            scale_rows(optimizer, lambda: trainable_rows(self.model), rows, self.tag_ratio)
        return optimizer

    @property
    def sharded(self) -> bool:
        """Whether weights and moments lie in parts on several processes."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with writing(folder):
            super()._save_checkpoint(model, trial)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the Trainer counts parameters for it at every step


def trainable_rows(model: Any) -> list[Tensor]:
    """The tensors ``[vocabulary or rows, hidden]`` in which rows of tags are trained."""
    if has_adapters(model):
        return [p for name, p in model.named_parameters() if "trainable_tokens_delta" in name]
    found: list[Tensor] = embedding_weights(model)
    return found


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A failure to write names the folder, and what was half written is removed.

    Raises:
        ModelError: instead of what the libraries raise.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, RecordError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{folder} could not be written ({first}): make room or repair the disk, then resume; "
            "checkpoints before it are whole"
        ) from error


class _Loader:
    """What the Trainer iterates over: the micro-batches of all steps, one after another."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self.batches:
            for number, part in enumerate(step.micro):
                tensors = to_tensors(part)
                names = BatchTensors.__dataclass_fields__
                sample: dict[str, Any] = {name: getattr(tensors, name) for name in names}
                if number == 0:
                    sample["step"] = step
                yield sample


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Progress, evaluation, whole checkpoints, and a stop that saves."""

    def __init__(
        self,
        trainer: TreeTrainer,
        output: Path | None,
        *,
        keep: int,
        info: CheckpointInfo | None,
        on_progress: Callable[[Progress], None] | None,
        evaluate: Evaluate | None,
        eval_every: int | None,
    ) -> None:
        self.trainer, self.output, self.keep, self.info = trainer, output, keep, info
        self.on_progress, self.evaluate, self.eval_every = on_progress, evaluate, eval_every
        self.started = time.monotonic()
        self.stop = threading.Event()
        self.last_loss = float("nan")

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        wrapped = self.trainer.model_wrapped
        if wrapped is not self.trainer.model or self.trainer.sharded:
            # Wrapping, shards and autocast are part of what computes the steps.
            tolerance = TOLERANCE[torch.bfloat16] if args.bf16 else None
            audit(wrapped, backend=self.trainer.backend, tolerance=tolerance)

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.evaluate and self.eval_every and state.global_step % self.eval_every == 0:
            log = control.should_log
            self._evaluate(state.global_step)
            control.should_log = log  # logging the evaluation has reset it
        if state.global_step >= state.max_steps:
            control.should_log = True
        if ranks.any_rank(self.stop.is_set()):
            self.stop.set()
            control.should_log = True
            control.should_save = self.output is not None
            control.should_training_stop = True
        return control

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        self.last_loss = float(logs["loss"])
        progress = Progress(
            step=state.global_step,
            steps=state.max_steps,
            loss=self.last_loss,
            learning_rate=float(logs.get("learning_rate", 0.0)),
            grad_norm=float(logs.get("grad_norm", 0.0)),
            tokens=self.trainer.tokens,
            seconds=self.seconds,
            skipped=len(self.trainer.batches.skipped),
        )
        if self.output is not None and state.is_world_process_zero:
            runs.append_log(self.output, asdict(progress))
        if self.on_progress is not None:
            self.on_progress(progress)

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The mark says that the checkpoint is whole, so every process must have written its part.
        ranks.barrier()
        if self.output is None or not state.is_world_process_zero:
            return
        folder = self.output / f"checkpoint-{state.global_step}"
        place: Place = self.trainer.place
        with writing(folder):
            if self.info is not None:
                save_checkpoint_info(self.info, folder)
            runs.finish_checkpoint(self.output, state.global_step, place, self.keep)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def _evaluate(self, step: int) -> None:
        assert self.evaluate is not None
        # Sharded weights are gathered by the wrapper's forward, so that is what is called.
        model = self.trainer.model_wrapped if ranks.world() > 1 else self.trainer.model
        # Evaluation may draw random numbers; training must not notice.
        with torch.random.fork_rng(enabled=True), torch.no_grad():
            model.eval()
            found = self.evaluate(model, step)
            model.train()
        self.trainer.log({f"eval_{name}": value for name, value in found.items()})
        if self.output is not None and ranks.is_main():
            runs.append_log(self.output, {"step": step, "evaluation": found})
