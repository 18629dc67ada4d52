"""`anabranch decode`: a file of problems to a file of trajectories, resumable."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anabranch.cli.common import (
    DialectName,
    EngineOptions,
    Opened,
    console,
    load_gates,
    open_engine,
    takes_engine,
)
from anabranch.decoding import make_policy, make_setup
from anabranch.decoding.batch import Tally, decode_file
from anabranch.decoding.setup import Setup
from anabranch.errors import AnabranchError, UsageError
from anabranch.jsonl import read_records, sha256_of
from anabranch.records import Limits, Problem, Sampling, Trajectory


@takes_engine
def decode(
    problems: Annotated[Path, typer.Argument(help="JSON Lines with id and problem in each row.")],
    options: EngineOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Trajectories; resumed.")],
    dialect: DialectName = None,
    mode: Annotated[str, typer.Option(help="As of solve.")] = "parallel",
    join: Annotated[str, typer.Option(help="As of solve.")] = "all",
    samples: Annotated[int, typer.Option(min=1, help="Per problem, each with its own seed.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Trajectories at once.")] = 16,
    max_total: Annotated[int | None, typer.Option(help="Cap on all sampled tokens.")] = None,
    max_path: Annotated[int | None, typer.Option(help="Cap on the critical path.")] = None,
    max_branch: Annotated[int | None, typer.Option(help="Cap on one branch.")] = None,
    reserve: Annotated[int, typer.Option(help="Tokens kept back for the answer.")] = 0,
    deadline: Annotated[float | None, typer.Option(help="Seconds of one trajectory.")] = None,
    hold_above: Annotated[
        int | None,
        typer.Option(min=1, help="Hold branches back while more calls run on the server."),
    ] = None,
    temperature: Annotated[float, typer.Option()] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    force: Annotated[bool, typer.Option("--force", help="Resume with other settings.")] = False,
) -> None:
    """Decode every problem of a file; run the same command again to go on."""
    total = _count(problems) * samples
    limits = Limits(
        max_total_tokens=max_total,
        max_path_tokens=max_path,
        max_branch_tokens=max_branch,
        answer_reserve=reserve,
        deadline=deadline,
    )
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    settings = {"limits": limits, "sampling": sampling, "join": join, "mode": mode,
                "dialect": dialect, "samples": samples}  # fmt: skip
    make_policy(join)
    tally = asyncio.run(
        _decode(options, problems, output, settings, total, concurrency, hold_above, force=force)
    )
    ends = ", ".join(f"{count} {name}" for name, count in sorted(tally.outcomes.items()))
    typer.echo(f"{tally.done} of {total} trajectories in {output} (new: {ends or 'none'})")
    if tally.stopped:
        typer.echo("stopped: the same command goes on")
    if tally.failed:
        raise AnabranchError(
            f"the engine failed on {tally.failed} of the new trajectories; the same command "
            "decodes them again"
        )


def _count(path: Path) -> int:
    """How many problems there are; refuses a file with an id twice, before anything is spent."""
    seen: set[str] = set()
    for problem in read_records(path, Problem):
        if problem.id in seen:
            raise UsageError(f"{path}: the id {problem.id!r} is there twice")
        seen.add(problem.id)
    if not seen:
        raise UsageError(f"{path}: holds no problem")
    return len(seen)


async def _decode(
    options: EngineOptions,
    problems: Path,
    output: Path,
    settings: dict[str, Any],
    total: int,
    concurrency: int,
    hold_above: int | None,
    *,
    force: bool,
) -> Tally:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with open_engine(options) as opened, load_gates(options, hold_above) as gate:
        with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
            task = shown.add_task("trajectories", total=total)

            def on_done(tally: Tally, trajectory: Trajectory) -> None:
                shown.update(task, completed=tally.done)

            return await decode_file(
                _read(problems),
                lambda problem, sample, name: _setup(opened, problem, name, settings),
                opened.engine,
                output,
                samples=settings["samples"],
                concurrency=concurrency,
                config={
                    **{k: _plain(v) for k, v in settings.items()},
                    "problems": sha256_of(problems),
                    "model": opened.engine.model,
                },
                force=force,
                total=total,
                on_done=on_done,
                stop=stop,
                gate=gate,
            )


def _read(path: Path) -> Iterator[Problem]:
    yield from read_records(path, Problem)


def _setup(opened: Opened, problem: Problem, name: str, settings: dict[str, Any]) -> Setup:
    return make_setup(
        problem,
        opened.engine,
        dialect=settings["dialect"],
        info=opened.info,
        folder=opened.folder,
        mode=settings["mode"],
        limits=settings["limits"],
        sampling=settings["sampling"],
        policy=make_policy(settings["join"]),
        id=name,
    )


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value
