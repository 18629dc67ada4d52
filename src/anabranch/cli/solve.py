"""`anabranch solve`: one problem, with the branches growing live."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.live import Live
from rich.table import Table

from anabranch.cli.common import (
    DialectName,
    EngineOptions,
    Opened,
    console,
    open_engine,
    takes_engine,
)
from anabranch.cli.live import Board
from anabranch.decoding import Answer, Setup, decode, make_policy, make_setup, read_mode
from anabranch.decoding.policy_names import policy_help
from anabranch.dialects import get_dialect
from anabranch.errors import DialectError, UsageError
from anabranch.jsonl import dump_line, write_records
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Sampling, Trajectory

_OUTCOMES_OK = ("answered",)


@takes_engine
def solve(
    problem: Annotated[str, typer.Argument(help="The problem; '-' reads it from standard input.")],
    options: EngineOptions,
    dialect: DialectName = None,
    mode: Annotated[
        str,
        typer.Option(
            help="native (a trained model), constrained (under the dialect's grammar), prompted "
            "(any instruct model), tools (a chat API) or sequential (one line)."
        ),
    ] = "native",
    min_blocks: Annotated[
        int, typer.Option(min=0, help="Blocks that are forced: constrained, prompted, tools.")
    ] = 0,
    join: Annotated[
        str, typer.Option(help=f"When competing branches are enough: {policy_help()}.")
    ] = "all",
    width: Annotated[
        int | None, typer.Option(min=1, help="Branches per block without a plan.")
    ] = None,
    max_total: Annotated[int | None, typer.Option(help="Cap on all sampled tokens.")] = None,
    max_path: Annotated[int | None, typer.Option(help="Cap on the critical path.")] = None,
    max_branch: Annotated[int | None, typer.Option(help="Cap on one branch.")] = None,
    max_branches: Annotated[int, typer.Option(help="Branches of one block.")] = 50,
    max_blocks: Annotated[int | None, typer.Option(help="Blocks of one answer.")] = None,
    max_depth: Annotated[
        int, typer.Option(min=0, help="Blocks in one another, where the dialect nests them.")
    ] = 1,
    reserve: Annotated[int, typer.Option(help="Tokens kept back for the answer.")] = 0,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds until the answer is forced.")
    ] = None,
    max_prefill: Annotated[
        int | None, typer.Option(help="Cap on prompt tokens that must be computed.")
    ] = None,
    temperature: Annotated[float, typer.Option()] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the trajectory as JSON Lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trajectory only.")] = False,
) -> None:
    """Solve a problem, forking and joining; without an engine, with the bundled model."""
    if problem == "-":
        problem = sys.stdin.read()
    if not problem.strip():
        raise UsageError("the problem is empty")
    chosen = read_mode(mode)
    limits = _checked(
        Limits,
        max_total_tokens=max_total,
        max_path_tokens=max_path,
        max_branch_tokens=max_branch,
        max_branches=max_branches,
        max_blocks=max_blocks,
        max_depth=max_depth,
        answer_reserve=reserve,
        deadline=deadline,
        max_prefill_tokens=max_prefill,
    )
    sampling = _checked(Sampling, temperature=temperature, top_p=top_p, seed=seed)
    policy = make_policy(join)
    if dialect is not None:
        get_dialect(dialect)

    async def go() -> Trajectory:
        async with open_engine(options) as opened:
            setup = make_setup(
                problem,
                opened.engine,
                dialect=dialect,
                info=opened.info,
                folder=opened.folder,
                mode=chosen,
                min_blocks=min_blocks,
                limits=limits,
                sampling=sampling,
                policy=policy,
                width=width,
            )
            _warn(opened, dialect)
            return await watch(setup, opened, quiet=as_json)

    done = asyncio.run(go())
    if save is not None:
        write_records(save, [done])
    if as_json:
        print(dump_line(done))
    else:
        _report(done)
    if done.outcome not in _OUTCOMES_OK:
        raise typer.Exit(1)


async def watch(setup: Setup, opened: Opened, *, quiet: bool = False) -> Trajectory:
    """Decode with a live picture (none when quiet or not on a terminal)."""
    board = Board(heading=f"{setup.dialect.title} · {setup.mode} · {opened.engine.model}")
    shown = console.is_terminal and not quiet
    live = Live(console=console, refresh_per_second=12, get_renderable=board.tree)
    if shown:
        live.start()
    try:
        async for event in decode(setup, opened.engine):
            board.see(event)
            if isinstance(event, Answer):
                return event.trajectory
    finally:
        if shown:
            live.stop()
    raise AssertionError("a stream of events without an answer")


def _report(done: Trajectory) -> None:
    if not console.is_terminal:
        console.print(done.text, markup=False, soft_wrap=True)
    figures = trajectory_metrics(done)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    answer = _behind_reasoning(done).strip() or done.text[-200:]
    rows: list[tuple[str, str]] = [
        ("outcome", done.outcome),
        ("answer", answer),
        ("tokens", f"{figures.total_tokens} in all, {figures.critical_path} on the critical path"),
        ("blocks", str(len(done.blocks))),
        ("seconds", f"{done.seconds:.2f}" if done.seconds is not None else "-"),
    ]
    if figures.loser_tokens:
        share = f"{100 * figures.loser_share:.0f} %"
        rows.append(("losers", f"{figures.loser_tokens} tokens ({share}) in dropped branches"))
    for decision in (one for block in done.blocks for one in block.decisions):
        rows.append(("decided", f"branch {_list(decision.winners)}: {decision.reason}"))
    if done.retokenized:
        rows.append(("drift", f"{done.drift} positions (the engine gives text only)"))
    if done.outcome != "answered" and done.findings:
        rows.append(("because", "; ".join(f.message for f in done.findings[-2:])))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "–"


def _behind_reasoning(done: Trajectory) -> str:
    try:
        think = get_dialect(done.dialect).think
    except DialectError:  # the record of a dialect of its own
        return ""
    ends = [f"</{name}>" for name in (think.name, *think.aliases)] if think is not None else []
    at = max((done.text.rfind(end) + len(end) for end in ends if end in done.text), default=0)
    return done.text[at:] if at else ""


def _warn(opened: Opened, dialect: str | None) -> None:
    """A checkpoint run in another dialect than its own mostly shows no block at all."""
    info = opened.info
    if info is not None and dialect is not None and dialect != info.dialect:
        console.print(
            f"note: the checkpoint was trained on {info.dialect!r} and is run as {dialect!r}",
            style="yellow",
        )


def _checked(model: Any, **values: Any) -> Any:
    """Options as a record; a bad value is one line that names the option."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {message}" if name else message) from None
