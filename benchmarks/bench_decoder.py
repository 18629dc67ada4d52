"""What the decoder adds to an engine's own time: many trajectories on the simulated engine.

Time to answer against the critical path's own time at the engine's rate, in a real event loop; and
CPU time per sampled token.

    python benchmarks/bench_decoder.py [--trajectories 64] [--branches 8]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import fmean

from anabranch.decoding import decode_many, make_setup
from anabranch.engines.simulated import SimulatedEngine
from anabranch.metrics import trajectory_metrics
from reporting import add_option, report

PROMISE = 1.03
RATE = 50.0


def script(branches: int, length: int) -> dict[str, str]:
    """Replies by prompt ending; a token is a character."""
    plan = "".join(f"<Subtask>{n}:t</Subtask>" for n in range(1, branches + 1))
    replies = {f"<Thread>{n}:": "x" * length + "</Thread>" for n in range(1, branches + 1)}
    replies["\\boxed{}."] = f"<think><Parallel><Outlines>{plan}</Outlines>"
    replies["</Parallel>"] = "y" * 20 + "</think>\\boxed{1}"
    return replies


async def measure(trajectories: int, branches: int, length: int) -> dict[str, float]:
    engine = SimulatedEngine(script(branches, length), decode_rate=RATE, record=False)
    setups = [
        make_setup("?", engine, dialect="parason:compact", id=str(n)) for n in range(trajectories)
    ]
    setups = [s for s in setups if s.prompt.endswith("?")] or setups
    cpu = time.process_time()
    done = await decode_many(setups, engine, concurrency=trajectories)
    cpu = time.process_time() - cpu
    ratios = [(t.seconds or 0) / (trajectory_metrics(t).critical_path / RATE) for t in done]
    return {
        "trajectories": trajectories,
        "branches": branches,
        "answered": sum(t.outcome == "answered" for t in done),
        "time_over_ideal": round(fmean(ratios), 4),
        "worst": round(max(ratios), 4),
        "cpu_us_per_token": round(1e6 * cpu / engine.sampled, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--length", type=int, default=200)
    add_option(parser)
    options = parser.parse_args()
    figures = asyncio.run(measure(options.trajectories, options.branches, options.length))
    kept = figures["time_over_ideal"] <= PROMISE
    report({"benchmark": "decoder", **figures, "promise": PROMISE, "kept": kept}, options.json)


if __name__ == "__main__":
    main()
