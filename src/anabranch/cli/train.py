"""`anabranch train …`: supervised training here, self-training in a module of its own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.checkpoint import require_checkpoint
from anabranch.cli.common import console, needs_training
from anabranch.cli.traces import choose_dialect
from anabranch.cli.train_data import (
    as_trained,
    checkpoint_info,
    evaluation_of,
    trajectories_of,
    with_tags,
)
from anabranch.cli.train_rl import rl
from anabranch.cli.train_self import self_training
from anabranch.engines.tokenizers import load_tokenizer

app = typer.Typer(no_args_is_help=True, help="Train models to fork and join.")
app.command("rl")(rl)


@app.callback()
def _group() -> None:
    """Train models to fork and join."""


app.command("self")(self_training)


@app.command("presets")
def presets() -> None:
    """List the named settings, and accelerate's files for several processes."""
    from anabranch.training.presets import (
        accelerate_file,
        accelerate_names,
        load_preset,
        preset_names,
    )

    for name in preset_names():
        preset = load_preset(name)
        console.print(f"{name}: {preset.title}; model {preset.model}; dialect {preset.dialect}")
    for name in accelerate_names():
        console.print(f"{name}: {accelerate_file(name)}", soft_wrap=True)


@app.command("sft")
def sft(
    model: Annotated[Path, typer.Option(help="Folder of the checkpoint to start from.")],
    data: Annotated[Path, typer.Option(help="JSON Lines: trajectories, or problem and text.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    preset: Annotated[str | None, typer.Option(help="Named settings; see train presets.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of the settings.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="name=value over the file, repeatable.")
    ] = None,
    dialect: Annotated[str | None, typer.Option(help="Default: read from the data.")] = None,
    add_tags: Annotated[
        bool | None,
        typer.Option(
            help="Make each tag a token of its own; default: the preset's, else tags as text."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="tree, or a baseline: seen, structured, sequential.")
    ] = "tree",
    problem_field: Annotated[str, typer.Option(help="Field with the problem.")] = "problem",
    text_field: Annotated[str, typer.Option(help="Field with the text.")] = "text",
    held_out: Annotated[
        Path | None, typer.Option(help="Trajectories whose loss is measured on the way.")
    ] = None,
    problems: Annotated[
        Path | None, typer.Option(help="Problems that are decoded by forking on the way.")
    ] = None,
    grader: Annotated[
        str | None, typer.Option(help="module:function(problem, trajectory) for --problems.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the run was stopped.")] = False,
    fallback: Annotated[
        bool, typer.Option(help="Resume from an older checkpoint where the newest is damaged.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Resume with other settings.")] = False,
) -> None:
    """Supervised training on trees; stopped runs resume exactly."""
    needs_training()
    from anabranch.config import load_config
    from anabranch.training import ranks
    from anabranch.training.baselines import attention_of, objective_file
    from anabranch.training.config import SFTConfig
    from anabranch.training.presets import load_preset
    from anabranch.training.sft import load_for_training, train_sft

    named = load_preset(preset) if preset is not None else None
    base = named.given() if named is not None else None
    settings = load_config(SFTConfig, config, overrides or (), base=base)
    require_checkpoint(model)
    own = add_tags if add_tags is not None else named is not None and named.add_tags
    wanted = dialect or (named.dialect if named is not None else None)
    chosen = as_trained(model, choose_dialect(wanted, data, text_field))
    console.quiet = not ranks.is_main()
    with ranks.main_first():
        if own:
            model = with_tags(model, output / "start", chosen)
        info = checkpoint_info(model, chosen)
        trajectories = trajectories_of(data, output, model, chosen, info, problem_field, text_field)
    evaluate = evaluation_of(held_out, problems, grader, model, info, chosen, settings)
    source, kind = objective_file(objective, trajectories, info, load_tokenizer(model))
    console.print(f"{len(source)} trajectories in {chosen.title}")
    network, tokenizer = load_for_training(model)
    with _progress() as (bar, report), attention_of(kind, network):
        result = train_sft(
            network,
            source,
            settings,
            output=output,
            tokenizer=tokenizer,
            info=info,
            resume=resume,
            force=force,
            fallback=fallback,
            on_progress=report,
            on_skip=lambda index, why: bar.console.print(f"skipped sample {index}: {why}"),
            on_shorten=lambda index, why: bar.console.print(f"sample {index} in part: {why}"),
            evaluate=evaluate,
        )
    if result.interrupted:
        console.print(f"stopped after step {result.steps}; go on with:", markup=False)
        console.print(_resume_command(), markup=False, soft_wrap=True)
        return
    parts = f", {len(result.shortened)} used in part" if result.shortened else ""
    console.print(
        f"{result.steps} steps, loss {result.loss:.4f}, {result.seconds:.0f} s; "
        f"{len(result.skipped)} samples skipped{parts}; the model is in {output / 'model'}"
    )


def _resume_command() -> str:
    """How this run goes on, as it was called."""
    called = [word for word in sys.argv[1:] if word not in ("--resume", "--no-resume")]
    start = "anabranch"
    if "WORLD_SIZE" in os.environ:
        start = "accelerate launch … -m anabranch.cli.app"
    return f"{start} {shlex.join([*called, '--resume'])}"


class _progress:
    """A progress bar as a context, with the function that moves it."""

    def __enter__(self) -> tuple[Progress, Callable[[Any], None]]:
        self.bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar.start()
        self.task = self.bar.add_task("", total=None, loss=float("nan"))
        return self.bar, self.report

    def report(self, progress: Any) -> None:
        self.bar.update(
            self.task, completed=progress.step, total=progress.steps, loss=progress.loss
        )

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
