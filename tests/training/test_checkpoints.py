"""Checkpoints that are damaged, and disks that are full: named, and nothing before them is lost."""

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sft_job import CONFIG, DATA, INFO
from tree_cases import tiny_model

from anabranch.errors import ModelError
from anabranch.training.runs import damage, newest_checkpoint
from anabranch.training.sft import train_sft
from anabranch.training.trainer import Progress

RUN = CONFIG.model_copy(update={"steps": 6, "save_every": 2, "micro_batches": 1})


def stop_at(step: int) -> Any:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise RuntimeError("died")

    return report


def train(output: Path, **options: Any) -> Any:
    return train_sft(tiny_model("Llama"), DATA, RUN, output=output, info=INFO, **options)


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("died")
    with pytest.raises(RuntimeError, match="died"):
        train(folder, on_progress=stop_at(5))
    return folder


def copied(died: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(died, tmp_path / "run"))


@pytest.mark.parametrize("name", ["model.safetensors", "rng_state.pth", "anabranch.json"])
def test_a_changed_byte_is_found_and_the_one_before_is_used_on_request(
    died: Path, tmp_path: Path, name: str
) -> None:
    run = copied(died, tmp_path)
    newest = run / "checkpoint-4"
    assert newest_checkpoint(run) == newest and damage(newest) is None
    data = bytearray((newest / name).read_bytes())
    data[len(data) // 2] ^= 1
    (newest / name).write_bytes(data)
    with pytest.raises(ModelError, match=f"checkpoint-4 cannot be read .{name} is not") as caught:
        train(run, resume=True)
    assert "the one before, checkpoint-2" in str(caught.value)


def test_the_one_before_leads_to_the_same_weights(died: Path, tmp_path: Path) -> None:
    run = copied(died, tmp_path)
    (run / "checkpoint-4" / "optimizer.pt").unlink()
    found = train(run, resume=True, fallback=True)
    whole = train(tmp_path / "whole")
    assert found.steps == whole.steps == 6
    assert all(
        torch.equal(a, b)
        for a, b in zip(found.model.parameters(), whole.model.parameters(), strict=True)
    )
    assert (run / "damaged-checkpoint-4" / "model.safetensors").exists(), "nothing is thrown away"


def test_when_all_are_damaged_that_is_said(died: Path, tmp_path: Path) -> None:
    run = copied(died, tmp_path)
    for number in (2, 4):
        (run / f"checkpoint-{number}" / "scheduler.pt").unlink()
    with pytest.raises(ModelError, match="and so are all before"):
        train(run, resume=True, fallback=True)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file can grow beyond a size: writing fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    died: Path, tmp_path: Path
) -> None:
    run = copied(died, tmp_path)
    weights = (run / "checkpoint-4" / "model.safetensors").stat().st_size
    with (
        files_up_to(weights // 2),
        pytest.raises(ModelError, match=r"checkpoint-6 could not be written .*make room") as caught,
    ):
        train(run, resume=True)
    assert "\n" not in str(caught.value)
    # What could not be finished takes no room, and what was whole before still is.
    assert not (run / "checkpoint-6").exists()
    assert newest_checkpoint(run) == run / "checkpoint-4"
    assert train(run, resume=True).steps == 6
    rows = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4, 5, 6]


def test_a_full_disk_at_the_end_leaves_no_half_model(tmp_path: Path) -> None:
    config = RUN.model_copy(update={"save_every": None, "steps": 1})
    with (
        files_up_to(5000),
        pytest.raises(ModelError, match="model could not be written"),
    ):
        train_sft(tiny_model("Llama"), DATA, config, output=tmp_path / "run", info=INFO)
    assert not (tmp_path / "run" / "model").exists()
