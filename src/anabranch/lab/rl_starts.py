"""Models to begin reinforcement learning with: finished ones, and ones with a stated flaw.

Each is made by supervised training from data alone, so a study can be repeated from nothing.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anabranch.checkpoint import load_checkpoint_info, save_checkpoint_info
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw
from anabranch.lab.rl_arms import CHAINS, CHAINS_AND_PUZZLES, SHORT_PUZZLES, Pool, StartName
from anabranch.lab.rl_tasks import OPEN_PROMPT, make_chooser, open_sample
from anabranch.lab.structure import Form
from anabranch.records import Trajectory

Note = Callable[[str], None]


def make_start(name: StartName, folder: Path, *, note: Note = print) -> Path:
    """The checkpoint that a study begins with; made once.

    ``both_right``: the bundled model, taught to answer open prompts on chains in either form.
    ``puzzles_right``: the same on puzzles of one and two operators.
    ``half_trained``: as the first, with three in ten samples of either form ending wrong.
    ``sequential_better``: as the first, with a third of the parallel samples ending wrong.
    ``mixed``: chains and puzzles, three in ten samples of either form ending wrong.
    """
    target = folder / name
    if (target / "config.json").is_file():
        return target
    note(f"making the model to begin with: {name}")
    begun = time.process_time()
    fresh = folder / f".{name}"
    shutil.rmtree(fresh, ignore_errors=True)
    _MAKERS[name](fresh)
    fresh.replace(target)
    note(f"{name} took {time.process_time() - begun:.0f} CPU s")
    return target


def damaged(
    target: Path,
    damage: Mapping[Form, float],
    *,
    pools: tuple[Pool, ...] = CHAINS,
    steps: int = 150,
) -> None:
    """The bundled model, taught open prompts with a share of the answers ending wrong.

    What a policy learns of them is that an answer of that form is wrong that often.

    Args:
        target: where it is saved.
        damage: the share of wrong answers by form.
        pools: families with the sizes of their problems.
        steps: of the training.
    """
    from anabranch.training.config import SFTConfig
    from anabranch.training.data import Endless
    from anabranch.training.sft import load_for_training, train_sft

    base = bundled_model()
    model, hub = load_for_training(base)
    tokenizer = load_tokenizer(base)
    kinds = [(family, size) for family, sizes in pools for size in sizes]

    def sample(index: int) -> Trajectory:
        rng = random.Random(f"damaged:{index}")
        problem = draw(rng, *rng.choice(kinds))
        form: Form = rng.choice(["sequential", "parallel"])
        wrong = rng.randrange(1, 10) if rng.random() < damage.get(form, 0.0) else 0
        return open_sample(problem, form, tokenizer, shift=wrong)

    config: Any = SFTConfig(
        steps=steps, tokens_per_batch=3000, learning_rate=5e-4, beta2=0.98, weight_decay=0.0
    )
    train_sft(model, Endless(sample), config)
    save_open(model, hub, base, target)


def _chooser(target: Path, pool: Pool) -> None:
    from anabranch.training.sft import load_for_training

    base = bundled_model()
    family, sizes = pool
    model, hub = load_for_training(base)
    make_chooser(model, load_tokenizer(base), family=family, sizes=sizes, steps=150)
    save_open(model, hub, base, target)


_BOTH: Mapping[Form, float] = {"sequential": 0.3, "parallel": 0.3}
_MAKERS: Mapping[StartName, Callable[[Path], None]] = {
    "both_right": lambda target: _chooser(target, CHAINS[0]),
    "puzzles_right": lambda target: _chooser(target, SHORT_PUZZLES[0]),
    "half_trained": lambda target: damaged(target, _BOTH),
    "sequential_better": lambda target: damaged(target, {"parallel": 0.35}),
    "mixed": lambda target: damaged(target, _BOTH, pools=CHAINS_AND_PUZZLES),
}


def save_open(model: Any, hub: Any, base: Path, target: Path) -> None:
    """Save a lab checkpoint whose ordinary prompt is the open one."""
    from anabranch.engines.local_load import quiet_loading

    with quiet_loading():
        model.save_pretrained(target)
    hub.save_pretrained(target)
    info = load_checkpoint_info(base)
    prompts = {**info.prompts, "open": OPEN_PROMPT}
    save_checkpoint_info(info.model_copy(update={"prompts": prompts}), target)
