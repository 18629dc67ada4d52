"""Grading: simple pairs a second, and 32 pairs that hang in a pool of four. Prints JSON.

Promise: ≥ 1,000 simple pairs a second; everything else is graded while 32 pairs hang; each of them
ends as a time-out within its deadline and one second; no worker is lost; memory stays bounded.

    python benchmarks/bench_grading.py [--pairs 10000] [--timeout 2]
"""

from __future__ import annotations

import argparse
import resource
import time

from anabranch.grading import Grader, Item
from reporting import add_option, report

TOWER = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)}-4\right)}-5}{16}"
ALGEBRA = (r"\tan^2(y)+1", r"\sec^2(y)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--timeout", type=float, default=2.0)
    add_option(parser)
    options = parser.parse_args()
    with Grader(workers=4, timeout=options.timeout) as grader:
        simple = [(str(n), f"so the answer is {n}.") for n in range(options.pairs)]
        began = time.process_time()
        assert all(verdict.correct for verdict in grader.grade_many(simple))
        rate = options.pairs / (time.process_time() - began)
        grader.pool.warm_up()
        began = time.monotonic()
        hanging = [grader._begin(Item(TOWER, str(n))) for n in range(32)]
        others = grader.grade_many([ALGEBRA] * 20 + simple[:1000])
        others_seconds = time.monotonic() - began
        still = sum(not future.done() for future in hanging)
        statuses = [future.result(600).status for future in hanging]
        whole = time.monotonic() - began
        alive = grader.grade_many([ALGEBRA] * 100)
    report(
        {
            "simple_pairs_per_cpu_second": round(rate),
            "others_right": sum(v.correct for v in others),
            "others_seconds": round(others_seconds, 2),
            "hanging_when_others_were_done": still,
            "hanging_timeouts": statuses.count("timeout"),
            "hanging_seconds_all": round(whole, 1),
            "hanging_seconds_each_worker_turn": round(whole / (32 / 3), 2),
            "right_afterwards_of_100": sum(v.correct for v in alive),
            "largest_worker_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
