"""`anabranch plan`: latency, throughput and cost of a number of replicas, from a profile."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from anabranch.cli.common import console
from anabranch.engines.profile import load_profile
from anabranch.engines.profile_measure import numbers
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import read_records
from anabranch.planning import Arm, Figures, Traffic, simulate
from anabranch.records import Trajectory


def plan(
    profile: Annotated[Path, typer.Argument(help="Made by `anabranch engine profile`.")],
    traffic: Annotated[Path, typer.Argument(help="Fork-join trajectories, by `anabranch decode`.")],
    sequential: Annotated[
        Path | None, typer.Option(help="The same problems decoded sequentially, to compare.")
    ] = None,
    replicas: Annotated[str, typer.Option(help="How many, as 1,2,4.")] = "1",
    rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Answers asked for per second, at random.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Instead: answers in flight at any time.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Answers per simulated replica.")] = 100,
    room: Annotated[
        int | None,
        typer.Option(min=1, help="Calls from which on load-aware decoding holds branches back. "
                     "Default: the profile's knee."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a replica for an hour.")] = None,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Simulate replicas that decode recorded trajectories, in virtual time."""
    known = load_profile(profile)
    arms = _arms(traffic, sequential, room or known.knee)
    found = [
        simulate(known, arm, Traffic(rate, concurrency, count, seed), number, price)
        for number in numbers(replicas, "--replicas")
        for arm in arms
    ]
    if as_json:
        typer.echo(json.dumps([_plain(one) for one in found], indent=1))
        return
    _show(found)


def _arms(traffic: Path, sequential: Path | None, room: int | None) -> list[Arm]:
    forked = _read(traffic)
    arms = [Arm("fork-join", forked)]
    if sequential is not None:
        arms.insert(0, Arm("sequential", _read(sequential)))
    if room is not None:
        arms.append(Arm("load-aware", forked, room))
    return arms


def _read(path: Path) -> list[Trajectory]:
    kept = [t for t in read_records(path, Trajectory) if t.sampled_tokens]
    if not kept:
        raise UsageError(f"{path}: holds no trajectory with sampled tokens")
    for trajectory in kept:
        if trajectory.retokenized:
            raise RecordError(f"{trajectory.id}: has no token ids of its own", path=path)
    return kept


def _plain(figures: Figures) -> dict[str, Any]:
    return {name: value for name, value in asdict(figures).items() if name != "latencies"}


def _show(found: list[Figures]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    names = ("replicas", "decoding", "p50 s", "p95 s", "p99 s", "answers/s", "tokens/s", "busy")
    for name in (*names, "held back", "cost per 1,000"):
        table.add_column(name, justify="left" if name == "decoding" else "right")
    for one in found:
        table.add_row(
            f"{one.replicas:,}",
            one.arm,
            f"{one.p50:.3f}",
            f"{one.p95:.3f}",
            f"{one.p99:.3f}",
            f"{one.answers_per_second:.3g}",
            f"{one.tokens_per_second:,.0f}",
            f"{one.utilisation:.0%}",
            str(one.held_back),
            "" if one.cost is None else f"{one.cost:.4g}",
        )
    console.print(table)
    part = {(one.replicas, one.simulated) for one in found if one.simulated < one.replicas}
    for number, simulated in sorted(part):
        console.print(
            f"of {number:,} replicas {simulated} were simulated, with their share of the load",
            style="dim",
        )
