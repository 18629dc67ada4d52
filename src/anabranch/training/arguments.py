"""An :class:`SFTConfig` as the Trainer's arguments, and what has to be installed for it.

What a setting does to the batches is in :mod:`anabranch.training.batches`.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from anabranch.engines.local_load import window_of
from anabranch.errors import ModelError, UsageError
from anabranch.training import ranks
from anabranch.training.batches import BatchPlan
from anabranch.training.config import SFTConfig

_SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant_with_warmup",
}
#: Modules that serve a tracker; one of them suffices.
_TRACKERS = {
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard", "tensorboardX"),
}


def check_installed(config: SFTConfig) -> None:
    """Make sure that what the configuration asks for is there.

    Raises:
        UsageError: naming the package and the setting.
    """
    for tracker in config.trackers:
        if not any(find_spec(name) for name in _TRACKERS[tracker]):
            raise UsageError(
                f"trackers: {tracker} is not installed: pip install {tracker}, or leave it out"
            )
    for wanted, module, package, field in (
        (config.lora is not None, "peft", "peft", "lora"),
        (config.liger, "liger_kernel", "liger-kernel", "liger"),
    ):
        if wanted and find_spec(module) is None:
            raise UsageError(f"{field}: {package} is not installed: pip install {package}")


def batch_plan(model: Any, config: SFTConfig) -> BatchPlan:
    """How this process fills its steps."""
    on_cuda = next(model.parameters()).is_cuda
    pad = getattr(model.config, "pad_token_id", None)
    return BatchPlan(
        seed=config.seed,
        tokens=config.tokens_per_batch,
        samples=config.samples_per_batch,
        row_tokens=config.row_tokens,
        window=window_of(model),
        packing=config.packing,
        bucket=config.bucket,
        too_long=config.too_long,
        micro_batches=config.micro_batches,
        rank=ranks.rank(),
        world=ranks.world(),
        pad_id=pad if isinstance(pad, int) and pad >= 0 else 0,
        multiple=128 if on_cuda else 1,
    )


def training_arguments(
    config: SFTConfig, steps: int, directory: Path, *, save: bool
) -> TrainingArguments:
    """The Trainer's arguments. Where processes and shards are is accelerate's business.

    Args:
        config: of the run.
        steps: optimizer steps.
        directory: of the run.
        save: whether checkpoints are kept.
    """
    cosine = config.schedule == "cosine" and config.min_lr > 0
    arguments = TrainingArguments(
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
        use_liger_kernel=config.liger,
        logging_steps=config.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy="steps" if save and config.save_every else "no",
        save_steps=config.save_every or steps,
        ignore_data_skip=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=list(config.trackers) or "none",
        run_name=directory.name,
        dataloader_pin_memory=False,
        use_cpu=not torch.accelerator.is_available(),
        # Every parameter is part of every forward, also of one without targets.
        ddp_find_unused_parameters=False if ranks.world() > 1 else None,
    )
    ranks.allow_shards_on_cpu()
    return arguments


def check_launch(trainer: Any) -> None:
    """Make sure that the Trainer sees the processes and shards that the launcher was asked for.

    Raises:
        ModelError: it does not; every process would train alone on a part of the data.
    """
    seen = trainer.accelerator.num_processes
    if seen != ranks.world():
        raise ModelError(
            f"{ranks.world()} processes were launched but accelerate sees {seen}: "
            "start them with accelerate launch --config_file"
        )
    if ranks.shards_wanted() and ranks.world() > 1 and not trainer.is_fsdp_enabled:
        raise ModelError("FSDP was asked for but accelerate does not use it on this device")
