"""A small two-stage training run: ``python sft_job.py OUTPUT KILL`` dies at the report KILL."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tree_cases import make_trajectory, tiny_model

from anabranch.checkpoint import CheckpointInfo
from anabranch.training.config import SFTConfig
from anabranch.training.data import Endless
from anabranch.training.stages import Stage, run_stages
from anabranch.training.trainer import Progress

CONFIG = SFTConfig(
    steps=9,
    tokens_per_batch=150,
    micro_batches=2,
    learning_rate=3e-3,
    log_every=1,
    save_every=2,
    seed=3,
)
DATA = [make_trajectory(n, [[1 + n % 4, 2]] * (1 + n % 2)) for n in range(17)]
INFO = CheckpointInfo(dialect="parason", prompts={"sequential": "<bos>{problem}[seq]"})


def run(output: Path, report: Callable[[str, Progress], None], resume: bool = False) -> list[Any]:
    second = CONFIG.model_copy(update={"steps": 5, "learning_rate": 1e-3})
    stages = [
        Stage("first", DATA, CONFIG),
        Stage("second", Endless(lambda i: DATA[i % 11]), second, keep_optimizer=True),
    ]
    model = tiny_model("Llama", attention_dropout=0.1)
    return run_stages(model, stages, output, info=INFO, resume=resume, on_progress=report)


def main() -> None:
    import torch

    torch.set_num_threads(1)

    def report(stage: str, progress: Progress) -> None:
        if sys.argv[2] == f"{stage}:{progress.step}":
            os.kill(os.getpid(), signal.SIGKILL)

    run(Path(sys.argv[1]), report)


if __name__ == "__main__":
    main()
