"""`anabranch doctor`: what is installed, what an engine can do, and whether it forks and joins."""

from __future__ import annotations

import asyncio
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.table import Table

from anabranch import __version__
from anabranch.checkpoint import missing_files
from anabranch.cli.common import (
    DialectName,
    EngineOptions,
    Opened,
    bundled_model,
    console,
    open_engine,
    takes_engine,
)
from anabranch.decoding import make_setup, run
from anabranch.decoding.prompts import tag_texts
from anabranch.dialects import Dialect, dialect_names, get_dialect
from anabranch.engines.tokenizers import check_tags, single_tokens
from anabranch.errors import TokenizerError
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits

_PACKAGES = ("pydantic", "aiohttp", "torch", "transformers", "accelerate", "xgrammar", "llguidance")
#: A problem of the bundled model; any other model is only asked whether it answers.
_PROBLEM = "d:S8T(*2)U(-1)V(-1)W(*9)X(*5);f:k7l(*3)m(-9)o(-9)p(-9)q(*3)?"


@takes_engine
def doctor(
    options: EngineOptions,
    dialect: DialectName = None,
    problem: Annotated[str, typer.Option(help="What the engine is asked.")] = _PROBLEM,
    max_total: Annotated[int, typer.Option(min=8, help="Cap on the trial's tokens.")] = 512,
) -> None:
    """Show the installation, then try the engine: the one named, else the bundled model."""
    if dialect is not None:
        get_dialect(dialect)
    _installation()
    healthy = asyncio.run(_try(options, dialect, problem, max_total))
    if not healthy:
        raise typer.Exit(1)


def _installation() -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("anabranch", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.machine()}")
    table.add_row("cpus", str(len(os.sched_getaffinity(0))))
    for package in _PACKAGES:
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, "not installed")
    table.add_row("dialects", ", ".join(dialect_names()))
    missing = missing_files(bundled_model())
    table.add_row("bundled model", "there" if not missing else f"missing {', '.join(missing)}")
    console.print(table)


async def _try(options: EngineOptions, name: str | None, problem: str, cap: int) -> bool:
    async with open_engine(options) as opened:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_row("engine", opened.engine.name)
        table.add_row("model", opened.engine.model)
        for key, value in asdict(opened.engine.capabilities).items():
            if key != "notes":
                table.add_row(key.replace("_", " "), _shown(value))
        for note in opened.engine.capabilities.notes:
            table.add_row("note", note)
        chosen = _dialect(opened, name)
        healthy = _tags(opened, chosen, table)
        console.print(table)
        if healthy:
            await _fork(opened, chosen, problem, cap)
    return healthy


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _dialect(opened: Opened, name: str | None) -> Dialect:
    if name is None:
        name = opened.info.dialect if opened.info else "threadweaver"
    return get_dialect(name)


def _tags(opened: Opened, dialect: Dialect, table: Table) -> bool:
    tags = tag_texts(dialect)
    try:
        check_tags(opened.engine.tokenizer, tags)
    except TokenizerError as error:
        table.add_row("tags", str(error))
        return False
    single = sum(single_tokens(opened.engine.tokenizer, tags).values())
    table.add_row("tags", f"{dialect.title}: {single} of {len(tags)} are single tokens")
    return True


async def _fork(opened: Opened, dialect: Dialect, problem: str, cap: int) -> None:
    setup = make_setup(
        problem,
        opened.engine,
        dialect=dialect,
        info=opened.info,
        folder=opened.folder,
        limits=Limits(max_total_tokens=cap),
    )
    done = await run(setup, opened.engine)
    figures = trajectory_metrics(done)
    cached = sum(r.cached_tokens or 0 for r in done.requests)
    seconds = done.seconds or 0.0
    blocks = len(done.blocks)
    console.print(
        f"one run: {done.outcome}, {blocks} block{'s' * (blocks != 1)}, "
        f"{figures.total_tokens} tokens, {figures.critical_path} on the critical path, "
        f"{cached} prompt tokens from the cache, {seconds:.2f} s"
    )
    if not blocks:
        console.print(
            "the model opened no block: it may not be trained for this dialect, or wants "
            "another prompt",
            style="yellow",
        )
