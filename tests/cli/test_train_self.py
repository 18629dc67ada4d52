"""`anabranch train self` and the baselines of `train sft`, from files to a checkpoint."""

from __future__ import annotations

import json

import pytest

from anabranch.checkpoint import load_checkpoint_info
from anabranch.jsonl import write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import reference_trajectory
from anabranch.lab.families import draw_distinct
from anabranch.lab.self_training import lab_problems

pytest.importorskip("torch")
DRAWN = draw_distinct(12, "chains", (2, 5), 3, evaluation=False)

CONFIG = """
model = "{model}"
problems = "problems.jsonl"
output = "run"
grader = "lab"
exclude = ["held-out.jsonl"]

[decode]
samples = 2
shard = 2

[train]
steps = 1
tokens_per_batch = 300
threads = 1
"""


@pytest.fixture
def config(tmp_path):
    problems = lab_problems(DRAWN)
    write_records(tmp_path / "problems.jsonl", problems)
    write_records(tmp_path / "held-out.jsonl", problems[2:])
    (tmp_path / "self.toml").write_text(CONFIG.format(model=bundled_model()))
    return "self.toml"


def test_a_round_from_files_to_a_model(cli, fails, config, tmp_path):
    shown = cli("train", "self", config).stdout
    assert "2 problems, 2 answers each" in shown and "the model is in" in shown
    assert load_checkpoint_info(tmp_path / "run/round-1/train/model").dialect == "parason:compact"
    assert json.loads((tmp_path / "run/round-1/card.json").read_text())["problems"]["excluded"] == 1
    assert "resume it" in fails("train", "self", config)
    assert "the model is in" in cli("train", "self", config, "--resume").stdout
    assert "seed" in fails("train", "self", config, "--resume", "--set", "seed=4")


def test_settings_that_cannot_be(fails, config):
    def line(*settings):
        pairs = [part for setting in settings for part in ("--set", setting)]
        return fails("train", "self", config, *pairs)

    assert "grader 'maths'" in line("grader=maths")
    assert "cannot be imported" in line("grader=nowhere:grade")
    assert "no function" in line("grader=json:__name__")
    assert "exclude each other" in line("engine.url=http://x", "engine.command=x")
    assert "rounds = 1" in line("engine.url=http://127.0.0.1:9", "rounds=2")
    assert "keep.per_problems" in line("keep.per_problems=3")
    assert "nowhere.jsonl" in line("problems=nowhere.jsonl")
    assert "no such checkpoint" in line("model=nowhere")


@pytest.mark.parametrize("objective", ["seen", "structured", "sequential"])
def test_baselines_train_on_the_same_rows(cli, fails, tmp_path, objective):
    from anabranch.engines.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(bundled_model())
    rows = [
        reference_trajectory(one, "parallel", tokenizer).model_copy(update={"problem": record})
        for one, record in zip(DRAWN, lab_problems(DRAWN), strict=True)
    ]
    write_records(tmp_path / "rows.jsonl", rows)
    options = ("--model", bundled_model(), "--data", "rows.jsonl", "-o", "run", "--dialect")
    few = ("parason:compact", "--set", "steps=1", "--set", "tokens_per_batch=300")
    shown = cli("train", "sft", *options, *few, "--objective", objective).stdout
    assert "3 trajectories" in shown and "0 samples skipped" in shown
    config = json.loads((tmp_path / "run/run.json").read_text())["config"]
    assert config["data"]["objective"] == objective
    assert "data" in fails("train", "sft", *options, *few, "--resume", "--objective", "tree")
    line = fails("train", "sft", *options, *few, "--objective", "trees")
    assert "use tree, seen, structured, sequential" in line
