"""`anabranch evaluate`: a suite answered by a model in several arms, graded and reported."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from anabranch.cli.common import (
    DialectName,
    EngineOptions,
    Opened,
    console,
    open_engine,
    takes_engine,
)
from anabranch.decoding import make_policy, make_setup
from anabranch.decoding.batch import Tally
from anabranch.decoding.setup import Setup
from anabranch.errors import AnabranchError, UsageError
from anabranch.evaluation.measures import warnings
from anabranch.evaluation.runs import Arm, RunFolder, decode_arm, grade_arm, make_arms
from anabranch.evaluation.suites import LoadedSuite, Suite, load_suite, odd_golds, suite_names
from anabranch.grading import Grader
from anabranch.jsonl import atomic_writer
from anabranch.records import Limits, Problem, Sampling


@takes_engine
def evaluate(
    suite: Annotated[
        str, typer.Argument(help="Name of a suite, or a JSON Lines file of problems.")
    ],
    options: EngineOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; resumed.")],
    data: Annotated[
        str | None, typer.Option(help="Folder with NAME.jsonl, a file, or hf:ID.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first problems.")] = None,
    samples: Annotated[int, typer.Option("--samples", "-k", min=1, help="Of each problem.")] = 1,
    dialect: DialectName = None,
    mode: Annotated[str, typer.Option(help="As of solve.")] = "parallel",
    join: Annotated[str, typer.Option(help="As of solve.")] = "all",
    baseline: Annotated[
        bool, typer.Option(help="The sequential form of the same model beside it.")
    ] = True,
    path_limit: Annotated[
        list[int] | None, typer.Option(help="Also run with this limit on the path, repeatable.")
    ] = None,
    max_total: Annotated[int | None, typer.Option(help="Cap on all sampled tokens.")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers at once.")] = 16,
    budget: Annotated[int | None, typer.Option(min=1, help="Sampled tokens of the run.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes for algebra.")] = 2,
    allow_odd: Annotated[
        bool, typer.Option("--allow-odd-golds", help="Run although a gold cannot be read.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Go on with other settings.")] = False,
) -> None:
    """Answer, grade and report; run the same command again to go on."""
    loaded = _load(suite, data, limit)
    odd = odd_golds(loaded)
    for name, gold, reason in odd:
        typer.echo(f"anabranch: gold of {name!r}: {gold!r}: {reason}", err=True)
    if odd and not allow_odd:
        raise UsageError(f"{len(odd)} golds cannot be read; --allow-odd-golds runs all the same")
    arms = make_arms(
        mode, Limits(max_total_tokens=max_total), baseline=baseline, paths=path_limit or ()
    )
    make_policy(join)
    settings: dict[str, Any] = {
        "samples": samples, "dialect": dialect, "mode": mode, "join": join,
        "baseline": baseline, "path_limits": path_limit or [], "max_total": max_total,
        "temperature": temperature, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    folder = asyncio.run(
        _decode(loaded, options, output, arms, settings, concurrency, budget, force)
    )
    _report(folder, arms, workers)


def _load(suite: str, data: str | None, limit: int | None) -> LoadedSuite:
    if suite in suite_names():
        return load_suite(suite, data, limit=limit)
    path = Path(suite)
    if not path.is_file():
        raise UsageError(f"{suite}: neither a file nor a suite; known: {', '.join(suite_names())}")
    return load_suite(Suite(path.stem, path.stem), path, limit=limit)


async def _decode(
    loaded: LoadedSuite,
    options: EngineOptions,
    output: Path,
    arms: list[Arm],
    settings: dict[str, Any],
    concurrency: int,
    budget: int | None,
    force: bool,
) -> RunFolder:
    stop = asyncio.Event()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    sampling = Sampling(
        temperature=settings["temperature"], top_p=settings["top_p"], seed=settings["seed"]
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    async with open_engine(options) as opened:
        folder = RunFolder(output, loaded, {**settings, "model": opened.engine.model}, force=force)
        spent = 0
        with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
            for arm in arms:
                total = len(loaded) * settings["samples"]
                task = shown.add_task(arm.name, total=total)
                tally, spent = await decode_arm(
                    folder, arm, _maker(opened, settings, sampling), opened.engine,
                    samples=settings["samples"], concurrency=concurrency, budget=budget,
                    spent=spent, stop=stop,
                    on_done=partial(_shown, shown, task),
                )  # fmt: skip
                if tally.failed:
                    raise AnabranchError(
                        f"{arm.name}: the engine failed on {tally.failed} of {total} answers; the "
                        "same command asks for them again"
                    )
                if tally.done < total:
                    why = "stopped" if interrupted else f"{spent} tokens of {budget} are spent"
                    raise AnabranchError(
                        f"{arm.name}: {tally.done} of {total} answers; {why}; the same command "
                        "goes on"
                    )
        return folder


def _shown(progress: Progress, task: TaskID, tally: Tally) -> None:
    progress.update(task, completed=tally.done)


def _maker(opened: Opened, settings: dict[str, Any], sampling: Sampling) -> Any:
    def make(arm: Arm, problem: Problem, name: str) -> Setup:
        return make_setup(
            problem,
            opened.engine,
            dialect=settings["dialect"],
            info=opened.info,
            folder=opened.folder,
            mode=arm.mode,  # type: ignore[arg-type]  # make_setup names an unknown one
            limits=arm.limits,
            sampling=sampling,
            policy=make_policy(settings["join"]),
            id=name,
        )

    return make


def _report(folder: RunFolder, arms: list[Arm], workers: int) -> None:
    from anabranch.evaluation.page import write_page
    from anabranch.evaluation.reports import markdown

    with Grader(workers=workers) as grader:
        runs = {arm.name: grade_arm(folder, arm, grader) for arm in arms}
    for warning in warnings(runs):
        typer.echo(f"anabranch: {warning}", err=True)
    text = markdown(runs)
    report = folder.folder / "report.md"
    with atomic_writer(report) as handle:
        handle.write(f"# {folder.suite.suite.title}\n\n{text}")
    typer.echo(text)
    page = folder.folder / "report.html"
    files = {arm.name: folder.graded(arm) for arm in arms}
    write_page(runs, page, folder.suite.suite.title, suite=folder.suite.suite.name, files=files)
    typer.echo(f"{report}, {page}")
