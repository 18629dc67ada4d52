"""The layout against TRL's token trie (`trl.experimental.async_grpo.packing`) on the same requests.

TRL is no dependency: install it anywhere (`pip install --no-deps --target DIR trl==1.16.0`) and
name the folder. Both sides turn the same requests, as they hold them, into rows; ours is
also timed with the padded batch that a step is made of. Lab trajectories are those of its
recipe; the others are synthetic.

    python benchmarks/bench_trl_trie.py --trl DIR
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import distributions
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch

from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.recipe import STAGES
from anabranch.lab.train import sample
from anabranch.records import Trajectory
from anabranch.training.layout import build_layout
from anabranch.training.packing import collate
from bench_layout import trajectory
from reporting import add_option, report


def samples_of(group: Trajectory, name: int) -> list[dict[str, Any]]:
    """The requests of a trajectory as TRL takes them."""
    found = []
    for unit in group.units():
        ids = [*unit.context, *unit.completion]
        mask = [0] * len(unit.context) + [1] * len(unit.completion)
        found.append(
            {
                "input_ids": torch.tensor(ids),
                "completion_mask": torch.tensor(mask),
                "old_log_probs": torch.zeros(len(ids)),
                "advantage": 1.0,
                "group_id": name,
            }
        )
    return found


def theirs(row_type: Any, rows: list[list[dict[str, Any]]]) -> int:
    tokens = 0
    for samples in rows:
        row = row_type()
        for one in samples:
            row.add(one)
        tokens += len(row.pack()["input_ids"])
    return tokens


def ours(trajectories: list[Trajectory], *, batch: bool) -> int:
    layouts = [build_layout(one) for one in trajectories]
    if batch:
        collate(layouts)
    return sum(map(len, layouts))


def seconds(call: Callable[[], object], least: float = 0.3) -> float:
    begin, runs = time.process_time(), 0
    while time.process_time() - begin < least:
        call()
        runs += 1
    return (time.process_time() - begin) / runs


def measure(name: str, trajectories: list[Trajectory], row_type: Any) -> dict[str, object]:
    rows = [samples_of(one, number) for number, one in enumerate(trajectories)]
    triples = [
        (
            seconds(lambda: theirs(row_type, rows)),
            seconds(lambda: ours(trajectories, batch=False)),
            seconds(lambda: ours(trajectories, batch=True)),
        )
        for _ in range(3)
    ]
    mine, other = ours(trajectories, batch=False), theirs(row_type, rows)
    return {
        "rows": name,
        "trajectories": len(trajectories),
        "raw_tokens": sum(build_layout(one).raw_tokens for one in trajectories),
        "tokens": mine,
        "trl_tokens": other,
        "tokens_against_trl": round(mine / other, 4),
        "times_faster": round(statistics.median(a / b for a, b, _ in triples), 1),
        "times_faster_with_batch": round(statistics.median(a / c for a, _, c in triples), 1),
    }


def cases() -> dict[str, list[Trajectory]]:
    rng = random.Random(0)
    tokenizer = load_tokenizer(bundled_model())
    return {
        "lab": [sample(STAGES[-1], 0, n, tokenizer) for n in range(40)],
        "4 branches of 24": [trajectory(rng, 4, 24, 1) for _ in range(16)],
        "8 branches of 400, 3 rounds": [trajectory(rng, 8, 400, 3) for _ in range(2)],
        "4 branches of 2000": [trajectory(rng, 4, 2000, 1) for _ in range(2)],
    }


def load(file: Path) -> Any:
    """The module alone: its package asks for all that its trainer needs."""
    spec = spec_from_file_location("trl_packing", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _installed() -> Path | None:
    spec = find_spec("trl")
    return Path(spec.origin).parents[1] if spec is not None and spec.origin else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl", type=Path, help="folder that holds the package trl")
    add_option(parser)
    options = parser.parse_args()
    folder = options.trl or _installed()
    if folder is None:
        print("trl is not here: name its folder with --trl; nothing measured")
        return
    row_type = load(folder / "trl/experimental/async_grpo/packing.py").TreeRow
    (version,) = (
        found.version for found in distributions(path=[str(folder)]) if found.name == "trl"
    )
    torch.set_num_threads(1)
    rows = [measure(name, made, row_type) for name, made in cases().items()]
    report({"benchmark": "trl_trie", "trl": version, "cases": rows}, options.json)


if __name__ == "__main__":
    main()
