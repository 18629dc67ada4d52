"""Step time and peak memory of tree training against the same requests as separate sequences.

A step is forward, backward and AdamW of the lab's model on one CPU thread. The separate sequences
are run the faster of two ways, one after another or as padded batches of like lengths, with
torch's causal kernel and the same loss. Both sides alternate in one process; the medians of the
ratios are reported beside the ratio of tokens. Memory is each side's own peak, in a process of
its own. What collation costs is measured as well.

    python benchmarks/bench_tree_step.py [--repeats 7] [--only K,LENGTH,ROUNDS]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anabranch.lab.recipe import model_settings
from anabranch.records import Trajectory
from anabranch.training.audit import use_tree_attention
from anabranch.training.layout import build_layout
from anabranch.training.loss import edge_logits, edge_loss, only_rows, to_tensors
from anabranch.training.packing import collate
from bench_layout import trajectory
from reporting import add_option, report

#: Branches, tokens of a branch, rounds, and how many trees make a step.
CASES = (
    (2, 24, 1, 16),
    (4, 24, 1, 12),
    (8, 24, 1, 8),
    (4, 24, 3, 4),
    (2, 400, 1, 1),
    (4, 300, 1, 1),
    (8, 200, 1, 1),
    (4, 150, 3, 1),
    (8, 150, 2, 1),
    (4, 600, 2, 1),
)


def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**model_settings(), "max_position_embeddings": 65536}))


def samples(case: tuple[int, int, int, int]) -> list[Trajectory]:
    branches, length, rounds, count = case
    rng = random.Random(0)
    vocabulary = model_settings()["vocab_size"]
    made = [trajectory(rng, branches, length, rounds) for _ in range(count)]
    for sample in made:
        for number, segment in enumerate(sample.segments):
            ids = tuple(token % vocabulary for token in segment.ids)
            sample.segments[number] = segment.model_copy(update={"ids": ids})
    return made


def tree_step(case: tuple[int, int, int, int]) -> tuple[Callable[[], float], Any]:
    network = model()
    use_tree_attention(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    layouts = [build_layout(sample) for sample in samples(case)]
    batch = to_tensors(collate(layouts))
    total = sum(layout.weight for layout in layouts)

    def step() -> float:
        loss = edge_loss(edge_logits(network, batch), batch, total)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step, layouts


def separate_step(case: tuple[int, int, int, int], size: int) -> Callable[[], float]:
    """The same requests, in padded batches of at most ``size`` sequences of like lengths."""
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    units = [unit for sample in samples(case) for unit in sample.units()]
    units = sorted(units, key=lambda u: len(u.context) + len(u.completion))
    total = sum(len(unit.completion) for unit in units)
    batches = [padded(units[at : at + size]) for at in range(0, len(units), size)]

    def step() -> float:
        summed = 0.0
        for ids, rows, targets in batches:
            with only_rows(network, rows):
                logits = network(input_ids=ids, use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / total
            loss.backward()
            summed += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return summed

    return step


def padded(units: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids ``[B, L]``, rows of the flattened outputs, targets. Causal, so padding is inert."""
    width = max(len(unit.context) + len(unit.completion) for unit in units)
    ids = torch.zeros(len(units), width, dtype=torch.long)
    rows, targets = [], []
    for number, unit in enumerate(units):
        tokens = [*unit.context, *unit.completion]
        ids[number, : len(tokens)] = torch.tensor(tokens)
        first = number * width + len(unit.context) - 1
        rows += range(first, first + len(unit.completion))
        targets += unit.completion
    return ids, torch.tensor(rows), torch.tensor(targets)


def seconds(step: Callable[[], float]) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


def peak_megabytes(case: tuple[int, int, int, int], side: str) -> float:
    """Peak above the process before the first step, in a process of its own."""
    text = ",".join(map(str, case))
    done = subprocess.run(
        [sys.executable, __file__, "--peak", side, "--only", text],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def peak(case: tuple[int, int, int, int], side: str) -> None:
    step = tree_step(case)[0] if side == "tree" else separate_step(case, int(side))
    step()
    # getrusage would count the process that this one was forked from.
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    step()
    print((_memory("VmHWM") - before) / 1024)


def _memory(name: str) -> int:
    """A line of the process's status, in KiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def collation_share(case: tuple[int, int, int, int], step_seconds: float) -> float:
    """Layout, packing and padding of the step, as a share of the step."""
    made = samples(case)
    begin, runs = time.process_time(), 0
    while time.process_time() - begin < 0.5:
        collate([build_layout(sample) for sample in made])
        runs += 1
    return (time.process_time() - begin) / runs / step_seconds


def measure(case: tuple[int, int, int, int], repeats: int) -> dict[str, object]:
    tree, layouts = tree_step(case)
    sides = {1: separate_step(case, 1), 8: separate_step(case, 8)}
    losses = [tree(), *(step() for step in sides.values())]
    assert max(losses) - min(losses) < 1e-4, losses
    times: dict[object, list[float]] = {"tree": [], 1: [], 8: []}
    for _ in range(repeats):
        times["tree"].append(seconds(tree))
        for size, step in sides.items():
            times[size].append(seconds(step))
    size = min(sides, key=lambda name: statistics.median(times[name]))
    pairs = zip(times[size], times["tree"], strict=True)
    speed_up = statistics.median(other / mine for other, mine in pairs)
    tree_tokens = sum(map(len, layouts))
    raw = sum(layout.raw_tokens for layout in layouts)
    step_seconds = statistics.median(times["tree"])
    return {
        "branches": case[0],
        "branch_tokens": case[1],
        "rounds": case[2],
        "trees": case[3],
        "tree_tokens": tree_tokens,
        "raw_tokens": raw,
        "token_ratio": round(raw / tree_tokens, 3),
        "sequences_per_batch": size,
        "tree_step_cpu_seconds": round(step_seconds, 4),
        "speed_up": round(speed_up, 3),
        "share_of_token_ratio": round(speed_up * tree_tokens / raw, 3),
        "tree_peak_mb": round(peak_megabytes(case, "tree"), 1),
        "separate_peak_mb": round(peak_megabytes(case, str(size)), 1),
        "collation_share": round(collation_share(case, step_seconds), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", help="one case: branches,tokens,rounds,trees")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = CASES
    if options.only:
        branches, length, rounds, count = map(int, options.only.split(","))
        cases = ((branches, length, rounds, count),)
    if options.peak:
        peak(cases[0], options.peak)
        return
    rows = []
    for case in cases:
        rows.append(measure(case, options.repeats))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report({"benchmark": "tree_step", "torch": torch.__version__, "cases": rows}, options.json)


if __name__ == "__main__":
    main()
