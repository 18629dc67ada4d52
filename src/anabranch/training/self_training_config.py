"""Configuration of self-training: what is decoded, what is kept, what is mixed in, how it trains.

:class:`SelfTraining` is what decides the result; :class:`Job` adds where files lie, for the
command line. What the fields do is in :mod:`anabranch.training.self_training`, and for ``keep`` in
:mod:`anabranch.training.self_training_keep`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from anabranch.records import Limits
from anabranch.training.config import SFTConfig


class Decode(BaseModel):
    """How answers are drawn.

    Attributes:
        samples: answers a problem and round.
        temperature, top_p, top_k: of the sampling.
        limits: of each answer; an answer that meets one is not kept.
        width: branches a block, in dialects without a plan.
        concurrency: answers in flight.
        shard: problems that are decoded and written together; a kill loses one shard at most.
        problems: so many of the problems a round, each round the next ones in an order by the seed
            and from the start again at the end; None takes all of them in every round.
    """

    model_config = ConfigDict(extra="forbid")

    samples: int = Field(default=4, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    limits: Limits = Field(default_factory=Limits)
    width: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=64, ge=1)
    shard: int = Field(default=64, ge=1)
    problems: int | None = Field(default=None, ge=1)


class Keep(BaseModel):
    """Which answers become training data.

    Attributes:
        per_problem: at most so many answers of one problem.
        per_family: at most so many of one family; None is no limit.
        parallel_share: at least this share of the kept answers has a block.
        min_acceleration: an answer with blocks needs ``1 − critical / total`` of this.
        min_branch_tokens: a branch with fewer sampled tokens (its closing tag included) is none.
        similarity: answers to one problem whose runs of four tokens agree to this share (Jaccard)
            are one and the same; 1 drops equal ones only.
        prefer: which answers a quota takes first: by the seed, those with the shortest critical
            path, or those with the highest acceleration.
    """

    model_config = ConfigDict(extra="forbid")

    per_problem: int = Field(default=2, ge=1)
    per_family: int | None = Field(default=None, ge=1)
    parallel_share: float = Field(default=1.0, ge=0, le=1)
    min_acceleration: float = Field(default=0.05, ge=0, lt=1)
    min_branch_tokens: int = Field(default=2, ge=1)
    similarity: float = Field(default=0.9, gt=0, le=1)
    prefer: Literal["random", "short", "accelerated"] = "random"


class Mix(BaseModel):
    """What the next model is trained on, beside what this round kept.

    Attributes:
        earlier_share: share of the rows that come from before: the first rows and earlier rounds'.
            None takes all of them; rows are never repeated, so a share may be missed for want of
            them, which the data card says.
        rounds: whether earlier rounds' rows count among those from before.
    """

    model_config = ConfigDict(extra="forbid")

    earlier_share: float | None = Field(default=None, ge=0, lt=1)
    rounds: bool = True


class SelfTraining(BaseModel):
    """Rounds of decoding, keeping, mixing and training.

    Attributes:
        seed: of sampling, choices among rows, and training.
        rounds: how many.
        start_from: whether each round trains the last round's model, or the first one anew.
        decode, keep, mix: see there.
        train: of each round.
    """

    model_config = ConfigDict(extra="forbid")

    seed: int = 0
    rounds: int = Field(default=1, ge=1)
    start_from: Literal["last", "first"] = "last"
    decode: Decode = Field(default_factory=Decode)
    keep: Keep = Field(default_factory=Keep)
    mix: Mix = Field(default_factory=Mix)
    train: SFTConfig = Field(default_factory=SFTConfig)


class EngineSettings(BaseModel):
    """Where each round's model runs.

    Attributes:
        command: starts an OpenAI-compatible server of the round's checkpoint; ``{model}`` and
            ``{port}`` are filled in. None decodes in this process.
        url: a server that already runs the first model; good for one round.
        model: the model's name there.
        start_seconds: how long the command may take until it answers.
    """

    model_config = ConfigDict(extra="forbid")

    command: str | None = None
    url: str | None = None
    model: str | None = None
    start_seconds: float = Field(default=600.0, gt=0)


class Job(SelfTraining):
    """A run from the command line.

    Attributes:
        model: folder of the first checkpoint, with its ``anabranch.json``.
        problems: JSON Lines of problems with their right answers.
        output: folder of the run.
        grader: ``math``, ``lab``, or ``module:function`` from a trajectory to a verdict.
        earlier: files of trajectories that are mixed in: those of the first supervised stage.
        exclude: files of problems that may not be trained on, such as those of an evaluation.
        engine: where the models run.
    """

    model: Path
    problems: Path
    output: Path
    grader: str = "math"
    earlier: list[Path] = Field(default_factory=list)
    exclude: list[Path] = Field(default_factory=list)
    engine: EngineSettings = Field(default_factory=EngineSettings)

    def rules(self) -> SelfTraining:
        """What decides the result, without the places of files."""
        return SelfTraining(**{name: getattr(self, name) for name in SelfTraining.model_fields})
