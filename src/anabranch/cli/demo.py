"""`anabranch demo`: the bundled model on held-out problems, in one line and fork-join.

Both ways run on the same engine, one after the other, so the seconds can be compared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.table import Table

from anabranch.cli.common import EngineOptions, Opened, console, open_engine
from anabranch.cli.live import Board
from anabranch.decoding import Answer, JoinPolicy, decode
from anabranch.jsonl import atomic_writer, write_records
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import FIRST_SUCCESS, Solved, judge, with_limits
from anabranch.lab.families import LabProblem, draw_distinct
from anabranch.lab.sizes import PUZZLE_SIZE, demo_sizes
from anabranch.lab.structure import Form

_FORMS: tuple[Form, ...] = ("sequential", "parallel")


def demo(
    problems: Annotated[int, typer.Option(min=1, help="Problems of each family.")] = 5,
    seed: Annotated[int, typer.Option(help="Which held-out problems.")] = 1,
    local: Annotated[Path | None, typer.Option(help="Another lab checkpoint.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write all trajectories.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write one problem's picture as SVG.")
    ] = None,
) -> None:
    """Solve held-out problems of two families both ways, side by side."""
    asyncio.run(_demo(problems, seed, local, save, picture))


async def _demo(
    count: int, seed: int, local: Path | None, save: Path | None, picture: Path | None
) -> None:
    chosen: dict[str, list[LabProblem]] = {"chains": [], "puzzle": []}
    for size in demo_sizes(count):
        chosen["chains"] += draw_distinct(seed + len(chosen["chains"]), "chains", size, 1)
    chosen["puzzle"] = draw_distinct(seed, "puzzle", PUZZLE_SIZE, count)
    titles = {
        "chains": "AND: independent chains, joined when all are done",
        "puzzle": "OR: competing trials, joined at the first success",
    }
    policies: dict[str, JoinPolicy | None] = {"chains": None, "puzzle": FIRST_SUCCESS}
    solved: list[Solved] = []
    async with open_engine(EngineOptions(local=local)) as opened:
        await _warm_up(opened, chosen["chains"][0])
        for family, problems in chosen.items():
            console.rule(titles[family], align="left")
            shown = problems[len(problems) // 2] if family == "chains" else None
            pairs = [
                await _both_ways(opened, p, policies[family], picture if p is shown else None)
                for p in problems
            ]
            console.print(_table(pairs))
            solved += [one for pair in pairs for one in pair]
    if save is not None:
        write_records(save, (one.trajectory for one in solved))
        console.print(f"{len(solved)} trajectories in {save}")


async def _warm_up(opened: Opened, problem: LabProblem) -> None:
    """The first calls pay for what a process loads late; they are not measured."""
    for form in _FORMS:
        await _watch(opened, problem, form, None, Board(""))


async def _both_ways(
    opened: Opened, problem: LabProblem, policy: JoinPolicy | None, picture: Path | None
) -> tuple[Solved, Solved]:
    console.print(f"[bold]{problem.text}[/bold]", soft_wrap=True)
    boards = [Board("one line", width=48), Board("fork-join", width=48)]
    show = console.is_terminal
    live = Live(
        console=console,
        refresh_per_second=20,
        get_renderable=lambda: Columns([board.tree() for board in boards], padding=(0, 4)),
    )
    if show:
        live.start()
    try:
        line = await _watch(opened, problem, "sequential", None, boards[0])
        fork = await _watch(opened, problem, "parallel", policy, boards[1])
    finally:
        if show:
            live.stop()
    for one, name in ((line, "one line"), (fork, "fork-join")):
        verdict = "[green]right[/green]" if one.correct else "[red]wrong[/red]"
        console.print(
            f"  {name:<10} {verdict}  {one.total} tokens, {one.path} on the critical path, "
            f"{one.seconds:.3f} s"
        )
    if picture is not None:
        _draw(problem, boards, picture)
    return line, fork


async def _watch(
    opened: Opened, problem: LabProblem, form: Form, policy: JoinPolicy | None, board: Board
) -> Solved:
    setup = with_limits(
        lab_setup(problem, form, opened.engine.tokenizer, policy), opened.engine, None
    )
    async for event in decode(setup, opened.engine):
        board.see(event)
        if isinstance(event, Answer):
            return judge(problem, form, event.trajectory)
    raise AssertionError("a stream of events without an answer")


def _table(pairs: Sequence[tuple[Solved, Solved]]) -> Table:
    table = Table(title_justify="left")
    for name in ("means", "right", "tokens", "critical path", "seconds"):
        table.add_column(name, justify="left" if name == "means" else "right")
    for place, name in enumerate(("one line", "fork-join")):
        column = [pair[place] for pair in pairs]
        table.add_row(
            name,
            f"{sum(one.correct for one in column)} of {len(column)}",
            f"{fmean(one.total for one in column):.0f}",
            f"{fmean(one.path for one in column):.0f}",
            f"{fmean(one.seconds for one in column):.3f}",
        )
    line, fork = [p[0] for p in pairs], [p[1] for p in pairs]
    path = fmean(one.path for one in line) / fmean(one.path for one in fork)
    clock = fmean(one.seconds for one in line) / fmean(one.seconds for one in fork)
    table.add_row("times shorter", "", "", f"{path:.2f}", f"{clock:.2f}", style="bold")
    return table


def _draw(problem: LabProblem, boards: list[Board], path: Path) -> None:
    recorder = Console(record=True, width=120, file=StringIO())
    recorder.print(problem.text)
    for board in boards:
        board.width = 76
        recorder.print(board.tree())
    # The fonts that rich would load from another host are left out: any monospace one will do.
    drawing = re.sub(
        r"@font-face \{.*?\}\s*", "", recorder.export_svg(title="anabranch"), flags=re.S
    )
    with atomic_writer(path) as handle:
        handle.write(drawing)
