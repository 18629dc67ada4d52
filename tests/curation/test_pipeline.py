"""The whole pipeline against the annotator of lab traces, which fails one request in five."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.dialects import get_dialect, parse
from anabranch.jsonl import dump_line, read_rows, write_records
from anabranch.lab.families import family_of
from anabranch.lab.teacher import KINDS, LINE_END, Teacher, in_thread, trace_rows

COUNT = 60
CONFIG = f"""
[steps]
line_end = '{LINE_END}'
[cut]
outside = 10
trim = ".!"
[render]
dialect = "parason:compact"
[check]
allow = ["near_duplicate"]
"""
Cli = Callable[..., Any]


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    with in_thread(Teacher(faults=0.2, seed=3)) as served:
        yield served


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "lab.toml").write_text(CONFIG)
    path = tmp_path / "traces.jsonl"
    write_records(path, trace_rows(5, KINDS, COUNT))
    return path


def arguments(source: Path, output: Path, url: str, *more: object) -> list[str]:
    config = source.with_name("lab.toml")
    given = ["curate", "run", source, "-o", output, "--config", config, "--url", url, *more]
    return [*map(str, given), "--model", "teacher"]


def result(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "rows.jsonl").read_bytes(), (folder / "kept.jsonl").read_bytes()


def test_traces_become_samples_and_the_counts_agree(
    source: Path, tmp_path: Path, teacher: Teacher, cli: Cli
) -> None:
    out = tmp_path / "run"
    done = cli(*arguments(source, out, teacher.url), code=None)
    assert teacher.served["right"] > 100
    assert all(teacher.served[kind] for kind in ("error", "busy", "half_json", "refusal"))
    rows = [row for _, row in read_rows(out / "rows.jsonl")]
    assert [row["id"] for row in rows] == [row["id"] for _, row in read_rows(source)]
    kept = [row for _, row in read_rows(out / "kept.jsonl")]
    assert len(kept) >= COUNT * 0.7
    table, total = re.split(r" in +(?=\d)", done.stdout, maxsplit=1)
    parts = [int(number) for number in re.findall(r" (\d+) *$", table, re.M)]
    assert sum(parts) == int(total.split()[0]) == COUNT
    for row in kept:
        document = parse(row["text"], get_dialect(row["dialect"]))
        assert document.well_formed and document.blocks
        assert family_of(row["problem"]).check(row["problem"], row["text"])
    # As the family's own parallel form: chains word for word.
    chains = [row for row in kept if row["family"] == "chains"] if "family" in kept[0] else kept
    same = sum(
        row["text"] == family_of(row["problem"]).solve(row["problem"], "parallel").text()
        for row in chains
        if row["id"].startswith("chains")
    )
    assert same == sum(row["id"].startswith("chains") for row in kept)


def test_killed_and_resumed_is_the_same(source: Path, tmp_path: Path, teacher: Teacher) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from anabranch.cli.app import main; main()"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        args = arguments(source, out, teacher.url, "--concurrency", 2)
        return subprocess.Popen([*program, *args], env=environment, stdout=subprocess.DEVNULL)

    whole = tmp_path / "whole"
    start(whole).wait(60)
    broken = tmp_path / "broken"
    rng = random.Random(8)
    for _ in range(3):
        # Killed after a number of answers, wherever the run then is.
        before, more = sum(teacher.served.values()), rng.randrange(5, 40)
        process = start(broken)
        while process.poll() is None and sum(teacher.served.values()) < before + more:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with (broken / "rows.jsonl").open("ab") as handle:
        handle.write(b'{"id": "torn')
    start(broken).wait(60)
    assert result(broken) == result(whole)


def test_shards_make_the_same_as_one_run(
    source: Path, tmp_path: Path, teacher: Teacher, cli: Cli
) -> None:
    cli(*arguments(source, tmp_path / "whole", teacher.url), code=None)
    parts = []
    for number in (1, 2, 3):
        out = tmp_path / f"part{number}"
        cli(*arguments(source, out, teacher.url, "--shard", f"{number}/3"), code=None)
        parts.append(out)
    cli("curate", "merge", parts[2], parts[0], parts[1], "-o", tmp_path / "merged")
    assert result(tmp_path / "merged") == result(tmp_path / "whole")
    said = cli("curate", "merge", parts[0], parts[1], "-o", tmp_path / "m", code=2).stderr
    assert "each shard is needed once; given: 1/3, 2/3" in said


def test_another_configuration_is_refused_and_forced(
    source: Path, tmp_path: Path, teacher: Teacher, cli: Cli
) -> None:
    out = tmp_path / "run"
    cli(*arguments(source, out, teacher.url), code=None)
    before, asked = result(out), sum(teacher.served.values())
    changed = arguments(source, out, teacher.url, "--set", "cut.outside=100000")
    said = cli(*changed, code=2).stderr
    assert "begun with other settings (stages)" in said
    assert result(out) == before
    cli(*changed, "--force", code=None)
    assert (out / "kept.jsonl").read_bytes() == b""
    # Steps and groups were there already.
    assert sum(teacher.served.values()) == asked


def test_stages_without_a_model_run_in_processes(source: Path, tmp_path: Path, cli: Cli) -> None:
    rows = [_cut_by_hand(row) for row in trace_rows(5, KINDS[:2], 150)]
    path = tmp_path / "rows.jsonl"
    write_records(path, rows)
    for jobs in (1, 2):
        cli(
            "curate", "run", path, "-o", tmp_path / str(jobs), "--stages", "cut,render,check",
            "--config", source.with_name("lab.toml"), "--jobs", jobs, "--set", "steps={}", code=2,
        )  # fmt: skip
        toml = tmp_path / "some.toml"
        toml.write_text(CONFIG[CONFIG.index("[cut]") :])
        cli(
            "curate", "run", path, "-o", tmp_path / str(jobs), "--stages", "cut,render,check",
            "--config", toml, "--jobs", jobs,
        )  # fmt: skip
    assert result(tmp_path / "1") == result(tmp_path / "2")
    assert len((tmp_path / "1" / "kept.jsonl").read_bytes().splitlines()) == 150


def _cut_by_hand(row: dict[str, Any]) -> dict[str, Any]:
    """The row as the stages before `cut` leave it."""
    thought, _, answer = row["text"].removeprefix("<think>").partition("</think>")
    lines = [line for line in re.split(LINE_END, thought) if line]
    ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]
    steps = [[str(n), n, n, line[0]] for n, line in enumerate(lines, 1)]
    free = [str(n) for n in range(1, len(lines))]
    data = {
        "steps": {"thought": thought, "answer": answer, "ends": ends, "steps": steps},
        "group": {"needs": {}, "groups": [{"steps": free, "kind": "subtask"}]},
    }
    return {**row, "data": data}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"id": "a", "problem": "p"', ""], "traces.jsonl:1: "),
        (['{"id": "a", "problem": "p"}', '{"id": "a", "problem": "q"}'], "2: field 'id': 'a' is"),
        (['{"id": "a"}'], "traces.jsonl:1: field 'problem'"),
        ([], "holds no row"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, cli: Cli, lines: list[str], said: str) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(lines))
    done = cli("curate", "run", path, "-o", tmp_path / "o", "--stages", "check", code=1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "cut"], "row 'chains-0': cut reads what steps makes; put it before cut"),
        (["--stages", "steps,sort"], "no stage 'sort'; known: sample, steps"),
        (["--stages", "check,check"], "a stage is there twice"),
        (["--stages", "steps"], "steps ask a model: give --url and --model"),
        (["--stages", "check", "--set", "check.allow=['leaks']"], "no finding is called 'leaks'"),
        (["--stages", "check", "--set", "check.alow=[]"], "field 'check.alow'"),
        (["--stages", "check", "--set", "cut.outside=1"], "settings of 'cut', which is not"),
        (["--stages", "check", "--shard", "3/2"], "write it like 2/8"),
        (["--url", "http://x", "--model", "m", "--budget-money", "1"], "needs --price"),
    ],
)
def test_bad_calls_are_named(source: Path, cli: Cli, arguments: list[str], said: str) -> None:
    out = source.with_name("out")
    assert said in cli("curate", "run", source, "-o", out, *arguments, code=2).stderr


def test_damage_in_the_middle_is_refused(source: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    call = ("curate", "run", source, "-o", out, "--stages", "check")
    cli(*call)
    lines = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join([lines[0], lines[1][:40], b"\n", *lines[2:]]))
    assert "rows.jsonl:2: " in cli(*call, code=1).stderr


def test_rows_without_an_answer_are_asked_for_again(
    source: Path, tmp_path: Path, teacher: Teacher, cli: Cli
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    cli(*arguments(source, whole, teacher.url), code=None)
    cli(*arguments(source, out, teacher.url), code=None)
    # As a run leaves them whose endpoint failed for some rows.
    lost = {"status": "unreachable", "reason": "unreachable", "detail": "x", "answer": ""}
    rows = [row for _, row in read_rows(out / "rows.jsonl")]
    for place in (3, 17, COUNT - 1):
        rows[place] |= {"status": {"steps": lost}, "data": {}}
    (out / "rows.jsonl").write_text("".join(dump_line(row) + "\n" for row in rows))
    (out / "answers.sqlite").unlink()
    before = sum(teacher.served.values())
    cli(*arguments(source, out, teacher.url), code=None)
    assert result(out) == result(whole)
    assert 3 <= sum(teacher.served.values()) - before < 40


def test_repeated_rows_are_dropped_and_a_target_ends_the_run(tmp_path: Path, cli: Cli) -> None:
    rows = [
        {"id": str(n), "problem": f"p{n // 2}", "text": f"caf\u00e9 {n // 2}"} for n in range(8)
    ]
    rows[1]["text"] = "cafe\u0301  0"
    path = tmp_path / "rows.jsonl"
    write_records(path, rows)
    out = tmp_path / "o"
    call = ("curate", "run", path, "-o", out, "--stages", "check", "--set", "check.survived=0")
    assert re.search(r"input +dropped +repeated +4", cli(*call).stdout)


def test_status_lists_the_yield_by_difficulty(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "o"
    path = tmp_path / "rows.jsonl"
    write_records(
        path,
        [{"id": str(n), "problem": f"{n}", "text": "x", "difficulty": n / 9} for n in range(10)],
    )
    cli("curate", "run", path, "-o", out, "--stages", "check")
    said = cli("curate", "status", out).stdout
    assert "difficulty 0–0.2: 0 of 2 kept (0.0%)" in said
    assert json.loads((out / "run.json").read_text())["stages"][0]["name"] == "check"
