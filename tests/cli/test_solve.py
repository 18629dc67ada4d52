"""`anabranch demo`, `solve`, `doctor` and `lab` with the bundled model."""

from __future__ import annotations

import json

import pytest

from anabranch.jsonl import read_records
from anabranch.lab.families import draw_distinct
from anabranch.lab.sizes import PUZZLE_SIZE
from anabranch.metrics import trajectory_metrics
from anabranch.records import Trajectory

pytest.importorskip("torch")


@pytest.fixture
def problem():
    return draw_distinct(21, "chains", (3, 5), 1)[0]


def test_solve_shows_answer_and_figures_and_saves(cli, problem, tmp_path):
    shown = cli("solve", problem.text, "--save", "t.jsonl").stdout
    done = next(read_records(tmp_path / "t.jsonl", Trajectory))
    figures = trajectory_metrics(done)
    assert f"{figures.total_tokens} in all, {figures.critical_path} on the" in shown
    assert done.problem.text == problem.text and len(done.blocks) == 1
    assert problem.check(done.text)


def test_modes_and_limits(cli, problem):
    line = json.loads(cli("solve", problem.text, "--mode", "sequential", "--json").stdout)
    assert line["blocks"] == [] and line["mode"] == "sequential"
    cut = cli("solve", problem.text, "--max-total", "30", "--json", code=1)
    assert json.loads(cut.stdout)["outcome"] == "truncated"
    kept = cli("solve", problem.text, "--max-total", "60", "--reserve", "10", "--json", code=None)
    assert json.loads(kept.stdout)["segments"][-1]["origin"] == "sampled"


def test_doctor_is_content(cli):
    shown = cli("doctor").stdout
    assert "bundled model" in shown and "one run: answered, 1 block," in shown


def test_the_demo_compares_both_ways(cli, tmp_path):
    done = cli("demo", "--problems", "2", "--save", "d.jsonl", "--picture", "p.svg")
    assert done.stdout.count("one line") >= 4 and "times shorter" in done.stdout
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    rows = list(read_records(tmp_path / "d.jsonl", Trajectory))
    assert len(rows) == 8 and [bool(row.blocks) for row in rows] == [False, True] * 4


def test_lab_problems_can_be_inspected(cli, fails):
    cli("lab", "problems", "puzzle", "-o", "p.jsonl", "--count", "7")
    found = json.loads(cli("inspect", "p.jsonl", "--json").stdout)
    assert found["dialect"] == "parason" and found["well_formed"] == 7
    assert found["branches_per_block"] == {"3": 7}
    assert "unknown family" in fails("lab", "problems", "knots", "-o", "k.jsonl")
    assert "not between" in fails("lab", "problems", "chains", "--size", "9", "-o", "k.jsonl")


def test_lab_results_writes_page_plot_and_figures(cli, tmp_path):
    cli("lab", "results", "-o", "r.md", "--problems", "6", "--timed", "2")
    page = (tmp_path / "r.md").read_text()
    assert "| k | right, one line" in page and "](r-limits.svg)" in page
    assert json.loads((tmp_path / "r.json").read_text())["problems"] == 6
    assert (tmp_path / "r-limits.svg").stat().st_size > 1000


def test_lab_training_runs_and_resumes(cli, fails, tmp_path):
    cli("lab", "train", "-o", "run", "--scale", "0.001")
    assert (tmp_path / "run/model/anabranch.json").is_file()
    assert "already holds a run" in fails("lab", "train", "-o", "run", "--scale", "0.001")
    cli("lab", "train", "-o", "run", "--scale", "0.001", "--resume")
    cli("solve", "1?2?3?6=8", "--local", "run/model", "--max-total", "20", code=None)


def test_held_out_problems_are_not_those_of_training(cli, tmp_path):
    cli("lab", "problems", "puzzle", "-o", "a.jsonl", "--size", "2", "--count", "50")
    cli("lab", "problems", "puzzle", "-o", "b.jsonl", "--size", "2", "--count", "50", "--train")
    texts = [
        {json.loads(line)["problem"] for line in (tmp_path / name).read_text().splitlines()}
        for name in ("a.jsonl", "b.jsonl")
    ]
    assert not texts[0] & texts[1] and PUZZLE_SIZE == (3,)
