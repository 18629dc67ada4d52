"""Rounds of self-training: what they leave, and that a killed run ends as an unbroken one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from self_training_job import CONFIG, PROBLEMS, run

from anabranch.errors import EngineError, UsageError
from anabranch.jsonl import read_records, read_rows
from anabranch.lab.bundled import bundled_model
from anabranch.lab.self_training import lab_grade
from anabranch.records import Trajectory
from anabranch.training.cards import DataCard
from anabranch.training.self_training import self_train
from anabranch.training.self_training_config import Mix
from anabranch.training.self_training_engines import served

JOB = Path(__file__).with_name("self_training_job.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run without a break."""
    output = tmp_path_factory.mktemp("whole")
    return output, run(output, lambda text: None)


def test_a_round_leaves_its_files_and_a_card_that_adds_up(whole):
    output, result = whole
    assert [path.parent.parent.name for path in result.models] == ["round-1", "round-2"]
    for number in (1, 2):
        folder = output / f"round-{number}"
        card = DataCard.model_validate_json((folder / "card.json").read_text())
        counts = card.families["all"]
        dropped = [row for _, row in read_rows(folder / "dropped.jsonl")]
        kept = list(read_records(folder / "kept.jsonl", Trajectory))
        assert counts.decoded == 2 * 5 == len(kept) + len(dropped)
        assert counts.kept == len(kept) == card.parts[0].taken
        assert sum(card.dropped.values()) == len(dropped)
        assert all(one.verdict.correct and one.blocks and one.seconds is None for one in kept)
        assert card.problems["excluded"] == 1 and card.problems["origins"] == {"lab": 5}
        assert card.problems["pool"] == 10
        rows = sum(part.taken for part in card.parts)
        assert rows == len(list(read_rows(folder / "data.jsonl")))
        page = (folder / "card.md").read_text()
        assert f"{counts.kept} of {counts.decoded} answers were kept" in page
    assert [part.name for part in card.parts] == ["round 2", "round-1"]


def test_answers_of_an_excluded_problem_are_nowhere(whole):
    output, _ = whole
    for path in output.glob("round-*/decoded/*.jsonl"):
        assert all(t.problem.problem != PROBLEMS[0].problem for t in read_records(path, Trajectory))


def test_killed_while_decoding_and_while_training(whole, tmp_path):
    for moment in ("decoded 1/2", "round 2 step 3"):
        done = subprocess.run([sys.executable, JOB, tmp_path, moment], timeout=110, check=False)
        assert done.returncode == -signal.SIGKILL
    run(tmp_path, lambda text: None, resume=True)
    for name in ("round-1/data.jsonl", "round-2/data.jsonl", "round-2/dropped.jsonl"):
        assert (tmp_path / name).read_bytes() == (whole[0] / name).read_bytes(), name
    for name in ("round-1", "round-2"):
        ours, theirs = (
            load_file(folder / name / "train/model/model.safetensors")
            for folder in (tmp_path, whole[0])
        )
        assert all(ours[key].equal(theirs[key]) for key in theirs)


def test_sigterm_ends_a_run_in_order(whole, tmp_path):
    def stop(text):
        if text.startswith(("decoded 1/2", "round 1 step 2")):
            os.kill(os.getpid(), signal.SIGTERM)

    assert run(tmp_path, stop).interrupted
    assert not (tmp_path / "round-1/decoded/shard-00001.jsonl").exists()
    stopped = run(tmp_path, stop, resume=True)
    assert stopped.interrupted and stopped.models == () and len(stopped.cards) == 1
    assert not run(tmp_path, lambda text: None, resume=True).interrupted
    data = "round-2/data.jsonl"
    assert (tmp_path / data).read_bytes() == (whole[0] / data).read_bytes()


def test_a_finished_run_is_not_done_again_and_not_overwritten(whole):
    output, result = whole
    told = []
    assert run(output, told.append, resume=True) == result and told == []
    with pytest.raises(UsageError, match="already holds a run"):
        run(output, told.append)


def test_more_rounds_may_be_added_and_nothing_else_changed(whole):
    output, _ = whole
    other = CONFIG.model_copy(update={"seed": 9})
    with pytest.raises(UsageError, match="seed"):
        self_train(
            bundled_model(), PROBLEMS, lab_grade, other, output, exclude=PROBLEMS[:1], resume=True
        )


def test_a_share_of_earlier_rows(whole, tmp_path):
    rows = whole[0] / "round-1" / "kept.jsonl"
    config = CONFIG.model_copy(
        update={
            "rounds": 1,
            "mix": Mix(earlier_share=0.25),
            "train": CONFIG.train.model_copy(update={"steps": 1}),
        }
    )
    self_train(
        bundled_model(), PROBLEMS, lab_grade, config, tmp_path, earlier=[rows], note=lambda _: None
    )
    card = json.loads((tmp_path / "round-1/card.json").read_text())
    new, old = card["parts"]
    assert old["rows"] == len(list(read_rows(rows))) and old["sha256"]
    assert old["taken"] == min(old["rows"], round(new["taken"] / 3))


def test_a_round_without_anything_new_ends_the_run(whole, tmp_path):
    output, _ = whole
    config = CONFIG.model_copy(
        update={"decode": CONFIG.decode.model_copy(update={"temperature": 0.0, "samples": 1})}
    )
    known = [output / "round-1/kept.jsonl", output / "round-2/kept.jsonl"]
    ids = {t.problem.id for path in known for t in read_records(path, Trajectory)}
    problems = [p for p in PROBLEMS if p.id in ids][:2]
    told = []
    result = self_train(
        bundled_model(), problems, lab_grade, config, tmp_path, earlier=known, note=told.append
    )
    assert result.models == () and not result.interrupted and "known from before" in told[-1]


def test_nothing_kept_is_one_clear_error(tmp_path):
    config = CONFIG.model_copy(
        update={"keep": CONFIG.keep.model_copy(update={"min_acceleration": 0.99})}
    )
    with pytest.raises(UsageError, match=r"keeps none of 2 answers \(not_parallel 2\)"):
        self_train(bundled_model(), PROBLEMS[:1], lab_grade, config, tmp_path, note=lambda _: None)


def test_problems_that_cannot_be_used(tmp_path):
    twice = [PROBLEMS[0], PROBLEMS[0]]
    with pytest.raises(UsageError, match="two problems have the id 'chains-0'"):
        self_train(bundled_model(), twice, lab_grade, CONFIG, tmp_path)
    with pytest.raises(UsageError, match="no problem"):
        self_train(bundled_model(), PROBLEMS[:1], lab_grade, CONFIG, tmp_path, exclude=PROBLEMS[:1])


def test_a_server_that_dies_or_cannot_be_started(tmp_path):
    def attempt(command):
        self_train(
            bundled_model(),
            PROBLEMS,
            lab_grade,
            CONFIG,
            tmp_path / "run",
            open_engine=served(command, log=tmp_path / "engine.log"),
            resume=True,
            note=lambda _: None,
        )

    with pytest.raises(EngineError, match=r"ended with 3 .*engine\.log"):
        attempt(f"{sys.executable} -c 'print(7 * 6); exit(3)' {{port}} {{model}}")
    assert (tmp_path / "engine.log").read_text() == "42\n"
    with pytest.raises(UsageError, match="cannot be started"):
        attempt("/nowhere/server {model} {port}")
    with pytest.raises(UsageError, match=r"needs \{port\}"):
        attempt("server {model}")
