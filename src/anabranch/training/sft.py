"""Supervised training of a causal LM on fork-join trajectories, exact and resumable.

:func:`train_sft` runs one configuration; several in a row, as a curriculum has them, are in
:mod:`anabranch.training.stages`. Trajectories come from a source
(:mod:`anabranch.training.data`); making them from documents is decoding's business, judging the
result is evaluation's.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import PickleError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from anabranch.checkpoint import CheckpointInfo, save_checkpoint_info
from anabranch.engines.local_load import quiet_loading
from anabranch.errors import ModelError, UsageError
from anabranch.training import runs
from anabranch.training.attention import NAME
from anabranch.training.audit import audit, refuse_implementation, use_tree_attention
from anabranch.training.batches import Batches, BatchPlan
from anabranch.training.config import SFTConfig
from anabranch.training.data import Item, Source, Stream, identity
from anabranch.training.layout import Weight
from anabranch.training.trainer import Evaluate, Progress, RunCallback, TreeTrainer

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class SFTResult:
    """The end of a run.

    Attributes:
        model: trained in place; the same object that was given.
        steps: optimizer steps done in all, before a resume included.
        loss: as last reported.
        tokens: tree tokens trained on in this call.
        seconds: of this call.
        skipped: samples left out: index and reason.
        interrupted: stopped by a signal; the output directory can be resumed.
        optimizer_state: of the optimizer at the end, for a following stage.
    """

    model: Any
    steps: int
    loss: float
    tokens: int
    seconds: float
    skipped: dict[int, str]
    interrupted: bool
    optimizer_state: dict[str, Any]


def load_for_training(path: Path | str, *, attention: str = NAME) -> tuple[Any, Any]:
    """Model (fp32) and tokenizer of a checkpoint, set up for trees.

    Args:
        path: a directory or a name on the hub.
        attention: the implementation asked for; anything that ignores trees is refused.

    Raises:
        ModelError: it cannot be loaded, or cannot be trained on trees.
    """
    refuse_implementation(attention)
    try:
        with quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "unknown reason"
        raise ModelError(f"{path}: cannot be loaded: {first}") from error
    use_tree_attention(model)
    return model, tokenizer


def train_sft(
    model: Any,
    data: Source | Iterable[Item],
    config: SFTConfig,
    *,
    output: Path | str | None = None,
    tokenizer: Any = None,
    info: CheckpointInfo | None = None,
    resume: bool = False,
    force: bool = False,
    weight: Weight | None = None,
    on_progress: OnProgress | None = None,
    on_skip: Callable[[int, str], None] | None = None,
    evaluate: Evaluate | None = None,
    optimizer_state: dict[str, Any] | None = None,
) -> SFTResult:
    """Train a model in place.

    Args:
        model: a transformers causal LM.
        data: a list of trajectories (or groups, or layouts), a
            :class:`~anabranch.training.data.TrajectoryFile`, an
            :class:`~anabranch.training.data.Endless` function of the index, or any iterable.
        config: everything else.
        output: directory of the run; None keeps nothing on disk.
        tokenizer: saved beside the weights.
        info: what ``anabranch.json`` shall say; training configuration and versions are filled in.
        resume: go on with the run in ``output`` if there is one.
        force: resume with another configuration.
        weight: weight of each request's tokens.
        on_progress, on_skip: told of progress, and of each sample that is left out.
        evaluate: called with model and step every ``config.eval_every`` steps; what it returns is
            logged.
        optimizer_state: moments to begin with.

    Raises:
        ModelError: the model cannot be trained on trees, or the loss is not finite.
        UsageError: nothing to train on, a wrong combination, or a run that cannot be resumed.
        LayoutError: no sample is usable, or one is too long and ``too_long`` is ``error``.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    use_tree_attention(model)
    found = audit(model, backend=config.attention)
    directory = Path(output) if output is not None else None
    source = _source(data)
    resolved = {**config.model_dump(mode="json"), "data": identity(source)}
    checkpoint = runs.begin(directory, resolved, resume=resume, force=force) if directory else None
    batches = Batches(source, _plan(model, config), weight=weight, on_skip=on_skip)
    steps = config.steps or batches.steps_in(config.epochs)
    if info is not None:
        info = info.model_copy(
            update={"training": {**resolved, "steps": steps}, "versions": runs.versions()}
        )
    with tempfile.TemporaryDirectory(prefix="anabranch-") as scratch:
        trainer = TreeTrainer(
            model,
            _arguments(config, steps, directory or Path(scratch), save=directory is not None),
            batches,
            backend=config.attention,
            gather=found.gather,
            optimizer_state=optimizer_state,
            processing_class=tokenizer,
        )
        callback = RunCallback(
            trainer,
            directory,
            keep=config.keep,
            info=info,
            on_progress=on_progress,
            evaluate=evaluate,
            eval_every=config.eval_every,
        )
        trainer.add_callback(callback)
        _run(trainer, callback, checkpoint, steps)
    result = _result(trainer, callback, steps)
    if directory is not None and not result.interrupted:
        _finish(trainer, directory, result, info)
    return result


