"""The command: on lab traces by the classifier, by a judge behind HTTP, and on parallel ones."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.analysis.judge import judge
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.jsonl import read_rows, write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import reference_trajectory
from anabranch.lab.families import draw_distinct
from anabranch.lab.teacher import Teacher, in_thread, trace_rows

Cli = Callable[..., Any]


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    with in_thread(Teacher(faults=0.1, seed=2)) as served:
        yield served


#: Lab traces have no newlines: a line is a chain.
LINE_END = r"(?<=\.)|(?<=\d!)"


def test_a_judge_sees_chains_as_subtasks(tmp_path: Path, teacher: Teacher, cli: Cli) -> None:
    rows = trace_rows(3, [("chains", (3, 5)), ("chains", (4, 5))], 12)
    path = tmp_path / "t.jsonl"
    write_records(path, rows)
    call = (
        "analyze", path, "--url", teacher.url, "--model", "teacher", "--json",
        "--line-end", LINE_END, "--cache", tmp_path / "a.sqlite",
        "--write-labels", tmp_path / "judge.jsonl",
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
    drawn = labels.with_name("drawn.labels.jsonl")
    done = cli(
        "analyze", *files, "--labels", labels, "--labels", drawn, "--html", tmp_path / "a.html"
    )
    for words in ("OR: trial", "ideal gain, 8 branches at once", "Cohen's", "held out", "needs"):
        assert words in done.stdout
    assert "unclosed thought: 5" in done.stdout
    assert "labelled by hand" in (tmp_path / "a.html").read_text()
    rows = [row for _, row in read_rows(files[1])]
    write_records(tmp_path / "r1_distill_math.jsonl", [{**row, "text": "x"} for row in rows])
    said = cli("analyze", tmp_path / "r1_distill_math.jsonl", "--labels", labels, code=1).stderr
    assert "other traces?" in said


PARALLEL = (
    "We add.<Parallel><Path>\n\n20 + 20</Path>\n\n<Path>10 + 30 is as much</Path></Parallel>"
    "<Summary>Both are 40.</Summary> So 40."
)


def test_traces_that_look_parallel_are_not_taken_for_sequential(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "p.jsonl"
    write_records(
        path,
        [
            {"id": "a", "text": PARALLEL},
            {"id": "b", "text": "<think>One.\n\nWait, two.</think>2"},
            {"id": "c", "text": PARALLEL.replace("</Summary>", "")},
        ],
    )
    done = cli("analyze", path, "--json")
    found = json.loads(done.stdout)
    assert found["annotator"] == "offline classifier"
    of_file = found["files"]["p.jsonl"]
    assert (of_file["traces"], of_file["parallel_form"]) == (3, 2)
    assert of_file["faults"] == {"malformed": 1}
    assert "2 are in parallel form" in " ".join(cli("analyze", path).stdout.split())
    assert json.loads(cli("analyze", path, "--json", "--dialect", "parallel-r1").stdout)[
        "annotator"
    ] == ("parallel form")


def test_trajectories_are_read_in_their_own_dialects(tmp_path: Path, cli: Cli) -> None:
    tokenizer = load_tokenizer(bundled_model())
    problems = draw_distinct(2, "chains", (3, 5), 2)
    write_records(
        tmp_path / "t.jsonl",
        [
            reference_trajectory(problem, form, tokenizer)
            for problem, form in zip(problems, ("parallel", "sequential"), strict=True)
        ],
    )
    found = json.loads(cli("analyze", tmp_path / "t.jsonl", "--json").stdout)["files"]["t.jsonl"]
    assert (found["traces"], found["parallel_form"]) == (2, 1)
    call = ("analyze", tmp_path / "t.jsonl", "--json", "--tokenizer", bundled_model())
    counted = json.loads(cli(*call).stdout)
    assert "tokenizer in" in counted["unit"]
    # A character is about a token of the lab's tokenizer, not a quarter of one.
    assert counted["files"]["t.jsonl"]["tokens"][0] > 2 * found["tokens"][0]


def test_files_of_one_name_stay_apart(tmp_path: Path, cli: Cli, fails: Any) -> None:
    paths = [tmp_path / folder / "t.jsonl" for folder in "ab"]
    for path, words in zip(paths, ("One.", "One.\n\nWait, two."), strict=True):
        path.parent.mkdir()
        write_records(path, [{"id": "x", "text": words}] * 2)
    found = json.loads(cli("analyze", *paths, "--json").stdout)["files"]
    assert [of["by_steps"]["trial"][0] for of in found.values()] == [0, 0.5]
    assert list(found) == list(map(str, paths))
    assert "named twice" in fails("analyze", paths[0], paths[0])
    assert "unique ids" in fails("analyze", paths[0], "--write-labels", tmp_path / "l.jsonl")


def test_odd_rows_are_counted_and_bad_ones_named(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "t.jsonl"
    long = "<think>" + "Wait, no. " * 16_700 + "</think>1"
    rows = [
        {"id": "two", "text": "<think>one</think>two<think>three</think>4"},
        {"id": "open", "text": "<think>one\n\nWait"},
        {"id": "inside", "text": "<think>So \\boxed{4}.</think>"},
        {"id": "foreign", "text": "Zuerst berechnen wir die Summe der beiden Zahlen. " * 5},
        {"id": "bracket", "text": "[REASONING]So 4.[/REASONING]4"},
        {"id": "long", "text": long},
        {"id": "empty", "text": ""},
    ]
    write_records(path, rows)
    found = json.loads(cli("analyze", path, "--json").stdout)["files"]["t.jsonl"]
    assert (found["traces"], found["empty"]) == (6, 1)
    assert found["faults"] == {
        "answer_missing": 2, "empty": 1, "looping": 1, "not_english": 1,
        "several_thoughts": 1, "unclosed_thought": 1,
    }  # fmt: skip
    fewer = cli("analyze", path, "--json", "--skip", "looping", "--skip", "empty").stdout
    fewer = json.loads(fewer)["files"]["t.jsonl"]
    assert (fewer["traces"], fewer["empty"], fewer["left_out"]) == (5, 0, 2)
    assert "2 more are left out" in cli(
        "analyze", path, "--skip", "looping", "--skip", "empty"
    ).stdout.replace("\n", " ")
    assert "what traces can be" in cli("analyze", path, "--skip", "short", code=2).stderr
    with path.open("a") as handle:
        handle.write("{half a row\n")
    done = cli("analyze", path, "--json", code=1)
    assert json.loads(done.stdout)["files"]["t.jsonl"]["traces"] == 6
    assert "t.jsonl:8" in done.stderr


def test_a_judge_that_fails_on_some_traces_is_told(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "t.jsonl"
    rows = trace_rows(4, [("chains", (3, 5))], 6)
    write_records(path, rows)
    with in_thread(Teacher(faults=0.7, seed=5, kinds=("half_json", "refusal"))) as broken:
        done = cli(
            "analyze", path, "--url", broken.url, "--model", "teacher", "--json",
            "--line-end", LINE_END, "--cache", tmp_path / "a.sqlite", code=1,
        )  # fmt: skip
        failed = done.stderr.count("unusable_answer")
        assert 0 < failed < 6
        assert json.loads(done.stdout)["files"]["t.jsonl"]["traces"] == 6 - failed
        said = cli(
            "analyze", path, "--url", broken.url, "--model", "other", "--budget-tokens", 10,
            "--line-end", LINE_END, "--cache", tmp_path / "a.sqlite", code=1,
        )  # fmt: skip
        assert "budget" in said.stderr


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(browser: Any, tmp_path: Path, cli: Cli, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    path = tmp_path / "t.jsonl"
    rows = trace_rows(3, [("chains", (3, 5)), ("puzzle", (2,))], 8)
    write_records(path, [{**row, "difficulty": "ab"[n % 2]} for n, row in enumerate(rows)])
    cli("analyze", path, "--html", tmp_path / "page.html")
    page = browser.new_page(color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("svg").count() == 2
    assert page.locator("table").count() == 2
    found = axe.Axe().run(page)
    page.close()
    assert complaints == []
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(
    ("rows", "more", "said", "code"),
    [
        ([], [], "holds no trace", 1),
        ([{"id": "a", "text": ""}], [], "no trace has a step", 1),
        ([{"id": "a"}], [], "field 'text'", 1),
        ([{"id": "a", "text": "x"}], ["--url", "http://x"], "--url needs --model", 2),
        (
            [{"id": "a", "text": "x"}],
            ["--url", "http://x", "--model", "m", "--line-end", "("],
            "is no regular expression",
            2,
        ),
    ],
)
def test_bad_calls_are_named(
    tmp_path: Path, cli: Cli, rows: list[dict[str, str]], more: list[str], said: str, code: int
) -> None:
    path = tmp_path / "t.jsonl"
    write_records(path, rows)
    assert said in cli("analyze", path, *more, code=code).stderr
