"""`anabranch train rl`: reinforcement learning on fork-join rollouts, from one TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict

from anabranch.checkpoint import FILE, load_checkpoint_info, require_checkpoint
from anabranch.cli.common import console, needs_training
from anabranch.decoding import Setup, make_setup
from anabranch.engines.base import Tokenizer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.grading import Grader
from anabranch.jsonl import read_records
from anabranch.records import Problem, Trajectory, Verdict


class RLFile(BaseModel):
    """What the file says.

    Attributes:
        model: folder of the checkpoint to start from.
        output: folder of the run.
        problems: JSON Lines of problems by pool; ``main`` is the usual one.
        engine: URL of a vLLM server, or ``sglang+URL``, that shares ``engine_folder``; None
            samples in this process.
        engine_folder: the checkpoint folder that the server was started with.
        rl: settings of the run, see :class:`anabranch.training.rl_config.RLConfig`.
    """

    model_config = ConfigDict(extra="forbid")

    model: Path
    output: Path
    problems: dict[str, Path]
    engine: str | None = None
    engine_folder: Path | None = None
    rl: dict[str, Any] = {}


def rl(
    config: Annotated[Path, typer.Argument(help="TOML file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="name=value over the file, repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the run was stopped.")] = False,
    force: Annotated[bool, typer.Option(help="Resume with other settings.")] = False,
) -> None:
    """Reinforcement learning; stopped runs resume exactly."""
    needs_training()
    from anabranch.config import load_config
    from anabranch.training.rl import Task, train_rl
    from anabranch.training.rl_config import RLConfig
    from anabranch.training.rollouts import LockstepSampler
    from anabranch.training.sft import load_for_training

    file = load_config(RLFile, config, overrides or ())
    settings = load_config(RLConfig, base=file.rl)
    require_checkpoint(file.model)
    pools = {name: list(read_records(path, Problem)) for name, path in file.problems.items()}
    info = load_checkpoint_info(file.model) if (file.model / FILE).is_file() else None
    model, hub = load_for_training(file.model)
    tokenizer = load_tokenizer(file.model)
    if file.engine is None:
        sampler: Any = LockstepSampler(model, tokenizer, concurrency=settings.concurrency)
    else:
        sampler = _engine_sampler(file, tokenizer, settings)

    def setup(problem: Problem) -> Setup:
        return make_setup(problem, sampler.engine, info=info, folder=file.model)

    maths = Grader()
    try:
        result = train_rl(
            model,
            tokenizer,
            Task(pools, setup, judge(maths)),
            settings,
            output=file.output,
            resume=resume,
            force=force,
            sampler=sampler,
            info=info,
            save_tokenizer=hub.save_pretrained,
            on_step=_print,
        )
    finally:
        sampler.close()
        maths.close()
    if result.interrupted:
        console.print(f"stopped after step {result.steps}; go on with --resume")
        return
    console.print(f"{result.steps} steps; the model is in {file.output / 'model'}")


def judge(maths: Grader) -> Callable[[Problem, Trajectory], Verdict]:
    """The lab's checkers for lab problems, else the grader's comparison with the answer."""
    from anabranch.lab.families import family_of
    from anabranch.lab.rl_tasks import grade_lab

    def grade(problem: Problem, trajectory: Trajectory) -> Verdict:
        try:
            family_of(problem.text)
        except ValueError:
            return maths.grade(problem, trajectory)
        return grade_lab(problem, trajectory)

    return grade


def _engine_sampler(file: RLFile, tokenizer: Tokenizer, settings: Any) -> Any:
    from anabranch.engines.completions import CompletionsEngine
    from anabranch.engines.sglang import SGLangEngine
    from anabranch.training.rollouts import EngineSampler
    from anabranch.training.weight_sync import SGLangSync, VLLMSync

    if file.engine_folder is None:
        raise UsageError("engine needs engine_folder: the checkpoint that the server serves")
    assert file.engine is not None
    engine: Any
    sync: Any
    if file.engine.startswith("sglang+"):
        url = file.engine.removeprefix("sglang+")
        engine, sync = SGLangEngine(url, tokenizer=tokenizer), SGLangSync(url, file.engine_folder)
    else:
        engine = CompletionsEngine(file.engine, tokenizer=tokenizer)
        sync = VLLMSync(file.engine, file.engine_folder)
    return EngineSampler(
        engine, sync, concurrency=settings.concurrency, probe_gap=settings.probe_gap
    )


def _print(row: dict[str, Any]) -> None:
    """One line of the live table."""
    console.print(
        f"step {row['step']:4d} {row['reward_name']:>12s}  reward {row['reward']:+.3f}  "
        f"right {row['accuracy']:.2f}  parallel {row['parallel_ratio']:.2f}  "
        f"path {row['path']:.0f}  loss {row['loss']:+.4f}  {row['seconds']:.1f} s",
        soft_wrap=True,
    )
