"""Two processes, whole or sharded, learn what one does; the launcher's mistakes are errors."""

import json
import socket
from pathlib import Path

import pytest
import torch
from ranks_job import start, train
from safetensors.torch import load_file

from anabranch.errors import ModelError
from anabranch.training.arguments import check_launch


def rows(run: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    train(folder, 2)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("pair")
    assert [job.wait(timeout=250) for job in start(folder, port)] == [0, 0]
    return folder


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_does(pair: Path, single: Path, kind: str) -> None:
    run = pair / kind
    assert rows(run, "loss") == pytest.approx(rows(single, "loss"), abs=1e-5)
    assert len(rows(run, "loss")) == 20
    judged = [row["held_out_loss"] for row in rows(run, "evaluation")]  # type: ignore[index]
    alone = [row["held_out_loss"] for row in rows(single, "evaluation")]  # type: ignore[index]
    assert judged == pytest.approx(alone, abs=1e-5) and len(judged) == 2
    mine, theirs = (load_file(x / "model" / "model.safetensors") for x in (run, single))
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.allclose(mine[name], theirs[name], atol=1e-5), name
    shards = {p.name for p in (run / "checkpoint-20").iterdir()}
    assert ("optimizer.bin" in shards) == (kind == "fsdp")
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= shards


def test_processes_that_accelerate_does_not_see_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Seen:
        num_processes = 1

    class Trainer:
        accelerator = Seen()
        is_fsdp_enabled = False

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ModelError, match="2 processes were launched but accelerate sees 1"):
        check_launch(Trainer())
    Seen.num_processes = 2
    check_launch(Trainer())
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ModelError, match="FSDP was asked for"):
        check_launch(Trainer())
