"""Configuration of training: pydantic models, TOML files, and ``--set a.b=c`` over them.

Loading here is general; what each field does to a run is in the module that runs it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.errors import UsageError

M = TypeVar("M", bound=BaseModel)

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


def load_config(
    model: type[M],
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
) -> M:
    """Read a TOML file and lay overrides such as ``optimizer.lr=1e-4`` over it.

    Args:
        model: the pydantic model.
        path: the file; None starts from the defaults.
        overrides: ``dotted.name=value``; the value is read as TOML, or else as a string.
        base: settings below the file's, such as those of a preset.

    Raises:
        UsageError: file missing or not TOML, unknown field, or a value that does not fit; one
            line naming the field.
    """
    data: dict[str, Any] = dict(base or {})
    where = "configuration"
    if path is not None:
        where = str(path)
        data |= read_toml(Path(path))
    for override in overrides:
        _apply(data, override)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: field {field!r}: {first['msg']}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UsageError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One entry per field that differs and would change the result of a resumed run."""
    names = sorted((old.keys() | new.keys()) - FREE_FIELDS)
    return [f"{n}: {old.get(n)!r} → {new.get(n)!r}" for n in names if old.get(n) != new.get(n)]


def _apply(data: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    keys = name.strip().split(".")
    if not separator or not all(keys):
        raise UsageError(f"--set takes name=value, not {override!r}")
    try:
        value = tomllib.loads(f"x = {text.strip()}")["x"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override}: {key!r} is a value, not a table")
        data = inner
    data[keys[-1]] = value
