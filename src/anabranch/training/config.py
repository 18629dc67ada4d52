"""Configuration of supervised training; what each field does is in the module that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Fields that do not change the result, so a resumed run may change them.
FREE_FIELDS = frozenset({"log_every", "save_every", "keep", "threads", "eval_every", "trackers"})

Tracker = Literal["trackio", "wandb", "tensorboard"]


class LoraSettings(BaseModel):
    """Adapters of low rank instead of all weights, through peft.

    Attributes:
        rank, alpha, dropout: as in LoRA; the update counts ``alpha / rank``.
        targets: names of the modules that get an adapter, or ``all-linear``.
    """

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: Literal["all-linear"] | list[str] = "all-linear"


class SFTConfig(BaseModel):
    """Supervised training on trees.

    Attributes:
        seed: of data order and dropout.
        steps: optimizer steps; None is ``epochs`` passes over finite data.
        tokens_per_batch: tree tokens of one optimizer step, over all ranks and micro-batches; a
            single longer tree makes a step of its own.
        samples_per_batch: samples of one optimizer step instead of a budget of tokens.
        row_tokens: length of a packed row; None is the longest tree of the step.
        packing: whether trees share rows; without it every tree is a row.
        bucket: so many samples of the shuffled order are sorted by length before steps are made
            of them; 0 leaves the order.
        too_long: what is done with a tree longer than ``row_tokens``, or with a request longer
            than the model's window: :mod:`anabranch.training.long`.
        micro_batches: parts in which a step is computed; changes memory, not the result.
        tag_learning_rate: of the embedding rows of tags that are one token; None is the rate of
            all.
        warmup: share of the steps over which the rate rises.
        min_lr: share of the rate at which the cosine ends.
        precision: ``fp32``, or ``bf16`` autocast.
        liger: Liger's kernels for the model's layers.
        lora: adapters instead of all weights.
        trackers: where figures go beside ``log.jsonl``.
        threads: torch's CPU threads; None leaves them.
        save_every: steps between checkpoints; None saves only the finished model.
        keep: how many checkpoints stay on disk.
        eval_every: steps between calls of the evaluation, if one is given.
    """

    model_config = ConfigDict(extra="forbid")

    seed: int = 0
    steps: int | None = Field(default=None, ge=1)
    epochs: float = Field(default=1.0, gt=0)
    tokens_per_batch: int = Field(default=8192, ge=1)
    samples_per_batch: int | None = Field(default=None, ge=1)
    row_tokens: int | None = Field(default=None, ge=2)
    packing: bool = True
    bucket: int = Field(default=0, ge=0)
    too_long: Literal["error", "skip", "drop", "split"] = "skip"
    micro_batches: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    tag_learning_rate: float | None = Field(default=None, gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = Field(default=0.05, ge=0, lt=1)
    min_lr: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    grad_clip: float = Field(default=1.0, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    attention: Literal["auto", "sdpa", "blocks", "flex"] = "auto"
    gradient_checkpointing: bool = False
    liger: bool = False
    lora: LoraSettings | None = None
    trackers: list[Tracker] = Field(default_factory=list)
    threads: int | None = Field(default=None, ge=1)
    log_every: int = Field(default=10, ge=1)
    save_every: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)
    eval_every: int | None = Field(default=None, ge=1)


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One entry per field that differs and would change the result of a resumed run."""
    names = sorted((old.keys() | new.keys()) - FREE_FIELDS)
    return [f"{n}: {old.get(n)!r} → {new.get(n)!r}" for n in names if old.get(n) != new.get(n)]
