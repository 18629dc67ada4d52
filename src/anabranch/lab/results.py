"""Measures the bundled model on held-out problems and writes the results page.

:func:`measure` gives plain data, :func:`page` the Markdown of it. Every figure of the page comes
from one call; wall clock is measured in turns, one problem both ways after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from anabranch.engines.base import Engine
from anabranch.lab.evaluate import FIRST_SUCCESS, Solved, solve_all
from anabranch.lab.families import LabProblem, draw_distinct
from anabranch.lab.sizes import CHAIN_SIZES, PUZZLE_SIZE
from anabranch.metrics import trajectory_metrics
from anabranch.metrics.intervals import ratio_of_means, wilson
from anabranch.records import Limits

#: Seed of the held-out draws; evaluation problems are never in the training split.
SEED = 20_000
#: Path limits of the curve, as shares of the sequential form's mean.
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
#: The limit that the page reports, also decoded for real.
LIMIT = 0.8

Note = Callable[[str], None]


def share(solved: Sequence[Solved], test: Callable[[Solved], bool]) -> dict[str, float]:
    """A share with its 95 % interval."""
    hits = sum(test(one) for one in solved)
    low, high = wilson(hits, len(solved))
    return {"share": hits / len(solved), "low": low, "high": high, "of": len(solved)}


def means(solved: Sequence[Solved]) -> dict[str, float]:
    return {
        "total": fmean(one.total for one in solved),
        "path": fmean(one.path for one in solved),
        "losers": fmean(trajectory_metrics(one.trajectory).loser_tokens for one in solved),
    }


async def measure(
    engine: Engine, *, problems: int = 500, timed: int = 30, note: Note = print
) -> dict[str, Any]:
    """All figures of the page.

    Args:
        engine: the model to measure.
        problems: held-out problems of each size of the AND family, and of the OR family.
        timed: problems of each size whose wall clock is taken, alone on the engine.
        note: told what is going on.
    """
    result: dict[str, Any] = {"model": engine.model, "engine": engine.name, "problems": problems}
    result["and"] = [await _chains(engine, size, problems, note) for size in CHAIN_SIZES]
    wide = [row for row in result["and"] if row["chains"] >= 4]
    result["and_path_ratio"] = fmean(r["parallel"]["path"] / r["sequential"]["total"] for r in wide)
    result["or"] = await _puzzles(engine, problems, note)
    result["clock"] = [
        await _clock(engine, size, timed, note) for size in CHAIN_SIZES if size[0] >= 4
    ]
    result["clock_all"] = _speed_up([pair for row in result["clock"] for pair in row.pop("pairs")])
    return result


async def _chains(engine: Engine, size: tuple[int, ...], count: int, note: Note) -> dict[str, Any]:
    note(f"chains, k = {size[0]}: {count} problems, both forms")
    problems = draw_distinct(SEED, "chains", size, count)
    row: dict[str, Any] = {"chains": size[0], "operators": size[1]}
    for form in ("sequential", "parallel"):
        solved = await solve_all(engine, problems, form)
        row[form] = {
            **means(solved),
            "correct": share(solved, lambda one: one.correct),
            "format": share(solved, lambda one: one.well_formed),
            "forked": share(solved, lambda one: one.forked),
        }
    return row


async def _puzzles(engine: Engine, count: int, note: Note) -> dict[str, Any]:
    note(f"puzzles: {count} problems, one line, all trials, first conclusive")
    problems = draw_distinct(SEED, "puzzle", PUZZLE_SIZE, count)
    runs = {
        "sequential": await solve_all(engine, problems, "sequential"),
        "all": await solve_all(engine, problems, "parallel"),
        "first_conclusive": await solve_all(engine, problems, "parallel", policy=FIRST_SUCCESS),
    }
    mean = fmean(one.path for one in runs["sequential"])
    result: dict[str, Any] = {"sequential_mean": mean, "curve": []}
    for name, solved in runs.items():
        result[name] = {
            **means(solved),
            "correct": share(solved, lambda one: one.correct),
            "format": share(solved, lambda one: one.well_formed),
            "forked": share(solved, lambda one: one.forked),
        }
    totals = {name: [float(one.total) for one in solved] for name, solved in runs.items()}
    ratio, low, high = ratio_of_means(totals["first_conclusive"], totals["all"])
    result["tokens_ratio"] = {"ratio": ratio, "low": low, "high": high}
    for part in SHARES:
        result["curve"].append({"share": part, **_under(runs, part * mean)})
    note(f"puzzles under a path limit of {LIMIT} × the sequential mean, decoded for real")
    result["limited"] = await _limited(engine, problems, int(LIMIT * mean))
    return result


def _under(runs: dict[str, list[Solved]], limit: float) -> dict[str, Any]:
    shares = {name: share(s, lambda one: one.within(limit)) for name, s in runs.items()}
    return {"limit": limit, **shares}


async def _limited(engine: Engine, problems: Sequence[LabProblem], limit: int) -> dict[str, Any]:
    """Real runs under the limit: what is over it is never sampled."""
    limits = Limits(max_path_tokens=limit)
    runs = {
        "sequential": await solve_all(engine, problems, "sequential", limits=limits),
        "all": await solve_all(engine, problems, "parallel", limits=limits),
        "first_conclusive": await solve_all(
            engine, problems, "parallel", policy=FIRST_SUCCESS, limits=limits
        ),
    }
    longest = max(one.path for solved in runs.values() for one in solved)
    correct = {name: share(s, lambda one: one.correct) for name, s in runs.items()}
    return {"limit": limit, "longest_path": longest, **correct}


async def _clock(engine: Engine, size: tuple[int, ...], count: int, note: Note) -> dict[str, Any]:
    note(f"wall clock, k = {size[0]}: {count} problems, one at a time, both ways in turn")
    pairs: list[tuple[float, float]] = []
    for problem in draw_distinct(SEED + 1, "chains", size, count):
        line = (await solve_all(engine, [problem], "sequential", concurrency=1))[0]
        fork = (await solve_all(engine, [problem], "parallel", concurrency=1))[0]
        pairs.append((line.seconds, fork.seconds))
    return {"chains": size[0], "pairs": pairs, **_speed_up(pairs)}


def _speed_up(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    line, fork = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio, low, high = ratio_of_means(line, fork)
    return {
        "sequential": fmean(line),
        "parallel": fmean(fork),
        "speed_up": ratio,
        "low": low,
        "high": high,
    }
