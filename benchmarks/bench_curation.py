"""Curation at size: rows a second and memory without a model; killed and resumed with one.

The first part streams rows through `cut`, `render` and `check` in processes and looks at the peak
memory of all of them. The second takes lab traces through all stages against the lab's annotator,
one request in five of which fails, once in one go and once killed three times.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from anabranch.jsonl import read_rows, write_records
from anabranch.lab.teacher import KINDS, LINE_END, trace_rows
from reporting import add_option, report

CONFIG = """
[cut]
outside = 10
trim = ".!"
[render]
dialect = "parason:compact"
[check]
allow = ["near_duplicate"]
"""
STEPS = f"[steps]\nline_end = '{LINE_END}'\n"
PROGRAM = [sys.executable, "-c", "from anabranch.cli.app import main; main()"]


def start(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, **settings)


def memory(process: subprocess.Popen[str]) -> int:
    """Resident bytes of a process and its children."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    family = {process.pid}
    for _ in range(3):
        family |= {pid for pid, parent, _ in rows if parent in family}
    return sum(size * 1024 for pid, _, size in rows if pid in family)


def without_model(folder: Path, rows: int) -> dict[str, float]:
    """Many copies of rows that were cut by the annotator, under ids of their own."""
    few = folder / "few.jsonl"
    write_records(few, trace_rows(1, KINDS[:3], 300))
    with_teacher(folder, few, folder / "few", 0.0)
    made = [row for _, row in read_rows(folder / "few" / "rows.jsonl")]
    made = [row for row in made if "group" in row["data"]]

    def copies() -> Any:
        for number in range(rows):
            row = made[number % len(made)]
            data = {name: row["data"][name] for name in ("steps", "group")}
            # Another problem each time, so that none is a repetition.
            problem = f"{row['problem']} {number}"
            yield {**row, "id": str(number), "problem": problem, "data": data, "status": {}}

    source = folder / "many.jsonl"
    write_records(source, copies())
    (folder / "free.toml").write_text(CONFIG)
    begun = time.perf_counter()
    process = start(
        "curate", "run", source, "-o", folder / "many", "--stages", "cut,render,check",
        "--config", folder / "free.toml", stdout=subprocess.DEVNULL,
    )  # fmt: skip
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process))
        time.sleep(0.2)
    seconds = time.perf_counter() - begun
    return {
        "rows": rows,
        "rows_per_second": rows / seconds,
        "peak_bytes": peak,
        "exit": float(process.returncode),
    }


def with_teacher(folder: Path, source: Path, out: Path, faults: float, kills: int = 0) -> float:
    """Run all stages; returns the seconds of the last start."""
    (folder / "lab.toml").write_text(STEPS + CONFIG)
    teacher = start("lab", "teacher", "--faults", faults, stdout=subprocess.PIPE)
    assert teacher.stdout is not None
    url = teacher.stdout.readline().split()[-1]
    call = (
        "curate", "run", source, "-o", out, "--config", folder / "lab.toml",
        "--url", url, "--model", "teacher",
    )  # fmt: skip
    rng = random.Random(4)
    try:
        for _ in range(kills):
            process = start(*call, stdout=subprocess.DEVNULL)
            time.sleep(rng.uniform(4, 12))
            process.send_signal(signal.SIGKILL)
            process.wait()
        begun = time.perf_counter()
        start(*call, stdout=sys.stderr).wait()
        return time.perf_counter() - begun
    finally:
        teacher.terminate()
        teacher.wait()


def resumed(folder: Path, rows: int) -> dict[str, Any]:
    source = folder / "traces.jsonl"
    write_records(source, trace_rows(7, KINDS, rows))
    seconds = with_teacher(folder, source, folder / "whole", 0.2)
    with_teacher(folder, source, folder / "broken", 0.2, kills=3)
    whole, broken = ((folder / name / "rows.jsonl").read_bytes() for name in ("whole", "broken"))
    every = [row for _, row in read_rows(folder / "whole" / "rows.jsonl")]
    ends: dict[str, int] = {}
    for row in every:
        stage, outcome = list(row["status"].items())[-1]
        name = " ".join(filter(None, (stage, outcome["status"], outcome["reason"])))
        ends[name] = ends.get(name, 0) + 1
    return {
        "rows": rows,
        "seconds": seconds,
        "same_after_three_kills": whole == broken,
        "counts_agree": sum(ends.values()) == rows,
        "ends": ends,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--traces", type=int, default=2_000)
    add_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "with_a_model": resumed(folder, arguments.traces),
            "without_a_model": without_model(folder, arguments.rows),
        }
    report(found, arguments.json)


if __name__ == "__main__":
    main()
