"""`anabranch doctor`: what is installed, what an engine can do, whether it forks, joins, is exact.

Everything said of an engine was tried, not assumed. The trials are in
:mod:`anabranch.engines.abilities` and :mod:`anabranch.training.exactness`; here they are shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

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
from anabranch.decoding import Setup, make_setup, run
from anabranch.decoding.prompts import tag_texts
from anabranch.dialects import Dialect, dialect_names, get_dialect
from anabranch.engines.fleet import FleetEngine
from anabranch.engines.replay import ReplayEngine
from anabranch.engines.tokenizers import check_tags, single_tokens
from anabranch.errors import EngineError, TokenizerError, UsageError
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Sampling, Trajectory

_PACKAGES = ("pydantic", "aiohttp", "torch", "transformers", "accelerate", "xgrammar", "llguidance")
#: A problem of the bundled model; any other model is only asked whether it answers.
_PROBLEM = "d:S8T(*2)U(-1)V(-1)W(*9)X(*5);f:k7l(*3)m(-9)o(-9)p(-9)q(*3)?"
#: Temperatures of the trajectories that are compared. A greedy one of a model that is sure of
#: itself shows nothing of its logits; some servers refuse more than 2.
_TEMPERATURES = (0.0, 1.0, 2.0, 2.0)


@takes_engine
def doctor(
    options: EngineOptions,
    dialect: DialectName = None,
    problem: Annotated[str, typer.Option(help="What the engine is asked.")] = _PROBLEM,
    max_total: Annotated[int, typer.Option(min=8, help="Cap on the trial's tokens.")] = 512,
    exactness: Annotated[
        bool, typer.Option("--exactness", help="Compare its log-probs with transformers.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Folder with the served weights. Default: where the tokenizer is."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="What the engine computes in: float32, bfloat16, float16. Default: "
            "as the weights are stored."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the installation, then try the engine: the one named, else the bundled model."""
    if dialect is not None:
        get_dialect(dialect)
    if exactness and (find_spec("torch") is None or find_spec("transformers") is None):
        raise UsageError("--exactness needs torch: pip install 'anabranch[local]'")
    if not exactness and (weights is not None or dtype is not None):
        raise UsageError("--weights and --dtype are for --exactness")
    report: dict[str, Any] = {"installation": _installation()}
    if not as_json:
        _print_rows(report["installation"])

    async def go() -> None:
        async with open_engine(options) as opened:
            report.update(await _try(opened, dialect, problem, max_total, shown=not as_json))
            if exactness and report["healthy"]:
                done = await _sample(opened, dialect, problem, max_total)
                report["exactness"] = _exactness(opened, done, weights, dtype)
                report["healthy"] = report["exactness"]["exact"]
                if not as_json:
                    _print_exactness(report["exactness"])

    asyncio.run(go())
    if as_json:
        print(json.dumps(report, indent=1))
    if not report["healthy"]:
        raise typer.Exit(1)


