"""`anabranch train rl` and `anabranch lab reproduce`: a run, its resume, and mistakes."""

import json
from pathlib import Path
from typing import Any

from anabranch.lab.bundled import bundled_model
from anabranch.lab.rl_tasks import LabPool

CONFIG = """
model = "{model}"
output = "run"
problems = {{ main = "problems.jsonl" }}

[rl]
steps = 2
prompts = 2
rollouts = 2
learning_rate = 1e-5
schedule = "p_grpo"
limits = {{ max_total_tokens = 200 }}
"""


def write(folder: Path) -> None:
    pool = LabPool("chains", ((2, 2),), 1)
    lines = [json.dumps(pool[n].to_json()) for n in range(4)]
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "rl.toml").write_text(CONFIG.format(model=bundled_model()))


def test_train_rl(cli: Any, tmp_path: Path) -> None:
    write(tmp_path)
    done = cli("train", "rl", "rl.toml", "--set", "rl.threads=1")
    assert "step    2" in done.stdout
    assert "2 steps; the model is in run/model" in done.stdout
    assert (tmp_path / "run" / "model" / "anabranch.json").is_file()
    again = cli("train", "rl", "rl.toml", code=2)
    assert "already holds a run" in again.stderr


def test_mistakes_are_one_line(cli: Any, tmp_path: Path) -> None:
    write(tmp_path)
    done = cli("train", "rl", "rl.toml", "--set", "rl.schedule=fast", code=2)
    assert "no schedule 'fast'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    done = cli("train", "rl", "rl.toml", "--set", "engine=http://127.0.0.1:9", code=2)
    assert "engine_folder" in done.stderr
    done = cli("lab", "reproduce", "grpo", "-o", "study", code=2)
    assert "nothing is known of 'grpo'" in done.stderr
