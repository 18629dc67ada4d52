"""Runs: exact restart after a kill, stages, what is written, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sft_job import CONFIG, DATA, INFO, run
from tree_cases import tiny_model

from anabranch.checkpoint import load_checkpoint_info
from anabranch.errors import ModelError, UsageError
from anabranch.jsonl import write_records
from anabranch.records import Trajectory
from anabranch.training.config import SFTConfig
from anabranch.training.data import TrajectoryFile
from anabranch.training.runs import newest_checkpoint
from anabranch.training.sft import train_sft
from anabranch.training.stages import Stage, run_stages
from anabranch.training.trainer import Progress

HERE = Path(__file__).parent


def quiet(stage: str, progress: Progress) -> None:
    pass


def die_at(where: str) -> Callable[[str, Progress], None]:
    def report(stage: str, progress: Progress) -> None:
        if where == f"{stage}:{progress.step}":
            raise RuntimeError("died")

    return report


def weights(stage: Path) -> dict[str, torch.Tensor]:
    return load_file(stage / "model" / "model.safetensors")


def log(stage: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (stage / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens")} for row in rows]


@pytest.mark.timeout(400)
def test_a_killed_run_goes_on_to_bit_equal_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    path = os.pathsep.join([str(HERE.parent.parent / "src"), str(HERE)])
    job = subprocess.Popen(
        [sys.executable, str(HERE / "sft_job.py"), str(cut), "first:5"],
        env={**os.environ, "PYTHONPATH": path},
    )
    run(whole, quiet)
    assert job.wait(timeout=350) == -signal.SIGKILL
    # A kill in the middle of a save leaves a checkpoint that is not whole.
    half = cut / "0-first" / "checkpoint-6"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    with pytest.raises(RuntimeError, match="died"):
        run(cut, die_at("second:3"), resume=True)
    run(cut, quiet, resume=True)
    for stage in ("0-first", "1-second"):
        one, other = weights(whole / stage), weights(cut / stage)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert log(whole / stage) == log(cut / stage)


def test_a_signal_saves_ends_without_error_and_is_resumed(tmp_path: Path) -> None:
    def report(stage: str, progress: Progress) -> None:
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    results = run(tmp_path / "run", report)
    assert [r.interrupted for r in results] == [True]
    assert signal.getsignal(signal.SIGTERM) == before
    stage = tmp_path / "run" / "0-first"
    assert newest_checkpoint(stage) == stage / f"checkpoint-{results[0].steps}"
    assert not (stage / "result.json").exists()
    assert [r.interrupted for r in run(tmp_path / "run", quiet, resume=True)] == [False, False]


def test_a_cut_checkpoint_is_named_and_may_be_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="died"):
        run(tmp_path, die_at("first:5"))
    stage = tmp_path / "0-first"
    damaged = stage / "checkpoint-4" / "optimizer.pt"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(ModelError, match="checkpoint-4 cannot be read") as caught:
        run(tmp_path, quiet, resume=True)
    assert "\n" not in str(caught.value)
    shutil.rmtree(stage / "checkpoint-4")
    run(tmp_path, quiet, resume=True)
    assert (stage / "result.json").exists()


def small(**changes: Any) -> SFTConfig:
    return CONFIG.model_copy(update={"steps": 3, **changes})


def test_what_a_run_writes(tmp_path: Path) -> None:
    result = train_sft(tiny_model("Llama"), DATA, small(), output=tmp_path / "run", info=INFO)
    assert result.steps == 3 and not result.interrupted
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["config"]["tokens_per_batch"] == 150 and written["seed"] == 3
    assert {"python", "torch", "transformers"} <= written["versions"].keys()
    saved = load_checkpoint_info(tmp_path / "run" / "model")
    assert saved.prompt("1+1", "sequential") == "<bos>1+1[seq]"
    assert saved.training["steps"] == 3 and "torch" in saved.versions
    assert load_checkpoint_info(tmp_path / "run" / "checkpoint-2").dialect == "parason"
    end = json.loads((tmp_path / "run" / "result.json").read_text())
    assert end["steps"] == 3 and end["skipped"] == []
    assert "attn_implementation" not in (tmp_path / "run" / "model" / "config.json").read_text()
    from transformers import AutoModelForCausalLM

    again = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert again.config._attn_implementation == "sdpa"
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.parameters(), result.model.parameters(), strict=True)
    )


def test_a_run_is_not_overwritten_and_not_resumed_with_another_configuration(
    tmp_path: Path,
) -> None:
    model = tiny_model("Llama")
    train_sft(model, DATA, small(), output=tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        train_sft(model, DATA, small(), output=tmp_path)
    with pytest.raises(UsageError, match=r"learning_rate: 0\.003 → 0\.1"):
        train_sft(model, DATA, small(learning_rate=0.1), output=tmp_path, resume=True)
    forced = small(learning_rate=0.1, steps=4)
    assert train_sft(model, DATA, forced, output=tmp_path, resume=True, force=True).steps == 4


def test_training_learns_and_micro_batches_change_nothing() -> None:
    losses = []
    for micro in (1, 2, 4):
        model = tiny_model("Llama")
        seen: list[float] = []
        config = small(steps=12, micro_batches=micro, learning_rate=1e-2, row_tokens=60)
        train_sft(model, DATA, config, on_progress=lambda p, to=seen: to.append(p.loss))
        losses.append(seen)
    assert losses[0][-1] < losses[0][0] - 0.3
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], abs=2e-4)


def test_bad_samples_are_counted_and_do_not_stop_the_run(tmp_path: Path) -> None:
    data = [*DATA, Trajectory(id="broken")]
    result = train_sft(tiny_model("Llama"), data, small(steps=None), output=tmp_path)
    assert result.skipped == {17: "broken: no request sampled anything"}
    end = json.loads((tmp_path / "result.json").read_text())
    assert end["skipped"] == [{"index": 17, "reason": "broken: no request sampled anything"}]


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the loss is nan at step 1"):
        train_sft(
            tiny_model("Llama"), DATA, small(), output=tmp_path, weight=lambda t, r: float("nan")
        )
    assert not (tmp_path / "model").exists()


def test_data_that_ends_early_is_an_error() -> None:
    with pytest.raises(UsageError, match="the data ended after"):
        train_sft(tiny_model("Llama"), iter(DATA[:4]), small(steps=50))
    with pytest.raises(UsageError, match="no length"):
        train_sft(tiny_model("Llama"), iter(DATA), small(steps=None))


def test_gradient_checkpointing_and_generators(tmp_path: Path) -> None:
    models = []
    for on in (False, True):
        model = tiny_model("Qwen3")
        train_sft(model, (t for t in DATA * 3), small(gradient_checkpointing=on))
        models.append(model)
    for one, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_evaluation_is_logged_and_changes_nothing(tmp_path: Path) -> None:
    def evaluate(model: Any, step: int) -> dict[str, float]:
        assert not model.training
        return {"noise": float(torch.rand(()))}

    models = []
    for number, function in enumerate((None, evaluate)):
        model = tiny_model("Llama", attention_dropout=0.2)
        output = tmp_path / str(number)
        train_sft(model, DATA, small(eval_every=1), output=output, evaluate=function)
        models.append(model)
    for one, other in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(one, other)
    assert "noise" in (tmp_path / "1" / "log.jsonl").read_text()


def test_stages_train_one_model_and_finished_ones_are_loaded(tmp_path: Path) -> None:
    stages = [
        Stage("a", DATA, small()),
        Stage("b", DATA[:5], small(steps=2, schedule="constant"), keep_optimizer=True),
    ]
    model = tiny_model("Llama")
    results = run_stages(model, stages, tmp_path)
    assert [r.steps for r in results] == [3, 2]
    again = tiny_model("Llama")
    assert run_stages(again, stages, tmp_path, resume=True) == []
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_file_of_trajectories_trains(tmp_path: Path) -> None:
    write_records(tmp_path / "t.jsonl", DATA)
    source = TrajectoryFile(tmp_path / "t.jsonl")
    one, other = tiny_model("Llama"), tiny_model("Llama")
    train_sft(one, source, small(steps=None), output=tmp_path / "run")
    with (tmp_path / "t.jsonl").open("a") as handle:
        handle.write("{}\n")
    with pytest.raises(UsageError, match="data: "):
        changed = TrajectoryFile(tmp_path / "t.jsonl")
        train_sft(one, changed, small(steps=None), output=tmp_path / "run", resume=True)
    train_sft(other, DATA, small(steps=None))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