def _installation() -> dict[str, str]:
    found = {
        "anabranch": __version__,
        "python": f"{platform.python_version()} on {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0))),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["dialects"] = ", ".join(dialect_names())
    missing = missing_files(bundled_model())
    found["bundled model"] = "there" if not missing else f"missing {', '.join(missing)}"
    return found


async def _try(
    opened: Opened, name: str | None, problem: str, cap: int, *, shown: bool
) -> dict[str, Any]:
    from anabranch.engines.abilities import examine

    engine = opened.engine
    capabilities = asdict(engine.capabilities)
    found: dict[str, Any] = {
        "engine": engine.name,
        "model": engine.model,
        "capabilities": capabilities,
        "abilities": [],
    }
    if isinstance(engine, FleetEngine):
        found["replicas"] = [asdict(one) for one in engine.statistics().replicas]
    chosen = _dialect(opened, name)
    healthy, tags = _tags(opened, chosen)
    found |= {"tags": tags, "healthy": healthy}
    if not isinstance(engine, ReplayEngine):  # a recording answers what was asked, nothing else
        found["abilities"] = [asdict(one) for one in await examine(engine)]
    if shown:
        _print_engine(found)
    if healthy:
        done = await run(_setup(opened, chosen, problem, cap, Sampling()), engine)
        found["fork"] = _fork(done)
        if shown:
            _print_fork(found["fork"])
    return found


def _dialect(opened: Opened, name: str | None) -> Dialect:
    if name is None:
        name = opened.info.dialect if opened.info else "threadweaver"
    return get_dialect(name)


def _tags(opened: Opened, dialect: Dialect) -> tuple[bool, str]:
    tags = tag_texts(dialect)
    try:
        check_tags(opened.engine.tokenizer, tags)
    except TokenizerError as error:
        return False, str(error)
    single = sum(single_tokens(opened.engine.tokenizer, tags).values())
    return True, f"{dialect.title}: {single} of {len(tags)} are single tokens"


def _setup(opened: Opened, dialect: Dialect, problem: str, cap: int, sampling: Sampling) -> Setup:
    return make_setup(
        problem,
        opened.engine,
        dialect=dialect,
        info=opened.info,
        folder=opened.folder,
        limits=Limits(max_total_tokens=cap),
        sampling=sampling,
    )


def _fork(done: Trajectory) -> dict[str, Any]:
    figures = trajectory_metrics(done)
    return {
        "outcome": done.outcome,
        "blocks": len(done.blocks),
        "branches": [len(block.branches) for block in done.blocks],
        "tokens": figures.total_tokens,
        "critical_path": figures.critical_path,
        "cached_tokens": sum(r.cached_tokens or 0 for r in done.requests),
        "seconds": done.seconds or 0.0,
        "findings": [finding.message or finding.code for finding in done.findings],
    }


async def _sample(opened: Opened, name: str | None, problem: str, cap: int) -> list[Trajectory]:
    if not opened.engine.capabilities.logprobs:
        raise UsageError(f"{opened.engine.name} gives no log-probs: exactness cannot be checked")
    dialect = _dialect(opened, name)
    done = []
    for seed, temperature in enumerate(_TEMPERATURES):
        sampling = Sampling(temperature=temperature, seed=seed)
        setup = _setup(opened, dialect, problem, cap, sampling)
        done.append(await run(replace(setup, logprobs=True), opened.engine))
        if not done[-1].sampled_tokens:
            errors = [request.error for request in done[-1].requests if request.error]
            raise EngineError(f"nothing came at temperature {temperature:g}: {errors[-1]}")
    return done


def _exactness(
    opened: Opened, done: list[Trajectory], weights: Path | None, dtype: str | None
) -> dict[str, Any]:
    from anabranch.training.exactness import check_exactness

    folder = weights or opened.folder
    if folder is None:
        raise UsageError("--exactness needs --weights: the folder with the served weights")
    if weights is None and missing_files(folder):
        raise UsageError(
            f"--exactness needs --weights: {folder} lacks {', '.join(missing_files(folder))}"
        )
    found = check_exactness(done, folder, opened.engine.tokenizer.decode, dtype=dtype)
    return {**asdict(found), "exact": found.exact, "allowed": found.allowed, "weights": str(folder)}


def _print_rows(rows: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, markup=False)


def _print_engine(found: dict[str, Any]) -> None:
    rows = {"engine": found["engine"], "model": found["model"]}
    for replica in found.get("replicas", ()):
        state = "there" if replica["healthy"] else f"away: {replica['last_error']}"
        rows[f"replica {replica['name']}"] = state
    notes = found["capabilities"]["notes"]
    tried = {one["name"] for one in found["abilities"]}
    for name, value in found["capabilities"].items():
        if name != "notes" and name not in tried:
            rows[name.replace("_", " ")] = _shown(value)
    for one in found["abilities"]:
        rows[one["name"]] = f"{_shown(one['seen'])} ({one['detail']})"
    rows["tags"] = found["tags"]
    rows |= {f"note {number}": note for number, note in enumerate(notes, 1)}
    _print_rows(rows)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)


def _print_fork(fork: dict[str, Any]) -> None:
    blocks = fork["blocks"]
    console.print(
        f"one run: {fork['outcome']}, {blocks} block{'s' * (blocks != 1)}, "
        f"{fork['tokens']} tokens, {fork['critical_path']} on the critical path, "
        f"{fork['cached_tokens']} prompt tokens from the cache, {fork['seconds']:.2f} s"
    )
    if not blocks:
        console.print(
            "the model opened no block: it may not be trained for this dialect, or wants "
            "another prompt",
            style="yellow",
        )


def _print_exactness(found: dict[str, Any]) -> None:
    worst = found["worst"]
    verdict = "exact" if found["exact"] else "NOT exact"
    console.print(
        f"exactness: {verdict}, {found['tokens']} tokens, largest difference "
        f"{worst['difference']:.2g} (at most {found['allowed']:.2g} in {found['dtype']}), "
        f"mean {found['mean']:.2g}, mean surprise of the tokens {found['surprise']:.2g} nats",
        markup=False,
    )
    branch = "" if worst["branch"] is None else f", branch {worst['branch']}"
    console.print(
        f"  there: trajectory {worst['trajectory']} at temperature "
        f"{_TEMPERATURES[worst['trajectory']]:g}, request {worst['request']} "
        f"({worst['kind']}{branch}), token {worst['place']} {worst['text']!r} behind "
        f"{worst['before']!r}: {worst['engine']:.5f} against {worst['reference']:.5f}",
        markup=False,
    )
