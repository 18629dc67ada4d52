"""Trains the lab's model by its recipe, with the library's own supervised training.

Problems are drawn by index, so the same seed gives the same data on any machine, and a stopped run
goes on exactly where it was. What is drawn, and how long each stage lasts, is in
:mod:`anabranch.lab.recipe`; judging the result is :mod:`anabranch.lab.results`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anabranch.checkpoint import CheckpointInfo, save_checkpoint_info
from anabranch.decoding.prompts import tag_texts
from anabranch.dialects import get_dialect
from anabranch.engines.base import Tokenizer
from anabranch.engines.tokenizers import check_tags, load_tokenizer
from anabranch.errors import UsageError
from anabranch.lab.data import DIALECT, PROMPTS, reference_trajectory
from anabranch.lab.families import draw
from anabranch.lab.puzzle import cancel_losers, winners
from anabranch.lab.recipe import STAGES, Mix, RecipeStage, model_settings
from anabranch.lab.structure import Form
from anabranch.lab.tokenizer import save_tokenizer
from anabranch.records import Trajectory

Note = Callable[[str], None]

#: Share of the forking OR samples that end at the first success. Each loser is then cancelled
#: with one chance in two: which of them had finished depends on an engine's timing.
RACES = 0.5


def sample(stage: RecipeStage, seed: int, index: int, tokenizer: Tokenizer) -> Trajectory:
    """The trajectory with this number of a stage: a function of its arguments alone."""
    rng = random.Random(f"{seed}:{stage.name}:{index}")
    mix = _pick(rng, stage.mix)
    size = rng.choice(mix.sizes)
    form: Form = rng.choices(list(mix.forms), list(mix.forms.values()))[0]
    problem = draw(rng, mix.family, size)
    solution = problem.solve(form)
    if mix.family == "puzzle" and solution.branches and rng.random() < RACES:
        cancelled = frozenset(n + 1 for n in cancel_losers(solution, rng).cancelled)
        winner = winners(solution)[0] + 1
        return reference_trajectory(problem, form, tokenizer, winner=winner, cancelled=cancelled)
    return reference_trajectory(problem, form, tokenizer)


def _drawn(stage: RecipeStage, seed: int, tokenizer: Tokenizer, index: int) -> Trajectory:
    return sample(stage, seed, index, tokenizer)


def new_model(seed: int) -> Any:
    """An untrained model of the recipe's size."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**model_settings()))


def train_lab(
    output: Path,
    *,
    seed: int = 0,
    scale: float = 1.0,
    resume: bool = False,
    threads: int = 1,
    stages: Sequence[RecipeStage] = STAGES,
    note: Note = print,
) -> Path:
    """Train from nothing.

    Args:
        output: folder of the run; a folder a stage, and the finished model in ``model``.
        seed: of the first weights and of all draws.
        scale: share of each stage's steps.
        resume: go on with the run in ``output``.
        threads: of torch.
        stages: the schedule.
        note: told how it goes.

    Returns:
        the folder of the finished model: bf16 weights, tokenizer, ``anabranch.json``.

    Raises:
        UsageError: the training extra is missing, or the folder holds another run.
    """
    if find_spec("torch") is None or find_spec("accelerate") is None:
        raise UsageError("training needs torch and accelerate: pip install 'anabranch[train]'")
    import torch

    from anabranch.training.data import Endless
    from anabranch.training.stages import Stage, run_stages

    torch.set_num_threads(threads)
    save_tokenizer(output / "tokenizer")
    tokenizer = load_tokenizer(output / "tokenizer")
    model = new_model(seed)
    parts = [
        Stage(
            stage.name,
            Endless(partial(_drawn, stage, seed, tokenizer)),
            stage.config(seed, scale, threads),
            keep_optimizer=number > 0,
        )
        for number, stage in enumerate(stages)
    ]
    results = run_stages(
        model,
        parts,
        output,
        resume=resume,
        on_progress=lambda name, p: note(
            f"{name} {p.step}/{p.steps} loss {p.loss:.4f} {p.tokens / max(p.seconds, 1e-9):.0f} "
            "tokens/s"
        ),
    )
    if results and results[-1].interrupted:
        raise UsageError(f"stopped; go on with: anabranch lab train -o {output} --resume")
    return save_lab_model(model, output / "model", seed, stages)


def save_lab_model(
    model: Any, folder: Path, seed: int, stages: Sequence[RecipeStage] = STAGES
) -> Path:
    """Write weights (bf16), tokenizer and ``anabranch.json``; the folder of the checkpoint."""
    import torch

    from anabranch.engines.local_load import quiet_loading
    from anabranch.training.runs import versions

    save_tokenizer(folder)
    tokenizer = load_tokenizer(folder)
    with quiet_loading():
        model.to(torch.bfloat16).save_pretrained(folder)
    info = CheckpointInfo(
        dialect=DIALECT,
        tags=check_tags(tokenizer, tag_texts(get_dialect(DIALECT))),
        prompts=dict(PROMPTS),
        training={"seed": seed, "stages": [stage.summary() for stage in stages]},
        versions=versions(),
    )
    save_checkpoint_info(info, folder)
    return folder


def _pick(rng: random.Random, mix: Sequence[Mix]) -> Mix:
    return rng.choices(mix, [part.weight for part in mix])[0]
