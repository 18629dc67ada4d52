"""Self-training on the lab: a model that computes and hardly forks learns it from its own answers.

The start model is trained on answers in one line, then for a short while on the smallest forks
among them. A supervised stage on a few rows of the sizes that are measured follows, after which
blocks are often malformed; then rounds of self-training, which never see a reference solution
again. Each seed is an arm of its own: other rows, other problems, other draws; every part of it is
a file, and what is there is not done again. What is measured is in
:mod:`anabranch.lab.self_training_results`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.jsonl import write_records
from anabranch.lab.data import reference_trajectory
from anabranch.lab.families import LabProblem, draw, draw_distinct, family_of
from anabranch.lab.recipe import Mix, RecipeStage
from anabranch.lab.structure import Form, extract_answer
from anabranch.lab.train import train_lab
from anabranch.records import Limits, Problem, Trajectory, Verdict
from anabranch.training import runs
from anabranch.training.config import SFTConfig
from anabranch.training.data import TrajectoryFile
from anabranch.training.self_training import SelfTrainingResult, self_train
from anabranch.training.self_training_config import Decode, Keep, SelfTraining
from anabranch.training.sft import load_for_training, train_sft

Note = Callable[[str], None]

_IN_LINE: dict[Form, float] = {"sequential": 1.0}
_FORKS: dict[Form, float] = {"parallel": 1.0}

#: Size of each family that is trained on and measured.
SIZES: dict[str, tuple[int, ...]] = {"chains": (3, 2), "puzzle": (2,)}

#: The start model: the lab's curriculum in one line only, and shorter; then forks, but only of
#: sizes that are smaller than those measured.
START: tuple[RecipeStage, ...] = (
    RecipeStage(
        name="short",
        mix=(
            Mix(
                1.0,
                "chains",
                ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (2, 2), (4, 1), (3, 2)),
                _IN_LINE,
            ),
            Mix(0.6, "puzzle", ((1,), (1,), (2,)), _IN_LINE),
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
                ((1, 3), (2, 2), (2, 3), (3, 2), (3, 3), (4, 2), (4, 3)),
                _IN_LINE,
            ),
            Mix(0.6, "puzzle", ((1,), (2,), (2,)), _IN_LINE),
        ),
        batch_tokens=2000,
        steps=1200,
        rate=2.5e-3,
        final_rate=1e-4,
    ),
    RecipeStage(
        name="smallest-forks",
        mix=(
            Mix(1.0, "chains", ((2, 1), (2, 2)), _FORKS),
            Mix(0.6, "puzzle", ((1,),), _FORKS),
            Mix(0.5, "chains", ((3, 3),), _IN_LINE),
            Mix(0.3, "puzzle", ((2,),), _IN_LINE),
        ),
        batch_tokens=1500,
        steps=300,
        rate=2e-3,
        final_rate=1e-4,
        warmup=0.05,
    ),
)

#: Of every answer, drawn or measured: about twice what a right one takes.
LIMITS = Limits(max_path_tokens=160, max_total_tokens=400)


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of one arm.

    Attributes:
        rows: rows of each family in the supervised stage.
        first_steps: its optimizer steps.
        problems: of each family and round on average: each round decodes other ones.
        samples: answers a problem.
        temperature: at which they are drawn, and at which models are measured.
        rounds: of self-training.
        steps: optimizer steps of each.
        rate: learning rate of both.
        held_out: problems of each family that are measured.
    """

    rows: int = 96
    first_steps: int = 120
    problems: int = 100
    samples: int = 4
    temperature: float = 1.0
    rounds: int = 2
    steps: int = 120
    rate: float = 2e-3
    held_out: int = 150


def start_model(output: Path, note: Note = print) -> Path:
    """The folder of the start model, trained if it is not there; about ten minutes of one core."""
    folder = output / "model"
    if (folder / "anabranch.json").is_file():
        return folder
    return train_lab(output, stages=START, resume=True, note=note)


def lab_grade(trajectory: Trajectory) -> Verdict:
    """The checker of the problem's own family as a grader.

    Raises:
        UsageError: the trajectory's problem is of no family of the lab.
    """
    if trajectory.problem is None:
        raise UsageError(f"{trajectory.id}: the lab's grader needs the problem")
    text = trajectory.problem.problem
    try:
        family = family_of(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    answer = extract_answer(trajectory.text)
    if answer is None:
        return Verdict(status="unparsed", gold=trajectory.problem.answer)
    right = family.check(text, trajectory.text)
    return Verdict(
        status="correct" if right else "wrong", answer=answer, gold=trajectory.problem.answer
    )


def lab_problems(drawn: Sequence[LabProblem]) -> list[Problem]:
    """Drawn problems as records with their right answers."""
    return [
        Problem(
            id=f"{one.family}-{number}",
            problem=one.text,
            answer=one.solve("sequential").answer,
            family=one.family,
            source="lab",
        )
        for number, one in enumerate(drawn)
    ]


def supervised(start: Path, folder: Path, plan: Plan, seed: int) -> Path:
    """The stage on few rows of the parallel form; the folder of its model."""
    if runs.result_of(folder) is not None:
        return folder / runs.MODEL
    tokenizer = load_tokenizer(start)
    rng = random.Random(f"self-training:{seed}")
    rows = [
        reference_trajectory(draw(rng, family, size), "parallel", tokenizer)
        for family, size in SIZES.items()
        for _ in range(plan.rows)
    ]
    data = folder / "rows.jsonl"
    write_records(data, rows)
    network, hf_tokenizer = load_for_training(start)
    done = train_sft(
        network,
        TrajectoryFile(data),
        _training(plan, plan.first_steps, seed),
        output=folder,
        tokenizer=hf_tokenizer,
        info=load_checkpoint_info(start),
        resume=True,
    )
    if done.interrupted:
        raise UsageError("stopped; the same command goes on")
    return folder / runs.MODEL


def rounds(
    model: Path, rows: Path, folder: Path, plan: Plan, seed: int, note: Note = print
) -> SelfTrainingResult:
    """The rounds of self-training that follow the supervised stage."""
    config = SelfTraining(
        seed=seed,
        rounds=plan.rounds,
        decode=Decode(
            samples=plan.samples,
            temperature=plan.temperature,
            limits=LIMITS,
            shard=50,
            problems=plan.problems * len(SIZES),
        ),
        keep=Keep(per_problem=2),
        train=_training(plan, plan.steps, seed),
    )
    return self_train(
        model,
        training_problems(plan, seed),
        lab_grade,
        config,
        folder,
        earlier=[rows],
        resume=True,
        note=note,
    )


def training_problems(plan: Plan, seed: int) -> list[Problem]:
    """The problems that an arm decodes: of the training split, other ones for each seed."""
    found: list[Problem] = []
    for family, size in SIZES.items():
        found += lab_problems(
            draw_distinct(1000 + seed, family, size, plan.problems * plan.rounds, evaluation=False)
        )
    return found


def _training(plan: Plan, steps: int, seed: int) -> SFTConfig:
    return SFTConfig(
        seed=seed,
        steps=steps,
        tokens_per_batch=1500,
        learning_rate=plan.rate,
        warmup=0.1,
        weight_decay=0.05,
        beta2=0.98,
        threads=1,
        save_every=50,
        keep=1,
    )
