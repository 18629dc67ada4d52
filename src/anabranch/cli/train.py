"""`anabranch train …`: supervised training here, self-training in a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.checkpoint import (
    FILE,
    CheckpointInfo,
    load_checkpoint_info,
    missing_files,
    require_checkpoint,
)
from anabranch.cli.common import console
from anabranch.cli.traces import choose_dialect
from anabranch.cli.train_self import self_training
from anabranch.decoding import render_prompt
from anabranch.decoding.prompts import tag_texts
from anabranch.dialects import Dialect, get_dialect
from anabranch.engines.tokenizers import check_tags, load_tokenizer, single_tokens
from anabranch.errors import UsageError
from anabranch.jsonl import read_rows

app = typer.Typer(no_args_is_help=True, help="Train models to fork and join.")


@app.callback()
def _group() -> None:
    """Train models to fork and join."""


app.command("self")(self_training)


@app.command("sft")
def sft(
    model: Annotated[Path, typer.Option(help="Folder of the checkpoint to start from.")],
    data: Annotated[Path, typer.Option(help="JSON Lines: trajectories, or problem and text.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    config: Annotated[Path | None, typer.Option(help="TOML file of the settings.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="name=value over the file, repeatable.")
    ] = None,
    dialect: Annotated[str | None, typer.Option(help="Default: read from the data.")] = None,
    add_tags: Annotated[
        bool, typer.Option(help="Make each tag a token of its own; default: tags as text.")
    ] = False,
    problem_field: Annotated[str, typer.Option(help="Field with the problem.")] = "problem",
    text_field: Annotated[str, typer.Option(help="Field with the text.")] = "text",
    resume: Annotated[bool, typer.Option(help="Go on where the run was stopped.")] = False,
    force: Annotated[bool, typer.Option(help="Resume with other settings.")] = False,
) -> None:
    """Supervised training on trees; stopped runs resume exactly."""
    if find_spec("accelerate") is None or find_spec("torch") is None:
        raise UsageError("training needs torch and accelerate: pip install 'anabranch[train]'")
    from anabranch.training.config import SFTConfig, load_config
    from anabranch.training.data import TrajectoryFile
    from anabranch.training.sft import load_for_training, train_sft

    settings = load_config(SFTConfig, config, overrides or ())
    require_checkpoint(model)
    chosen = _as_trained(model, choose_dialect(dialect, data, text_field))
    if add_tags:
        model = _with_tags(model, output / "start", chosen)
    info = _info(model, chosen)
    trajectories = _trajectories(data, output, model, chosen, info, problem_field, text_field)
    source = TrajectoryFile(trajectories)
    console.print(f"{len(source)} trajectories in {chosen.title}")
    network, tokenizer = load_for_training(model)
    with _progress() as (bar, report):
        result = train_sft(
            network,
            source,
            settings,
            output=output,
            tokenizer=tokenizer,
            info=info,
            resume=resume,
            force=force,
            on_progress=report,
            on_skip=lambda index, why: bar.console.print(f"skipped sample {index}: {why}"),
        )
    if result.interrupted:
        console.print(f"stopped after step {result.steps}; go on with --resume")
        return
    console.print(
        f"{result.steps} steps, loss {result.loss:.4f}, {result.seconds:.0f} s; "
        f"{len(result.skipped)} samples skipped; the model is in {output / 'model'}"
    )


def _as_trained(model: Path, dialect: Dialect) -> Dialect:
    """The checkpoint's own spacing of the same dialect: texts are read in any, written in this."""
    if not (model / FILE).is_file():
        return dialect
    known = load_checkpoint_info(model).dialect
    same = known.partition(":")[0] == dialect.name.partition(":")[0]
    return get_dialect(known) if same else dialect


def _with_tags(model: Path, folder: Path, dialect: Dialect) -> Path:
    """A copy of the checkpoint in which every tag is one token; made once a run."""
    if not missing_files(folder):
        return folder
    from anabranch.engines.local_load import quiet_loading
    from anabranch.training.sft import load_for_training
    from anabranch.training.tags import add_tags

    network, tokenizer = load_for_training(model)
    add_tags(network, tokenizer, tag_texts(dialect))
    with quiet_loading():
        network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _info(model: Path, dialect: Dialect) -> CheckpointInfo:
    """What the new checkpoint will say of itself: as the old one, or by the dialect's prompt."""
    if (model / FILE).is_file():
        known = load_checkpoint_info(model)
        if known.dialect != dialect.name:
            raise UsageError(
                f"{model} was trained on {known.dialect!r} and the data is in {dialect.name!r}: "
                f"convert the data, or remove {model / FILE} to start over"
            )
        return known
    tokenizer = load_tokenizer(model)
    tags = tag_texts(dialect)
    ids = check_tags(tokenizer, tags)
    template = render_prompt("{problem}", dialect, folder=model)
    plain = render_prompt("{problem}", dialect, "sequential", folder=model)
    return CheckpointInfo(
        dialect=dialect.name,
        tags=ids,
        tag_tokens="own" if all(single_tokens(tokenizer, tags).values()) else "text",
        prompts={"parallel": template, "sequential": plain},
    )


def _trajectories(
    data: Path,
    output: Path,
    model: Path,
    dialect: Dialect,
    info: CheckpointInfo,
    problem_field: str,
    text_field: str,
) -> Path:
    """The file itself if it holds trajectories, else the trajectories made of its texts."""
    from anabranch.training.texts import TextRows, prepare

    first = next(iter(read_rows(data, on_error=lambda _: None)), None)
    if first is None:
        raise UsageError(f"{data}: no readable row")
    if "segments" in first[1]:
        return data
    prepared = output / "trajectories.jsonl"

    def prompt(problem: str) -> str:
        return info.prompt(problem)

    def skipped(why: str) -> None:
        console.print(f"skipped {why}", markup=False, soft_wrap=True)

    rows = TextRows(data, problem_field, text_field)
    count = prepare(rows, prepared, dialect, load_tokenizer(model), prompt, skipped)
    console.print(f"{count} texts made into trajectories: {prepared}")
    return prepared


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
