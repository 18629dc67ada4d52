"""Models to begin reinforcement learning with that are not finished, on purpose.

Each is made by supervised training from data alone, so a study can be repeated from nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw
from anabranch.lab.structure import Form
from anabranch.records import Trajectory


def damaged(target: Path, damage: Mapping[Form, float], *, steps: int = 150) -> None:
    """The bundled model, taught open prompts with a share of the answers ending in a wrong sum.

    What a policy learns of them is that an answer of that form is wrong that often.

    Args:
        target: where it is saved.
        damage: the share of wrong answers by form.
        steps: of the training.
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
        wrong = rng.randrange(1, 10) if rng.random() < damage.get(form, 0.0) else 0
        return open_sample(problem, form, tokenizer, shift=wrong)

    config: Any = SFTConfig(
        steps=steps, tokens_per_batch=3000, learning_rate=5e-4, beta2=0.98, weight_decay=0.0
    )
    train_sft(model, Endless(sample), config)
    save_open(model, hub, base, target)
