"""How many tokens a CPU second the tree layout lays out; prints one JSON object.

Trajectories are synthetic: a prompt, a plan, k branches, their join and a continuation, several
rounds each, as records; building the records is not timed.

    python benchmarks/bench_layout.py [--seconds 2]
"""

from __future__ import annotations

import argparse
import platform
import random
import time

import numpy as np

from anabranch.records import Request, Segment, Trajectory
from anabranch.training.layout import build_layout
from anabranch.training.packing import collate, pack
from reporting import add_option, report


def trajectory(rng: random.Random, branches: int, length: int, rounds: int) -> Trajectory:
    """A fork-join trajectory with ``rounds`` blocks of ``branches`` branches each."""
    segments: list[Segment] = []
    requests: list[Request] = []

    def add(origin: str, count: int) -> int:
        ids = tuple(rng.randrange(30_000) for _ in range(count))
        segments.append(Segment(origin=origin, ids=ids))  # type: ignore[arg-type]
        return len(segments) - 1

    main = [add("prompt", 2 * length)]
    for _ in range(rounds):
        plan = add("sampled", length)
        requests.append(Request(kind="main", context=tuple(main), output=plan))
        main += [plan, add("forced", 1)]
        joined: list[int] = []
        for number in range(branches):
            header = add("forced", 3)
            output = add("sampled", rng.randrange(length // 2, 2 * length))
            requests.append(
                Request(kind="branch", context=(*main, header), output=output, branch=number + 1)
            )
            joined += [header, output]
        main += [*joined, add("forced", 1)]
    requests.append(Request(kind="main", context=tuple(main), output=add("sampled", length)))
    return Trajectory(segments=segments, requests=requests)


def measure(branches: int, length: int, rounds: int, seconds: float) -> dict[str, object]:
    rng = random.Random(0)
    samples = [trajectory(rng, branches, length, rounds) for _ in range(16)]
    layouts = [build_layout(sample) for sample in samples]
    tokens = sum(len(layout) for layout in layouts)
    begin, runs = time.process_time(), 0
    while time.process_time() - begin < seconds:
        for sample in samples:
            build_layout(sample)
        runs += 1
    build = (time.process_time() - begin) / runs
    longest = max(len(layout) for layout in layouts)
    begin, runs = time.process_time(), 0
    while time.process_time() - begin < seconds / 4:
        collate(pack(layouts, 2 * longest))
        runs += 1
    collation = (time.process_time() - begin) / runs
    return {
        "branches": branches,
        "branch_tokens": length,
        "rounds": rounds,
        "tree_tokens": tokens,
        "raw_tokens": sum(layout.raw_tokens for layout in layouts),
        "layout_tokens_per_cpu_second": round(tokens / build),
        "collate_tokens_per_cpu_second": round(tokens / collation),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per case")
    add_option(parser)
    options = parser.parse_args()
    seconds = options.seconds
    cases = [(2, 24, 1), (4, 24, 1), (4, 200, 1), (8, 400, 3), (8, 2000, 2)]
    rows = [measure(*case, seconds) for case in cases]
    figures = {
        "benchmark": "layout",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cases": rows,
    }
    report(figures, options.json)


if __name__ == "__main__":
    main()
