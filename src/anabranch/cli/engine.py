"""`anabranch engine profile`: how long an engine takes, measured and fitted, as a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from anabranch.cli.common import EngineOptions, console, open_engine, takes_engine
from anabranch.engines.profile import Profile, save_profile
from anabranch.engines.profile_measure import Plan, measure, numbers

app = typer.Typer(no_args_is_help=True, help="What an engine does and how long it takes.")


@app.callback()
def _root() -> None:
    """What an engine does and how long it takes."""


@app.command("profile")
@takes_engine
def profile(
    options: EngineOptions,
    url: Annotated[str | None, typer.Argument(help="The engine, as after --engine.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The profile to write.")] = Path(
        "profile.json"
    ),
    lengths: Annotated[str, typer.Option(help="Prompt lengths of cold calls.")] = (
        "32,64,128,256,512"
    ),
    batches: Annotated[str, typer.Option(help="Outputs at once.")] = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(help="Prompt lengths of batches.")] = "64,256",
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each output.")] = 48,
    repeats: Annotated[int, typer.Option(min=1, help="Of every point; the median counts.")] = 3,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Outputs that the engine runs at once.")
    ] = None,
    max_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Prompt tokens that it takes in one step.")
    ] = 2048,
    cache_block: Annotated[
        int, typer.Option(min=1, help="Tokens per block of its prefix cache.")
    ] = 16,
    cache_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that its KV cache holds.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 0,
) -> None:
    """Measure an idle engine and fit the model that `anabranch plan` runs by.

    What cannot be seen from outside (the limits of its batches, its cache's blocks) is to be given
    as the server was started.
    """
    if url is not None:
        options = _named(options, url)
    plan = Plan(
        numbers(lengths, "--lengths"),
        numbers(batches, "--batches"),
        numbers(contexts, "--contexts"),
        tokens,
        repeats,
        seed,
    )
    found, caches = asyncio.run(_measure(options, plan))
    found = found.model_copy(
        update={
            "max_num_seqs": max_num_seqs,
            "max_batched_tokens": max_batched_tokens,
            "cache_block": cache_block if caches else None,
            "cache_tokens": cache_tokens,
        }
    )
    save_profile(found, output)
    _show(found, output)


def _named(options: EngineOptions, url: str) -> EngineOptions:
    from dataclasses import replace

    return replace(options, engine=[*(options.engine or []), url])


async def _measure(options: EngineOptions, plan: Plan) -> tuple[Profile, bool]:
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with open_engine(options) as opened:
        with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
            task = shown.add_task("points", total=None)

            def tick(done: int, total: int) -> None:
                shown.update(task, completed=done, total=total)

            found = await measure(opened.engine, plan, tick)
        return found, opened.engine.capabilities.prefix_cache


def _show(found: Profile, output: Path) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("outputs", "contexts", "step, ms", "spread, ms", "fitted, ms"):
        table.add_column(name, justify="right")
    for point in found.step_points:
        low, high = min(point.seconds), max(point.seconds)
        table.add_row(
            str(point.batch),
            f"{point.context:.0f}",
            f"{1e3 * median(point.seconds):.2f}",
            f"{1e3 * low:.2f}–{1e3 * high:.2f}",
            f"{1e3 * found.step(point.batch, point.context):.2f}",
        )
    console.print(table)
    console.print(
        f"step: {1e3 * found.base:.3f} ms + {1e3 * found.sequence:.4f} an output "
        f"+ {1e6 * found.context:.3f} a 1,000 tokens of context "
        f"+ {1e3 * found.prefill:.4f} a prompt token"
    )
    console.print(
        f"call: {1e3 * found.latency:.2f} ms, and {1e3 * found.serial:.2f} one after the other"
    )
    for name, one in found.fits.items():
        console.print(
            f"fit of {name}: median error {one.median_error:.1%}, worst {one.worst_error:.1%} "
            f"over {one.points} points"
        )
    if found.knee is not None:
        console.print(f"a step takes twice as long as alone from {found.knee} outputs on")
    for note in found.notes:
        console.print(f"note: {note}", style="yellow")
    console.print(f"written: {output}")
