"""Time to answer on a real engine: sequential, fork-join and load-aware, at 1, 4 and 16 at once.

The bundled model's chains with k = 4 … 6, each problem in both forms, in turn within one run. The
token gain is sequential tokens over the critical path; the promise is a wall-clock gain of at least
0.85 of it at one answer at a time. With `--profile` the same trajectories are planned as well, and
the plan's latency stands beside the measured one; the promise is a difference of at most 20 %.

    python benchmarks/bench_wall_clock.py --engine http://127.0.0.1:8000 [--profile profile.json]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from anabranch.decoding.decoder import run
from anabranch.decoding.width import LoadGate
from anabranch.engines.base import Engine
from anabranch.engines.profile import Profile, load_profile
from anabranch.engines.specs import EngineTerms, FleetTerms, make_engine
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import with_limits
from anabranch.lab.families import LabProblem, draw_distinct
from anabranch.lab.structure import Form
from anabranch.metrics import trajectory_metrics
from anabranch.planning import Arm, Traffic, simulate
from anabranch.records import Trajectory
from reporting import add_option, report

LEVELS = (1, 4, 16)


class Pass:
    """One form at one level: trajectories, their seconds, and the whole."""

    def __init__(self) -> None:
        self.done: list[Trajectory] = []
        self.seconds: list[float] = []
        self.whole = 0.0


async def measure(
    engine: Engine, problems: Sequence[LabProblem], form: Form, level: int, room: int | None
) -> Pass:
    found = Pass()
    waiting = iter(problems)
    calls = 0

    async def one(problem: LabProblem) -> None:
        nonlocal calls
        gate = None if room is None else LoadGate(lambda: room - calls, again=0.01)
        setup = with_limits(lab_setup(problem, form, engine.tokenizer), engine, None)
        began = time.perf_counter()
        calls += 1
        try:
            trajectory = await run(setup, engine, gate=gate)
        finally:
            calls -= 1
        found.seconds.append(time.perf_counter() - began)
        found.done.append(trajectory)

    async def worker() -> None:
        for problem in waiting:
            await one(problem)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(level)))
    found.whole = time.perf_counter() - began
    return found


def right(found: Pass, problems: Sequence[LabProblem]) -> float:
    known = {problem.text: problem for problem in problems}
    return fmean(known[t.id].check(t.text) for t in found.done)


async def study(engine: Engine, per_size: int, room: int) -> tuple[list[dict[str, Any]], Any]:
    problems = [p for k in (4, 5, 6) for p in draw_distinct(7, "chains", (k, 5), per_size)]
    await measure(engine, problems[:4], "parallel", 2, None)
    rows, kept = [], {}
    for level in LEVELS:
        lines = await measure(engine, problems, "sequential", level, None)
        forks = await measure(engine, problems, "parallel", level, None)
        held = await measure(engine, problems, "parallel", level, room)
        tokens = fmean(trajectory_metrics(t).total_tokens for t in lines.done)
        path = fmean(trajectory_metrics(t).critical_path for t in forks.done)
        gain, promised = fmean(lines.seconds) / fmean(forks.seconds), tokens / path
        rows.append(
            {
                "at_once": level,
                "problems": len(problems),
                "sequential_seconds": round(fmean(lines.seconds), 4),
                "fork_join_seconds": round(fmean(forks.seconds), 4),
                "load_aware_seconds": round(fmean(held.seconds), 4),
                "gain": round(gain, 3),
                "token_gain": round(promised, 3),
                "share_of_token_gain": round(gain / promised, 3),
                "share_of_token_gain_p50": round(
                    median(lines.seconds) / median(forks.seconds) / promised, 3
                ),
                "load_aware_gain": round(fmean(lines.seconds) / fmean(held.seconds), 3),
                "answers_per_second": [
                    round(len(problems) / one.whole, 3) for one in (lines, forks, held)
                ],
                "right": [round(right(one, problems), 3) for one in (lines, forks, held)],
            }
        )
        kept[level] = (lines, forks)
    return rows, kept


def planned(profile: Profile, kept: Any) -> list[dict[str, Any]]:
    rows = []
    for level, passes in kept.items():
        for name, found in zip(("sequential", "fork-join"), passes, strict=True):
            traffic = Traffic(concurrency=level, count=len(found.done))
            figures = simulate(profile, Arm(name, found.done), traffic, 1)  # type: ignore[arg-type]
            rows.append(
                {
                    "at_once": level,
                    "decoding": name,
                    "measured_mean": round(fmean(found.seconds), 4),
                    "planned_mean": round(figures.mean, 4),
                    "off_mean": round(figures.mean / fmean(found.seconds) - 1, 3),
                    "measured_p50": round(median(found.seconds), 4),
                    "planned_p50": round(figures.p50, 4),
                    "off_p50": round(figures.p50 / median(found.seconds) - 1, 3),
                }
            )
    return rows


async def main_async(options: argparse.Namespace) -> tuple[list[dict[str, Any]], Any]:
    terms = EngineTerms(None, bundled_model(), None, False, FleetTerms(None, (), None))
    engine = make_engine([options.engine], terms)
    try:
        if (opening := getattr(engine, "open", None)) is not None:
            await opening()
        return await study(engine, options.problems, options.room)
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default=f"local:{bundled_model()}")
    parser.add_argument("--problems", type=int, default=16, help="of each size")
    parser.add_argument("--room", type=int, default=16, help="calls at which branches wait")
    parser.add_argument("--profile", type=Path)
    add_option(parser)
    options = parser.parse_args()
    rows, kept = asyncio.run(main_async(options))
    found: dict[str, Any] = {"benchmark": "wall_clock", "engine": options.engine}
    found |= {"rows": rows, "promise": 0.85}
    if options.profile:
        found["plan"] = planned(load_profile(options.profile), kept)
    report(found, options.json)


if __name__ == "__main__":
    main()
