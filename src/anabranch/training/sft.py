"""Supervised training of a causal LM on fork-join trajectories, exact and resumable.

:func:`train_sft` runs one configuration; several in a row, as a curriculum has them, are in
:mod:`anabranch.training.stages`. Trajectories come from a source
(:mod:`anabranch.training.data`); making them from documents is decoding's business, judging the
result is evaluation's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import PickleError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from anabranch.checkpoint import CheckpointInfo, save_checkpoint_info
from anabranch.engines.local_load import quiet_loading
from anabranch.errors import ModelError, UsageError
from anabranch.training import adapters, ranks, runs
from anabranch.training.arguments import (
    batch_plan,
    check_installed,
    check_launch,
    training_arguments,
)
from anabranch.training.attention import NAME, Backend
from anabranch.training.audit import audit, refuse_implementation, use_tree_attention
from anabranch.training.batches import Batches
from anabranch.training.config import SFTConfig
from anabranch.training.data import Item, Source, Stream, identity
from anabranch.training.layout import Weight
from anabranch.training.signals import stops_on_signal
from anabranch.training.tags import tag_rows
from anabranch.training.trainer import Evaluate, Progress, RunCallback, TreeTrainer, writing

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
        shortened: samples that were too long and were used in part or in parts.
        interrupted: stopped by a signal; the output directory can be resumed.
        optimizer_state: of the optimizer at the end, for a following stage; empty where it lies in
            parts on several processes.
    """

    model: Any
    steps: int
    loss: float
    tokens: int
    seconds: float
    skipped: dict[int, str]
    shortened: dict[int, str]
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
    fallback: bool = False,
    weight: Weight | None = None,
    on_progress: OnProgress | None = None,
    on_skip: Callable[[int, str], None] | None = None,
    on_shorten: Callable[[int, str], None] | None = None,
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
        fallback: resume from an older checkpoint where the newest is damaged.
        weight: weight of each request's tokens.
        on_progress, on_skip, on_shorten: told of progress, of each sample that is left out, and of
            each that is too long and used in part or in parts.
        evaluate: called with model and step every ``config.eval_every`` steps; what it returns is
            logged.
        optimizer_state: moments to begin with.

    Raises:
        ModelError: the model cannot be trained on trees, the loss is not finite, the disk is full,
            or the newest checkpoint is damaged.
        UsageError: nothing to train on, a wrong combination, or a run that cannot be resumed.
        LayoutError: no sample is usable, or one is too long and ``too_long`` is ``error``.
    """
    check_installed(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    use_tree_attention(model)
    directory = Path(output) if output is not None else None
    source = _source(data)
    resolved = {**config.model_dump(mode="json"), "data": identity(source)}
    checkpoint = _begin(directory, resolved, resume, force, fallback)
    batches = Batches(
        source, batch_plan(model, config), weight=weight, on_skip=on_skip, on_shorten=on_shorten
    )
    steps = config.steps or batches.steps_in(config.epochs)
    if info is not None:
        info = info.model_copy(
            update={"training": {**resolved, "steps": steps}, "versions": runs.versions()}
        )
    rows = tag_rows(info.tags) if info is not None else []
    if config.lora is not None:
        model = adapters.with_lora(model, config.lora, rows)
    with tempfile.TemporaryDirectory(prefix="anabranch-") as scratch:
        trainer = TreeTrainer(
            model,
            training_arguments(
                config, steps, directory or Path(scratch), save=directory is not None
            ),
            batches,
            backend=config.attention,
            optimizer_state=optimizer_state,
            tag_rows=rows,
            tag_ratio=_tag_ratio(config, rows),
            processing_class=tokenizer,
        )
        check_launch(trainer)
        # On the device, and with the kernels, that the steps will be computed with.
        trainer.gather = audit(model, backend=_audited(model, config)).gather
        _refuse_sharded(trainer, config)
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
        with writing(directory / runs.MODEL):
            _finish(trainer, directory, result, info)
    if config.lora is not None and not result.interrupted:
        result = replace(result, model=adapters.merge(result.model))
        if directory is not None and ranks.is_main():
            with writing(directory / runs.MODEL):
                _save_merged(result.model, directory, tokenizer, info)
    return result


def _begin(
    directory: Path | None, resolved: dict[str, Any], resume: bool, force: bool, fallback: bool
) -> Path | None:
    if directory is None:
        return None
    with ranks.main_first():
        if not ranks.is_main():
            return runs.newest_checkpoint(directory)
        return runs.begin(directory, resolved, resume=resume, force=force, fallback=fallback)


def _audited(model: Any, config: SFTConfig) -> Backend:
    """The back end for the audit; the device must be able to train with it.

    Sharded models are still on the CPU at this point, and are audited again when they are not.
    """
    if next(model.parameters()).is_cuda:
        return config.attention
    if config.attention == "flex" and not torch.cuda.is_available():
        raise UsageError("attention: flex_attention has no backward pass on CPU: use sdpa")
    return "sdpa"


def _tag_ratio(config: SFTConfig, rows: list[int]) -> float | None:
    if config.tag_learning_rate is None:
        return None
    if not rows:
        raise UsageError(
            "tag_learning_rate: no tag of the model is one token: add the tags, or leave it out"
        )
    return config.tag_learning_rate / config.learning_rate


def _refuse_sharded(trainer: TreeTrainer, config: SFTConfig) -> None:
    """What cannot be done while weights or moments lie in parts.

    Raises:
        UsageError: naming the setting.
    """
    if trainer.is_deepspeed_enabled and config.tag_learning_rate is not None:
        raise UsageError("tag_learning_rate: DeepSpeed takes one rate: leave it out, or use FSDP")
    if trainer.sharded and trainer.optimizer_state is not None:
        raise UsageError(
            "keep_optimizer: moments that lie in parts cannot be taken over: train without FSDP "
            "and DeepSpeed, or begin the stage with fresh ones"
        )


def _run(trainer: TreeTrainer, callback: RunCallback, checkpoint: Path | None, steps: int) -> None:
    if checkpoint is not None:
        trainer.batches.place = runs.place_of(checkpoint)
        trainer.place = trainer.batches.place
    was_cached = trainer.model.config.use_cache
    try:
        with stops_on_signal(callback.stop), quiet_loading():
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
            f"{checkpoint} cannot be read ({first}): ask for the one before, or begin again"
        ) from error


def _result(trainer: TreeTrainer, callback: RunCallback, steps: int) -> SFTResult:
    return SFTResult(
        model=trainer.model,
        steps=trainer.state.global_step,
        loss=callback.last_loss,
        tokens=trainer.tokens,
        seconds=callback.seconds,
        skipped=dict(trainer.batches.skipped),
        shortened=dict(trainer.batches.shortened),
        interrupted=callback.stop.is_set() and trainer.state.global_step < steps,
        optimizer_state={} if trainer.sharded else trainer.optimizer.state_dict(),
    )


def _finish(
    trainer: TreeTrainer, directory: Path, result: SFTResult, info: CheckpointInfo | None
) -> None:
    lora = adapters.has_adapters(trainer.model)
    target = directory / (adapters.ADAPTER if lora else runs.MODEL)
    with quiet_loading():
        trainer.save_model(str(target))
    if not trainer.is_world_process_zero():
        return
    (target / "training_args.bin").unlink(missing_ok=True)
    if result.optimizer_state:
        torch.save(result.optimizer_state, directory / "optimizer.pt")
    if info is not None:
        save_checkpoint_info(info, target)
    summary = asdict(replace(result, model=None, optimizer_state={}))
    del summary["model"], summary["optimizer_state"]
    for name in ("skipped", "shortened"):
        listed = getattr(result, name)
        summary[name] = [{"index": i, "reason": why} for i, why in listed.items()]
    runs.write_json(directory / runs.RESULT, summary)


def _save_merged(model: Any, directory: Path, tokenizer: Any, info: CheckpointInfo | None) -> None:
    """The whole model beside its adapter, so that any engine runs it."""
    target = directory / runs.MODEL
    with quiet_loading():
        model.save_pretrained(target)
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    if info is not None:
        save_checkpoint_info(info, target)


#: How torch, safetensors and json say that a file is damaged.
_UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, EOFError, SafetensorError, PickleError)


def _source(data: Source | Iterable[Item]) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, Iterable):
        return Stream(lambda: data)
    raise UsageError(f"training data must be a sequence or an iterable, not {type(data).__name__}")
