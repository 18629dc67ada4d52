"""`anabranch grade`."""

from __future__ import annotations

import json

from anabranch.jsonl import read_rows, write_records
from anabranch.records import Problem, Request, Segment, Trajectory


def rows(path):
    return [row for _, row in read_rows(path)]


def test_verdicts_are_written_to_each_row(cli, tmp_path):
    given = [
        {"id": 1, "gold": "1/3", "prediction": r"so \boxed{\frac{1}{3}}", "kept": [1]},
        {"id": 2, "gold": "72", "prediction": "The total is 73 clips, altogether."},
        {"id": 3, "gold": "5", "prediction": r"\boxed{\frac{1}{2}"},
        {"id": 4, "gold": "5", "prediction": "<think>hm", "finish_reason": "length"},
        {"id": 5, "gold": 5, "prediction": 5},
    ]
    write_records(tmp_path / "in.jsonl", given)
    said = cli("grade", "in.jsonl", "-o", "out.jsonl").stdout
    assert said.startswith("5 rows written to out.jsonl: correct 2")
    written = rows(tmp_path / "out.jsonl")
    expected = ["correct", "wrong", "unparsed", "truncated", "correct"]
    assert [row["verdict"] for row in written] == expected
    assert all(row["reason"] for row in written) and written[0]["kept"] == [1]


def test_trajectories_get_their_verdict(cli, tmp_path):
    trajectory = Trajectory(
        problem=Problem(id="p", problem="1+1", answer="2"),
        segments=[Segment(origin="prompt", text="9"), Segment(origin="sampled", text="It is 2.")],
        requests=[Request(kind="main", context=(0,), output=1)],
        final=(0, 1),
    )
    write_records(tmp_path / "in.jsonl", [trajectory])
    cli("grade", "in.jsonl", "-o", "out.jsonl")
    (row,) = rows(tmp_path / "out.jsonl")
    assert Trajectory.model_validate(row).verdict.correct


def test_countdown_rows(cli, tmp_path):
    row = {"gold": "23", "prediction": "93+30-100", "nums": [30, 100, 93], "target": 23}
    write_records(tmp_path / "in.jsonl", [row])
    cli("grade", "in.jsonl", "-o", "out.jsonl", "--checker", "countdown")
    assert rows(tmp_path / "out.jsonl")[0]["verdict"] == "correct"


def test_bad_rows_are_named_by_line_and_leave_no_file(cli, fails, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"gold":"1","prediction":"1"}\n{"gold":"1"}\n{broken\n')
    said = fails("grade", "in.jsonl", "-o", "out.jsonl")
    assert "in.jsonl:2" in said and "prediction" in said
    assert not (tmp_path / "out.jsonl").exists()
    done = cli("grade", "in.jsonl", "-o", "out.jsonl", "--skip-bad-rows")
    assert "in.jsonl:2" in done.stderr and "in.jsonl:3" in done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["verdict"] == "correct"


def test_bad_calls(fails, tmp_path):
    (tmp_path / "in.jsonl").write_text("\n")
    assert "overwrite" in fails("grade", "in.jsonl", "-o", "in.jsonl")
    assert "no rows" in fails("grade", "in.jsonl", "-o", "out.jsonl")
    assert "unknown dialect" in fails("grade", "in.jsonl", "-o", "out.jsonl", "--dialect", "x")
