"""The schedule that trains the lab's model, as data: model size, stages, mixes, steps, rates.

A curriculum is what makes so small a model learn. The first stage has many short problems, so
that looking a symbol up is learned by its name and not by its distance; the second has longer and
wider ones; the third is what is measured; the last is short and repeats it with races as decoding
ends them. How the draws become trajectories and how a stage is run is in `train`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.lab.structure import BOS, EOS, Form
from anabranch.lab.tokenizer import CONTEXT_LENGTH, PAD, vocabulary

if TYPE_CHECKING:
    from anabranch.training.config import SFTConfig

BOTH: Mapping[Form, float] = {"sequential": 0.5, "parallel": 0.5}
ALL: Mapping[Form, float] = {"sequential": 0.45, "parallel": 0.45, "mixed": 0.1}


@dataclass(frozen=True, slots=True)
class Mix:
    """One part of a stage's data: its share of the samples, the sizes and the forms drawn."""

    weight: float
    family: str
    sizes: tuple[tuple[int, ...], ...]
    forms: Mapping[Form, float] = field(default_factory=lambda: ALL)


@dataclass(frozen=True, slots=True)
class RecipeStage:
    """One stage: `steps` optimizer steps of about `batch_tokens` tree tokens.

    The rate falls from `rate` to `final_rate` along a cosine; `warmup` is a share of the steps.

    `races` is the share of the forking OR samples that end at the first success. In a race each
    loser is cancelled with one chance in two, for which of them had finished depends on an
    engine's timing; `lockstep` is the share of races that end as they do where all trials are
    equally fast: there mostly all losers are cancelled.
    """

    name: str
    mix: tuple[Mix, ...]
    batch_tokens: int
    steps: int
    rate: float
    final_rate: float
    warmup: float = 0.0
    races: float = 0.5
    lockstep: float = 0.0

    def config(self, seed: int, scale: float = 1.0, threads: int = 1) -> SFTConfig:
        """The stage as a configuration of supervised training."""
        from anabranch.training.config import SFTConfig

        return SFTConfig(
            seed=seed,
            steps=max(1, round(self.steps * scale)),
            tokens_per_batch=self.batch_tokens,
            learning_rate=self.rate,
            schedule="cosine",
            warmup=self.warmup,
            # One is not allowed there: a rate that does not fall is a rate that hardly falls.
            min_lr=min(self.final_rate / self.rate, 0.999),
            weight_decay=0.05,
            beta1=0.9,
            beta2=0.98,
            grad_clip=1.0,
            threads=threads,
            log_every=50,
            save_every=500,
            keep=1,
        )

    def summary(self) -> dict[str, Any]:
        """The stage as plain data, for the record that goes with the model."""
        return asdict(self)


STAGES: tuple[RecipeStage, ...] = (
    RecipeStage(
        name="short",
        mix=(
            Mix(
                1.0,
                "chains",
                ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (2, 2), (6, 1), (4, 1), (5, 1), (3, 2)),
                BOTH,
            ),
            Mix(0.6, "puzzle", ((1,), (1,), (2,)), BOTH),
        ),
        batch_tokens=1000,
        steps=2000,
        rate=3e-3,
        final_rate=3e-3,
        warmup=0.05,
    ),
    RecipeStage(
        name="wider",
        mix=(
            Mix(
                1.0,
                "chains",
                ((1, 5), (2, 3), (2, 5), (3, 2), (3, 5), (4, 2), (6, 2), (5, 3), (4, 5)),
            ),
            Mix(0.6, "puzzle", ((1,), (2,), (2,), (3,))),
        ),
        batch_tokens=2000,
        steps=1250,
        rate=2.5e-3,
        final_rate=2.5e-3,
    ),
    RecipeStage(
        name="full",
        mix=(
            Mix(1.0, "chains", tuple((k, 5) for k in (2, 3, 4, 5, 6))),
            Mix(0.5, "puzzle", ((3,),)),
        ),
        batch_tokens=3000,
        steps=2500,
        rate=2e-3,
        final_rate=1e-4,
    ),
    RecipeStage(
        name="races",
        mix=(
            Mix(1.0, "chains", tuple((k, 5) for k in (2, 3, 4, 5, 6))),
            Mix(1.0, "puzzle", ((3,),)),
        ),
        batch_tokens=3000,
        steps=450,
        rate=5e-4,
        final_rate=2e-5,
        warmup=0.05,
        races=0.75,
        lockstep=0.6,
    ),
)


def model_settings() -> dict[str, Any]:
    """The model: Llama layout, tied embeddings, heads of 32 as serving engines want them.

    The base of the rotary positions is high, so that a symbol is found by what it is at any
    distance: with a low one, single names are missed at single distances.
    """
    symbols = vocabulary()
    return {
        "vocab_size": len(symbols),
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
        "pad_token_id": symbols.index(PAD),
        "bos_token_id": symbols.index(BOS),
        "eos_token_id": symbols.index(EOS),
    }
