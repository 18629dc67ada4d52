"""Reports and comparisons of graded files."""

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.jsonl import write_records
from anabranch.records import Problem, Request, Segment, Trajectory, Verdict


def run_file(path: Path, right: list[bool], tokens: int = 4) -> Path:
    write_records(
        path,
        [
            Trajectory(
                id=f"p{n // 2}#{n % 2}",
                problem=Problem(id=f"p{n // 2}", problem="q"),
                segments=[Segment(origin="sampled", ids=(1,) * tokens, text="x")],
                requests=[Request(kind="main", context=(), output=0)],
                final=(0,),
                verdict=Verdict(status="correct" if good else "wrong", answer=str(good)),
            )
            for n, good in enumerate(right)
        ],
    )
    return path


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    good = run_file(tmp_path / "good.jsonl", [True, True, True, False] * 10)
    return good, run_file(tmp_path / "bad.jsonl", [True, False, False, False] * 10, tokens=8)


def test_a_report_has_every_measure_with_its_interval(cli: Any, two: Any, tmp_path: Path) -> None:
    said = cli("report", *two).stdout
    for row in ("mean@2", "pass@2", "maj@2", "critical_path", "total / path", "format"):
        assert f"| {row} |" in said
    assert "20 × 2" in said and "0.75 (" in said
    cli("report", *two, "-o", tmp_path / "report.md")
    assert "![" in (tmp_path / "report.md").read_text() and (tmp_path / "report.svg").is_file()
    found = json.loads(cli("report", two[0], "--json").stdout)["good"]
    assert found["mean@2"]["value"] == 0.75 and found["curve"][-1]["value"] == 0.75


def test_a_worse_run_fails(cli: Any, fails: Any, two: Any) -> None:
    assert "difference 0" in cli("compare", two[0], two[0]).stdout
    done = cli("compare", *two, code=1)
    assert "accuracy fell by 0.5" in done.stderr and "grew by 100.0%" in done.stderr
    assert "accuracy: 0.75 → 0.25" in done.stdout
    cli("compare", *two, "--max-drop", 0.6, "--max-slower", 2)
    cli("compare", *reversed(two))


def test_what_cannot_be_reported(cli: Any, fails: Any, two: Any, tmp_path: Path) -> None:
    assert "named twice" in fails("report", two[0], two[0])
    other = run_file(tmp_path / "other.jsonl", [True] * 2)
    assert "different problems" in fails("compare", two[0], other)
    ungraded = tmp_path / "ungraded.jsonl"
    ungraded.write_text(two[0].read_text().replace('"verdict":{', '"was":{'))
    assert "anabranch grade" in fails("report", ungraded)
    (tmp_path / "empty.jsonl").write_text("")
    assert "no trajectory" in fails("report", tmp_path / "empty.jsonl")
