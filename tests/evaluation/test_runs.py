"""Runs of a suite: resumed to the same, refused when they are another, reported on a page."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.evaluation.page import front
from anabranch.evaluation.published import RESULTS
from anabranch.evaluation.runs import make_arms
from anabranch.evaluation.suites import suite_names
from anabranch.jsonl import read_rows, write_records
from anabranch.records import Limits

Cli = Callable[..., Any]
PROGRAM = [sys.executable, "-c", "from anabranch.cli.app import main; main()"]


@pytest.fixture
def problems(tmp_path: Path, cli: Cli) -> Path:
    path = tmp_path / "problems.jsonl"
    cli("lab", "problems", "chains", "--count", 6, "--size", "2,5", "--output", path)
    return path


def verdicts(folder: Path, arm: str) -> list[dict[str, Any]]:
    """What must be the same however often a run was stopped: not times, nor the last bits of
    log-probs, which depend on what is in a batch."""
    rows = [row for _, row in read_rows(folder / f"{arm}.graded.jsonl")]
    found = [{k: row[k] for k in ("id", "outcome", "verdict")} for row in rows]
    for one, row in zip(found, rows, strict=True):
        one["ids"] = [segment["ids"] for segment in row["segments"]]
    return found


def test_arms_are_the_mode_its_baseline_and_limited_runs() -> None:
    arms = make_arms("parallel", Limits(), paths=[80])
    assert [arm.name for arm in arms] == [
        "parallel",
        "sequential",
        "parallel-80-stop",
        "parallel-80-answer",
        "sequential-80-stop",
        "sequential-80-answer",
    ]
    assert (arms[3].limits.max_path_tokens, arms[3].limits.answer_reserve) == (80, 10)
    assert arms[2].limits.on_exhausted == "stop"
    assert len(make_arms("sequential", Limits())) == 1


def test_a_run_is_graded_and_reported(problems: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    done = cli("evaluate", problems, "-o", out, "-k", 2, "--temperature", 0.5, "--path-limit", 60)
    assert "| mean@2 |" in done.stdout
    rows = verdicts(out, "parallel")
    assert [row["id"] for row in rows] == [f"chains-{n}#{k}" for n in range(6) for k in range(2)]
    assert sum(row["verdict"]["status"] == "correct" for row in rows) == 12
    config = json.loads((out / "run.json").read_text())
    assert config["settings"]["samples"] == 2 and len(config["version"]) == 16
    page = (out / "report.html").read_text()
    for words in (
        "Accuracy against latency",
        "Speed-up against the sequential form",
        "By difficulty",
    ):
        assert words in page
    assert "://" not in page.replace("http://www.w3.org", "")
    assert (out / "report-parallel.html").exists()


def test_a_run_that_never_forks_is_warned_of(problems: Path, tmp_path: Path, cli: Cli) -> None:
    # zhengkid/Parallel-R1#11: a parallel checkpoint under another prompt answers in a line.
    out = tmp_path / "run"
    done = cli("evaluate", problems, "-o", out, "--mode", "sequential", "--limit", 2)
    assert "no answer has a block" not in done.stderr
    lines = out / "lines.graded.jsonl"
    lines.write_bytes((out / "sequential.graded.jsonl").read_bytes())
    page = tmp_path / "page.html"
    said = cli("report", lines, "--html", page)
    assert "lines: no answer has a block" in said.stderr
    assert "Warning: lines" in page.read_text()
    assert "| parallel ratio | 0 (0–0) |" in said.stdout


def test_killed_and_resumed_is_the_same(problems: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: Path) -> subprocess.Popen[bytes]:
        call = ["evaluate", problems, "-o", out, "-k", "2", "--temperature", "0.8"]
        call += ["--concurrency", "2"]
        return subprocess.Popen(
            [*PROGRAM, *map(str, call)], env=environment, stdout=subprocess.DEVNULL
        )

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole).wait(100) == 0
    process = start(broken)
    answers = broken / "parallel.jsonl"
    while process.poll() is None and not (answers.exists() and answers.stat().st_size > 4000):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    with answers.open("ab") as handle:
        handle.write(b'{"id": "torn')
    assert start(broken).wait(100) == 0
    for arm in ("parallel", "sequential"):
        assert verdicts(broken, arm) == verdicts(whole, arm)


def test_a_budget_ends_the_run_and_a_larger_one_goes_on(
    problems: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "run"
    call = ("evaluate", problems, "-o", out, "--concurrency", 1, "--no-baseline")
    said = cli(*call, "--budget", 100, code=1).stderr
    assert "parallel: 1 of 6 answers" in said and "tokens of 100 are spent" in said
    cli(*call, "--budget", 100_000)
    assert len(verdicts(out, "parallel")) == 6


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-k", 2], "holds another run (samples differ)"),
        (["--limit", 3], "holds another run (problems, version differ)"),
    ],
)
def test_another_run_is_refused(
    problems: Path, tmp_path: Path, cli: Cli, more: list[Any], said: str
) -> None:
    out = tmp_path / "run"
    cli("evaluate", problems, "-o", out, "--no-baseline")
    assert said in cli("evaluate", problems, "-o", out, "--no-baseline", *more, code=2).stderr


def test_a_folder_of_another_format_is_refused(problems: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.json").write_text('{"format": 99}')
    assert "written in format 99, this is 1" in cli("evaluate", problems, "-o", out, code=2).stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"id": "a", "problem": "p", "answer": "1"}] * 2, "ids must be unique"),
        ([{"id": "a", "problem": "p"}], "field 'answer'"),
        ([{"id": "a", "frage": "p", "answer": "1"}], "field 'problem'"),
        ([{"id": "a", "problem": "p", "answer": "\\frac{1}{"}], "golds cannot be read"),
    ],
)
def test_bad_suites_are_named(
    tmp_path: Path, cli: Cli, rows: list[dict[str, str]], said: str
) -> None:
    path = tmp_path / "suite.jsonl"
    write_records(path, rows)
    assert said in cli("evaluate", path, "-o", tmp_path / "o", code=None).stderr
    assert "known: aime24" in cli("evaluate", "nothing", "-o", tmp_path / "o", code=2).stderr


def test_the_front_has_what_nothing_beats() -> None:
    points = {"a": (10.0, 0.5), "b": (20.0, 0.9), "c": (20.0, 0.8), "d": (30.0, 0.9)}
    assert front(points) == ["a", "b"]
    assert front({"a": (1.0, 0.5), "b": (1.0, 0.5)}) == ["a", "b"]


def test_published_results_are_of_known_suites() -> None:
    assert set(RESULTS) <= set(suite_names())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_barriers(
    browser: Any, problems: Path, tmp_path: Path, cli: Cli, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    out = tmp_path / "run"
    # In a process of its own: the browser has this one's event loop.
    call = ["evaluate", problems, "-o", out, "--path-limit", "30"]
    subprocess.run([*PROGRAM, *map(str, call)], check=True, capture_output=True, timeout=100)
    page = browser.new_page(color_scheme=scheme)
    page.goto((out / "report.html").as_uri())
    assert page.locator("svg").count() >= 4
    found = axe.Axe().run(page)
    page.close()
    assert found.violations_count == 0, found.generate_report()
    graded = sorted(out.glob("*.graded.jsonl"))
    cli("report", *graded, "--html", tmp_path / "again.html", "--suite", "aime24")
    assert "Published, not measured here" in (tmp_path / "again.html").read_text()
