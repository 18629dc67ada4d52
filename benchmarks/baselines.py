"""The bundled model trained further on the same rows under each objective, decoded by forking.

What a stock engine makes of Parallel-R1's structured variant and of the other baselines: right
answers of held-out problems, and how far log-probs behind the joins are from ordinary decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import torch

import reporting
from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.local import LocalEngine
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.jsonl import write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import reference_trajectory
from anabranch.lab.evaluate import solve_all
from anabranch.lab.families import draw_distinct
from anabranch.lab.results import share
from anabranch.lab.self_training import lab_problems
from anabranch.training.baselines import OBJECTIVES, attention_of, objective_file
from anabranch.training.config import SFTConfig
from anabranch.training.sft import load_for_training, train_sft
from anabranch.training.structured import mismatch

SIZES = {"chains": (4, 5), "puzzle": (3,)}


def rows(count: int, path: Path) -> None:
    """Reference answers of training problems of both families."""
    tokenizer = load_tokenizer(bundled_model())
    drawn = [
        problem
        for family, size in SIZES.items()
        for problem in draw_distinct(3, family, size, count, evaluation=False)
    ]
    answers = [reference_trajectory(problem, "parallel", tokenizer) for problem in drawn]
    records = lab_problems(drawn)
    write_records(
        path,
        [
            a.model_copy(update={"problem": record})
            for a, record in zip(answers, records, strict=True)
        ],
    )


def trained(objective: str, data: Path, folder: Path, steps: int) -> Any:
    """The bundled model, trained on; the network in fp32."""
    info = load_checkpoint_info(bundled_model())
    source, kind = objective_file(objective, data, info, load_tokenizer(bundled_model()))
    network, tokenizer = load_for_training(bundled_model())
    config = SFTConfig(
        steps=steps, tokens_per_batch=2000, learning_rate=5e-4, beta2=0.98, threads=1
    )
    with attention_of(kind, network):
        train_sft(network, source, config, output=folder, tokenizer=tokenizer, info=info)
    return network


def measured(network: Any, folder: Path, count: int) -> dict[str, Any]:
    """Right answers by forking and in one line, and the mismatch behind joins."""

    async def solve(form: Any) -> dict[str, Any]:
        engine = LocalEngine(folder / "model")
        try:
            return {
                family: share(
                    await solve_all(engine, draw_distinct(4, family, size, count), form),
                    lambda one: one.correct,
                )
                for family, size in SIZES.items()
            }
        finally:
            await engine.close()

    tokenizer = load_tokenizer(bundled_model())
    found: dict[str, Any] = {"fork-join": asyncio.run(solve("parallel"))}
    found["mismatch"] = {}
    for family, size in SIZES.items():
        answers = [
            reference_trajectory(problem, "parallel", tokenizer)
            for problem in draw_distinct(5, family, size, min(count, 50))
        ]
        figures = mismatch(network.eval(), answers)
        found["mismatch"][family] = {
            name: getattr(figures, name) for name in type(figures).__dataclass_fields__
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=150, help="of each family")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--problems", type=int, default=100, help="held-out, of each family")
    reporting.add_option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"rows": given.rows, "steps": given.steps}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "rows.jsonl"
        rows(given.rows, data)
        for objective in OBJECTIVES:
            folder = Path(scratch) / objective
            network = trained(objective, data, folder, given.steps)
            result[objective] = measured(network, folder, given.problems)
            print(objective, result[objective], flush=True)
    reporting.report(result, given.json)


if __name__ == "__main__":
    main()
