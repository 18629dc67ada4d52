"""How long an engine takes: a small fitted model of it, and the file that keeps it.

An engine with continuous batching works in steps; in one step it computes the prompts that have
just been admitted and one token of each output that runs. The model of a step's time is linear:

    step = base + sequence · outputs + context · tokens in the cache + prefill · prompt tokens

and a call spends ``latency`` outside the engine's steps (connection, queue between processes) and
``serial`` in a front end that takes one call after the other. It is measured from outside by
:mod:`anabranch.engines.profile_measure` and fitted by :mod:`anabranch.engines.profile_fit`; the
simulated engine runs by it. One model, one machine, one set of server options: a profile says
nothing of any other. Speculative decoding, swapping and pre-emption are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.errors import RecordError
from anabranch.jsonl import atomic_writer, record_error


class PrefillPoint(BaseModel):
    """Cold calls of one token: prompt ``tokens`` and seconds until the end, one a repeat."""

    tokens: int
    seconds: tuple[float, ...]


class StepPoint(BaseModel):
    """Steady decoding: ``batch`` outputs at once whose contexts are ``context`` tokens in sum.

    ``seconds``, one a repeat, are those of one step: all outputs advance by one token.
    """

    batch: int
    context: float
    seconds: tuple[float, ...]


class BurstPoint(BaseModel):
    """``calls`` calls of one token at once, prompt in the cache: seconds until the last is in.

    ``tokens`` are the prompt tokens that each computes all the same.
    """

    calls: int
    tokens: int
    seconds: tuple[float, ...]


class Fit(BaseModel):
    """How well the model fits one kind of points: relative errors of their medians."""

    points: int
    median_error: float
    worst_error: float


class Profile(BaseModel):
    """The model, in seconds, what it was fitted to, and the engine's limits.

    Attributes:
        base, sequence, context, prefill: of a step, see the module.
        latency, serial: of a call, outside the steps.
        max_num_seqs: outputs that run at once; more calls wait. None: no limit is known.
        max_batched_tokens: prompt tokens of one step; longer prompts take several.
        cache_block: tokens per block of the prefix cache; None: prefixes are not shared.
        cache_tokens: capacity of the KV cache, None where unknown.
        window: the model's window in tokens.
        knee: outputs at which a step takes twice as long as with one, None beyond what was
            measured: from there on, more branches at once slow each other down.
    """

    model_config = ConfigDict(extra="allow")
    SCHEMA: ClassVar[int] = 1

    schema_version: int = SCHEMA
    engine: str = ""
    model: str = ""
    base: float = Field(ge=0)
    sequence: float = Field(default=0.0, ge=0)
    context: float = Field(default=0.0, ge=0)
    prefill: float = Field(default=0.0, ge=0)
    latency: float = Field(default=0.0, ge=0)
    serial: float = Field(default=0.0, ge=0)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_batched_tokens: int = Field(default=2048, ge=1)
    cache_block: int | None = Field(default=None, ge=1)
    cache_tokens: int | None = Field(default=None, ge=1)
    window: int | None = Field(default=None, ge=1)
    knee: int | None = None
    fits: dict[str, Fit] = Field(default_factory=dict)
    prefill_points: tuple[PrefillPoint, ...] = ()
    step_points: tuple[StepPoint, ...] = ()
    burst_points: tuple[BurstPoint, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def step(self, outputs: int, context: float, prompt_tokens: float = 0.0) -> float:
        """Seconds of one step."""
        return (
            self.base
            + self.sequence * outputs
            + self.context * context
            + self.prefill * prompt_tokens
        )

    def steps(self, count: int, outputs: int, context: float) -> float:
        """Seconds of ``count`` steps in a row, in each of which all outputs grow by a token."""
        grown = self.context * outputs * count * (count - 1) / 2
        return count * self.step(outputs, context) + grown


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write a profile whole or not at all."""
    with atomic_writer(path) as handle:
        json.dump(profile.model_dump(mode="json"), handle, indent=1)
        handle.write("\n")


def load_profile(path: Path | str) -> Profile:
    """Read a profile.

    Raises:
        RecordError: it cannot be read; names file and field.
    """
    path = Path(path)
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(error.strerror or "cannot be opened", path=path) from None
    except ValueError as error:
        raise RecordError(f"not JSON: {error}", path=path) from None
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise record_error(error, path, None) from None
    if profile.schema_version > Profile.SCHEMA:
        raise RecordError(
            f"schema_version {profile.schema_version} is newer than {Profile.SCHEMA}: "
            "update anabranch",
            path=path,
        )
    return profile
