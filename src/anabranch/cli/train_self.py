"""`anabranch train self`: rounds of a model's own right answers, from a configuration file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from anabranch.cli.common import console, needs_training
from anabranch.errors import UsageError
from anabranch.jsonl import read_records
from anabranch.records import Problem

if TYPE_CHECKING:
    from anabranch.training.self_training import SelfTrainingResult
    from anabranch.training.self_training_config import Job
    from anabranch.training.self_training_decode import Grade
    from anabranch.training.self_training_engines import OpenEngine


def self_training(
    config: Annotated[Path, typer.Argument(help="TOML file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="name=value over the file, repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the run was stopped.")] = False,
    force: Annotated[bool, typer.Option(help="Resume with other settings.")] = False,
) -> None:
    """Train a model on its own answers, where they are right and truly parallel."""
    needs_training()
    from anabranch.config import load_config
    from anabranch.training.self_training import self_train
    from anabranch.training.self_training_config import Job

    job = load_config(Job, config, overrides or ())
    result = self_train(
        job.model,
        list(read_records(job.problems, Problem)),
        grader(job.grader),
        job.rules(),
        job.output,
        earlier=job.earlier,
        exclude=[one for path in job.exclude for one in read_records(path, Problem)],
        open_engine=_engine(job),
        resume=resume,
        force=force,
        note=lambda text: console.print(text, markup=False, soft_wrap=True),
        on_progress=lambda number, p: console.print(
            f"round {number}: step {p.step}/{p.steps}, loss {p.loss:.4f}"
        ),
    )
    _report(result)
    if result.interrupted:
        console.print(f"stopped; go on with: anabranch train self {config} --resume")


def grader(name: str) -> Grade:
    """The grader that a configuration names.

    Raises:
        UsageError: it is unknown, or cannot be imported.
    """
    if name == "lab":
        from anabranch.lab.self_training import lab_grade

        return lab_grade
    if name == "math":
        from anabranch.grading import Grader

        mathematics = Grader()
        return lambda trajectory: mathematics.grade(None, trajectory)
    module, colon, function = name.partition(":")
    if not colon:
        raise UsageError(f"grader {name!r}: use math, lab, or module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"grader {name!r} cannot be imported: {error}") from None
    if not callable(found):
        raise UsageError(f"grader {name!r} is no function")
    grade: Grade = found
    return grade


def _engine(job: Job) -> OpenEngine:
    from anabranch.training.self_training_engines import at, in_process, served

    engine = job.engine
    if engine.command is not None and engine.url is not None:
        raise UsageError("engine: command and url exclude each other")
    if engine.command is not None:
        log = job.output / "engine.log"
        return served(engine.command, seconds=engine.start_seconds, log=log)
    if engine.url is None:
        return in_process
    if job.rounds > 1:
        raise UsageError(
            "engine.url serves one model, and each round has its own: set rounds = 1, or give "
            "engine.command"
        )
    return at(engine.url, engine.model)


def _report(result: SelfTrainingResult) -> None:
    from anabranch.training.cards import DataCard

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("round", "decoded", "well formed", "right", "kept", "card"):
        table.add_column(title)
    for path in result.cards:
        card = DataCard.model_validate_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        counts = card.families["all"]
        numbers = (card.round, counts.decoded, counts.well_formed, counts.correct, counts.kept)
        table.add_row(*map(str, numbers), str(path))
    console.print(table)
    if result.models:
        console.print(f"the model is in {result.models[-1]}")
