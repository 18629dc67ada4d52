"""Models to begin reinforcement learning with that are not finished, on purpose.

Each is made by supervised training from data alone, so a study can be repeated from nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw
from anabranch.lab.recipe import STAGES, Mix
from anabranch.lab.structure import Form
from anabranch.records import Trajectory

BOTH: dict[Form, float] = {"sequential": 0.5, "parallel": 0.5}


def half_trained(folder: Path, note: Callable[[str], None]) -> Path:
    """A lab model from nothing, on short chains and then on those of the studies, cut short."""
    from anabranch.lab.train import train_lab

    short = replace(STAGES[0], mix=STAGES[0].mix[:1], steps=1300)
    sizes = ((1, 5), (2, 3), (3, 2), (2, 5), (3, 5))
    wider = replace(STAGES[1], mix=(Mix(1.0, "chains", sizes, BOTH),), steps=450, final_rate=3e-4)
    run = folder / "half_trained_run"
    train_lab(run, seed=0, resume=True, stages=(short, wider), note=note)
    return run / "model"


def damaged_forks(target: Path, *, damage: float = 0.35, steps: int = 150) -> None:
    """The bundled model, taught open prompts with a share of the forks ending in a wrong sum.

    What a policy learns of them is that a forked answer is wrong that often.
    """
    from anabranch.lab.reproduce import save_open
    from anabranch.lab.rl_tasks import open_sample
    from anabranch.training.config import SFTConfig
    from anabranch.training.data import Endless
    from anabranch.training.sft import load_for_training, train_sft

    base = bundled_model()
    model, hub = load_for_training(base)
    tokenizer = load_tokenizer(base)

    def sample(index: int) -> Trajectory:
        rng = random.Random(f"damaged:{index}")
        problem = draw(rng, "chains", rng.choice([(2, 5), (3, 5)]))
        form: Form = rng.choice(["sequential", "parallel"])
        wrong = rng.randrange(1, 10) if form == "parallel" and rng.random() < damage else 0
        return open_sample(problem, form, tokenizer, shift=wrong)

    config: Any = SFTConfig(
        steps=steps, tokens_per_batch=3000, learning_rate=5e-4, beta2=0.98, weight_decay=0.0
    )
    train_sft(model, Endless(sample), config)
    save_open(model, hub, base, target)
