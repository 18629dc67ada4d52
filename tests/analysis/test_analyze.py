"""The command: on lab traces by the classifier, by a judge behind HTTP, and on parallel ones."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.analysis.judge import judge
from anabranch.jsonl import read_rows, write_records
from anabranch.lab.families import draw_distinct
from anabranch.lab.teacher import Teacher, in_thread, trace_rows

Cli = Callable[..., Any]


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    with in_thread(Teacher(faults=0.1, seed=2)) as served:
        yield served


def lines(text: str) -> str:
    """A chain trace with a line for each chain."""
    return text.replace(".", ".\n").replace("!", "!\n")


def test_a_judge_sees_chains_as_subtasks(tmp_path: Path, teacher: Teacher, cli: Cli) -> None:
    rows = trace_rows(3, [("chains", (3, 5)), ("chains", (4, 5))], 12)
    path = tmp_path / "t.jsonl"
    write_records(path, [{**row, "text": lines(row["text"])} for row in rows])
    call = (
        "analyze", path, "--url", teacher.url, "--model", "teacher", "--json",
        "--cache", tmp_path / "a.sqlite", "--write-labels", tmp_path / "judge.jsonl",
    )  # fmt: skip
    found = json.loads(cli(*call).stdout)["files"]["t.jsonl"]
    assert found["by_steps"]["subtask"][0] == pytest.approx(3.5 / 4.5, abs=0.01)
    assert found["by_steps"]["trial"][0] == 0
    assert found["ideal_gain"]["unlimited"][0] > found["ideal_gain"]["2"][0] > 1.3
    asked = sum(teacher.served.values())
    cli(*call)
    assert sum(teacher.served.values()) == asked
    cli("analyze", path, "--write-labels", tmp_path / "rules.jsonl")
    said = cli("agreement", tmp_path / "judge.jsonl", tmp_path / "judge.jsonl").stdout
    assert "equal 100.0%" in said and "kappa 1.00" in said
    assert (
        "places: equal"
        in cli("agreement", tmp_path / "judge.jsonl", tmp_path / "rules.jsonl").stdout
    )


def test_one_line_needs_no_judge() -> None:
    import asyncio

    async def main() -> tuple[int, int]:
        nobody: Any = None
        return len((await judge("p", "", nobody)).steps), len(
            (await judge("p", "one", nobody)).steps
        )

    assert asyncio.run(main()) == (0, 1)


def test_parallel_traces_by_difficulty_and_as_a_page(tmp_path: Path, cli: Cli) -> None:
    rows = []
    for size in ((2, 5), (4, 5)):
        for problem in draw_distinct(1, "chains", size, 8):
            text = problem.solve("parallel").text()
            rows.append({"id": problem.text, "problem": problem.text, "text": text,
                         "difficulty": f"k = {size[0]}"})  # fmt: skip
    path = tmp_path / "p.jsonl"
    write_records(path, rows)
    page = tmp_path / "p.html"
    done = cli("analyze", path, "--dialect", "parason:compact", "--json", "--html", page)
    found = json.loads(done.stdout)["files"]["p.jsonl"]["by_difficulty"]
    assert list(found) == ["k = 2", "k = 4"]
    gains = [found[k]["ideal_gain"]["unlimited"][0] for k in found]
    assert 1.3 < gains[0] < gains[1] < 3.5
    text = page.read_text()
    assert "traces themselves give" in text and "k = 4" in text
    assert "://" not in text.replace("http://www.w3.org", "")


def test_real_traces_state_the_agreement_beside_the_shares(
    shared_data: Path, cli: Cli, tmp_path: Path
) -> None:
    files = [
        shared_data / "traces" / name
        for name in ("sky_t1_reflection_amc23.jsonl", "r1_distill_math.jsonl")
    ]
    labels = Path(__file__).parent / "steps.labels.jsonl"
    done = cli("analyze", *files, "--labels", labels, "--html", tmp_path / "a.html")
    for words in ("OR: trial", "ideal gain, 8 branches at once", "Cohen's", "held out"):
        assert words in done.stdout
    assert "labelled by hand" in (tmp_path / "a.html").read_text()
    rows = [row for _, row in read_rows(files[1])]
    write_records(tmp_path / "r1_distill_math.jsonl", [{**row, "text": "x"} for row in rows])
    said = cli("analyze", tmp_path / "r1_distill_math.jsonl", "--labels", labels, code=1).stderr
    assert "other traces?" in said


@pytest.mark.parametrize(
    ("rows", "more", "said", "code"),
    [
        ([], [], "holds no trace", 1),
        ([{"id": "a", "text": ""}], [], "no trace has a step", 1),
        ([{"id": "a"}], [], "field 'text'", 1),
        ([{"id": "a", "text": "x"}], ["--url", "http://x"], "--url needs --model", 2),
    ],
)
def test_bad_calls_are_named(
    tmp_path: Path, cli: Cli, rows: list[dict[str, str]], more: list[str], said: str, code: int
) -> None:
    path = tmp_path / "t.jsonl"
    write_records(path, rows)
    assert said in cli("analyze", path, *more, code=code).stderr
