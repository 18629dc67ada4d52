"""One of several processes that train together, whole and then sharded: ``ranks_job.py OUTPUT``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tree_cases import make_trajectory, tiny_model

from anabranch.checkpoint import CheckpointInfo
from anabranch.training.config import SFTConfig

HERE = Path(__file__).parent
CONFIG = SFTConfig(
    steps=20,
    tokens_per_batch=150,
    row_tokens=60,
    learning_rate=3e-3,
    tag_learning_rate=1e-2,
    log_every=1,
    save_every=7,
    eval_every=10,
    seed=3,
)
DATA = [make_trajectory(n, [[1 + n % 4, 2]] * (1 + n % 2)) for n in range(17)]
INFO = CheckpointInfo(dialect="parason", tags={"<Thread>": (5,), "</Thread>": (40,)})
#: What accelerate's launcher sets for FSDP.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}


def train(output: Path, micro_batches: int, **options: Any) -> Any:
    from anabranch.training.evaluating import HeldOut
    from anabranch.training.sft import train_sft

    config = CONFIG.model_copy(update={"micro_batches": micro_batches})
    return train_sft(
        tiny_model("Llama"),
        DATA,
        config,
        output=output,
        info=INFO,
        evaluate=HeldOut(DATA[:5]),
        **options,
    )


def start(output: Path, port: int, world: int = 2) -> list[subprocess.Popen[bytes]]:
    """Start the processes, as a launcher would."""
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)]),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "ranks_job.py"), str(output)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    train(Path(sys.argv[1]) / "ddp", 1)
    os.environ.update(FSDP)
    train(Path(sys.argv[1]) / "fsdp", 1)
    torch.distributed.destroy_process_group()
