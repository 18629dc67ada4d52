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

from anabranch.checkpoint import (
    CheckpointInfo,
    load_checkpoint_info,
    require_checkpoint,
    save_checkpoint_info,
)
from anabranch.decoding.prompts import tag_texts
from anabranch.dialects import get_dialect
from anabranch.engines.base import Tokenizer
from anabranch.engines.tokenizers import check_tags, load_tokenizer
from anabranch.errors import UsageError
from anabranch.lab.data import DIALECT, PROMPTS, reference_trajectory
from anabranch.lab.evaluate import FIRST_SUCCESS
from anabranch.lab.families import draw
from anabranch.lab.puzzle import cancel_losers, winners
from anabranch.lab.recipe import STAGES, Mix, RecipeStage, model_settings
from anabranch.lab.structure import Form
from anabranch.lab.tokenizer import save_tokenizer
from anabranch.records import Trajectory

Note = Callable[[str], None]


def sample(stage: RecipeStage, seed: int, index: int, tokenizer: Tokenizer) -> Trajectory:
    """The trajectory with this number of a stage: a function of its arguments alone."""
    rng = random.Random(f"{seed}:{stage.name}:{index}")
    mix = _pick(rng, stage.mix)
    size = rng.choice(mix.sizes)
    form: Form = rng.choices(list(mix.forms), list(mix.forms.values()))[0]
    problem = draw(rng, mix.family, size)
    solution = problem.solve(form)
    if mix.family == "puzzle" and solution.branches and rng.random() < stage.races:
        if stage.lockstep and rng.random() < stage.lockstep:
            return reference_trajectory(problem, form, tokenizer, policy=FIRST_SUCCESS)
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
    start: Path | None = None,
    note: Note = print,
) -> Path:
    """Train from nothing, or go on with a lab model that has not been through all stages.

    Args:
        output: folder of the run; a folder a stage, and the finished model in ``model``.
        seed: of the first weights and of all draws.
        scale: share of each stage's steps.
        resume: go on with the run in ``output``.
        threads: of torch.
        stages: the schedule.
        start: folder of a lab model; the stages that it names as done are left out.
        note: told how it goes.

    Returns:
        the folder of the finished model: bf16 weights, tokenizer, ``anabranch.json``.

    Raises:
        UsageError: the training extra is missing, the folder holds another run, or the model to
            start from is none of the lab's or has been through all stages.
    """
    if find_spec("torch") is None or find_spec("accelerate") is None:
        raise UsageError("training needs torch and accelerate: pip install 'anabranch[train]'")
    import torch

    from anabranch.training.data import Endless
    from anabranch.training.stages import Stage, run_stages

    torch.set_num_threads(threads)
    save_tokenizer(output / "tokenizer")
    tokenizer = load_tokenizer(output / "tokenizer")
    model, done = (new_model(seed), ()) if start is None else _begun(start, stages)
    parts = [
        Stage(
            stage.name,
            Endless(partial(_drawn, stage, seed, tokenizer)),
            stage.config(seed, scale, threads),
            keep_optimizer=number > 0,
        )
        for number, stage in enumerate(stages[len(done) :])
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


def _begun(folder: Path, stages: Sequence[RecipeStage]) -> tuple[Any, tuple[str, ...]]:
    """A lab model in fp32, and the names of the stages that it has been through."""
    import torch
    from transformers import LlamaForCausalLM

    from anabranch.engines.local_load import quiet_loading

    require_checkpoint(folder)
    trained = load_checkpoint_info(folder).training.get("stages", [])
    done = tuple(str(stage.get("name")) for stage in trained)
    names = tuple(stage.name for stage in stages)
    if not done or done != names[: len(done)]:
        raise UsageError(f"{folder} is no model of this recipe: its stages are {list(done)}")
    if done == names:
        raise UsageError(f"{folder} has been through all stages: {', '.join(names)}")
    with quiet_loading():
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), done


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
