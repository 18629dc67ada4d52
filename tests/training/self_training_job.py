"""A small self-training run: ``python self_training_job.py OUTPUT KILL`` dies when told KILL."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw_distinct
from anabranch.lab.self_training import lab_grade, lab_problems
from anabranch.training.config import SFTConfig
from anabranch.training.self_training import SelfTrainingResult, self_train
from anabranch.training.self_training_config import Decode, Keep, SelfTraining

CONFIG = SelfTraining(
    seed=4,
    rounds=2,
    decode=Decode(samples=2, temperature=0.7, shard=3, problems=5),
    keep=Keep(per_problem=1),
    train=SFTConfig(
        steps=4, tokens_per_batch=600, learning_rate=1e-4, log_every=1, save_every=1, threads=1
    ),
)
PROBLEMS = lab_problems(
    [
        *draw_distinct(8, "chains", (2, 5), 6, evaluation=False),
        *draw_distinct(8, "puzzle", (3,), 5, evaluation=False),
    ]
)


def run(output: Path, tell: Callable[[str], None], resume: bool = False) -> SelfTrainingResult:
    return self_train(
        bundled_model(),
        PROBLEMS,
        lab_grade,
        CONFIG,
        output,
        exclude=PROBLEMS[:1],
        resume=resume,
        note=tell,
        on_progress=lambda number, progress: tell(f"round {number} step {progress.step}"),
    )


def main() -> None:
    import torch

    torch.set_num_threads(1)

    def tell(text: str) -> None:
        if text.startswith(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    run(Path(sys.argv[1]), tell, resume=True)


if __name__ == "__main__":
    main()
