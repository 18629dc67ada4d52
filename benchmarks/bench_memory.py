"""Ten thousand trajectories in one process: peak memory, all at once and as a stream.

On the simulated engine, each with a fork of eight branches; the records are written to a file as
they are finished, as `anabranch decode` does. Promise: < 2 GB.

    python benchmarks/bench_memory.py [--trajectories 10000] [--concurrency 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

from anabranch.decoding import make_setup
from anabranch.decoding.batch import decode_file
from anabranch.engines.simulated import SimulatedEngine
from anabranch.records import Problem
from bench_decoder import script
from reporting import add_option, report


async def decode(count: int, concurrency: int, output: Path) -> int:
    engine = SimulatedEngine(script(8, 100), decode_rate=50.0, record=False)
    problems = (Problem(id=str(n), problem="?") for n in range(count))
    tally = await decode_file(
        problems,
        lambda problem, _, name: make_setup(problem, engine, dialect="parason:compact", id=name),
        engine,
        output,
        concurrency=concurrency,
    )
    return tally.outcomes["answered"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=10_000)
    add_option(parser)
    options = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.jsonl"
        answered = asyncio.run(decode(options.trajectories, options.concurrency, output))
        size = output.stat().st_size / 2**20
    report(
        {
            "benchmark": "memory",
            "trajectories": options.trajectories,
            "at_once": options.concurrency,
            "answered": answered,
            "branches_each": 8,
            "before_mib": round(before),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "promise_mib": 2000,
            "output_mib": round(size),
            "cpu_seconds": round(time.process_time() - began, 1),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