def _run(trainer: TreeTrainer, callback: RunCallback, checkpoint: Path | None, steps: int) -> None:
    if checkpoint is not None:
        trainer.batches.place = runs.place_of(checkpoint)
        trainer.place = trainer.batches.place
    was_cached = trainer.model.config.use_cache
    try:
        with callback.stops_on_sigterm(), quiet_loading():
            _train(trainer, checkpoint)
    finally:
        trainer.model.config.use_cache = was_cached
        trainer.model.eval()
    if trainer.state.global_step < steps and not callback.stop.is_set():
        raise UsageError(
            f"the data ended after {trainer.state.global_step} of {steps} steps: "
            "give fewer steps or more data"
        )


def _train(trainer: TreeTrainer, checkpoint: Path | None) -> None:
    if checkpoint is None:
        trainer.train()
        return
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except _UNREADABLE as error:
        if trainer.tokens:  # training had begun, so the checkpoint was read
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{checkpoint} cannot be read ({first}): remove it to go on from the one before"
        ) from error


def _result(trainer: TreeTrainer, callback: RunCallback, steps: int) -> SFTResult:
    return SFTResult(
        model=trainer.model,
        steps=trainer.state.global_step,
        loss=callback.last_loss,
        tokens=trainer.tokens,
        seconds=callback.seconds,
        skipped=dict(trainer.batches.skipped),
        interrupted=callback.stop.is_set() and trainer.state.global_step < steps,
        optimizer_state=trainer.optimizer.state_dict(),
    )


def _finish(
    trainer: TreeTrainer, directory: Path, result: SFTResult, info: CheckpointInfo | None
) -> None:
    target = directory / runs.MODEL
    with quiet_loading():
        trainer.save_model(str(target))
    if not trainer.is_world_process_zero():
        return
    (target / "training_args.bin").unlink(missing_ok=True)
    torch.save(result.optimizer_state, directory / "optimizer.pt")
    if info is not None:
        save_checkpoint_info(info, target)
    summary = asdict(replace(result, model=None, optimizer_state={}))
    del summary["model"], summary["optimizer_state"]
    summary["skipped"] = [{"index": i, "reason": why} for i, why in result.skipped.items()]
    runs.write_json(directory / runs.RESULT, summary)


def _plan(model: Any, config: SFTConfig) -> BatchPlan:
    on_cuda = next(model.parameters()).is_cuda
    pad = getattr(model.config, "pad_token_id", None)
    return BatchPlan(
        seed=config.seed,
        tokens=config.tokens_per_batch,
        row_tokens=config.row_tokens,
        too_long=config.too_long,
        micro_batches=config.micro_batches,
        rank=int(os.environ.get("RANK", "0")),
        world=int(os.environ.get("WORLD_SIZE", "1")),
        pad_id=pad if isinstance(pad, int) and pad >= 0 else 0,
        multiple=128 if on_cuda else 1,
    )


def _arguments(config: SFTConfig, steps: int, directory: Path, *, save: bool) -> TrainingArguments:
    cosine = config.schedule == "cosine" and config.min_lr > 0
    return TrainingArguments(
        output_dir=str(directory),
        max_steps=steps,
        seed=config.seed,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=config.micro_batches,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine_with_min_lr" if cosine else _SCHEDULES[config.schedule],
        lr_scheduler_kwargs={"min_lr_rate": config.min_lr} if cosine else {},
        warmup_steps=math.ceil(config.warmup * steps),
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.epsilon,
        max_grad_norm=config.grad_clip,
        bf16=config.precision == "bf16",
        activation_checkpointing=config.gradient_checkpointing,
        logging_steps=config.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy="steps" if save and config.save_every else "no",
        save_steps=config.save_every or steps,
        ignore_data_skip=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
        dataloader_pin_memory=False,
    )


_SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant_with_warmup",
}


#: How torch, safetensors and json say that a file is damaged.
_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, EOFError, SafetensorError, PickleError)


def _source(data: Source | Iterable[Item]) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, Iterable):
        return Stream(lambda: data)
    raise UsageError(f"training data must be a sequence or an iterable, not {type(data).__name__}")
