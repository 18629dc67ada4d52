"""A run in a process of its own, for tests that kill it: `python rl_job.py OUTPUT [resume]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rl_cases import parts, small_config

from anabranch.training.rl import train_rl

if __name__ == "__main__":
    model, tokenizer, sampler, task = parts()
    train_rl(
        model,
        tokenizer,
        task,
        small_config("steps=4", "save_every=1"),
        output=sys.argv[1],
        resume="resume" in sys.argv,
        sampler=sampler,
        on_step=lambda row: print("step", row["step"], flush=True),
    )
