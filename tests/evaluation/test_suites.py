"""Suites: loading, fields, hashes, and what is refused before a run."""

from __future__ import annotations

import sys

import pytest

from anabranch.errors import RecordError, UsageError
from anabranch.evaluation.suites import (
    Suite,
    get_suite,
    load_suite,
    odd_golds,
    register_suite,
    suite_names,
    with_rules,
)
from anabranch.jsonl import write_records

ROW = {"id": "a", "problem": "1+1?", "answer": "2"}


def file(tmp_path, rows, name="aime24.jsonl"):
    write_records(tmp_path / name, rows)
    return tmp_path / name


def test_a_folder_or_a_file(tmp_path):
    path = file(tmp_path, [ROW, {**ROW, "id": "b", "nums": [1]}])
    loaded = load_suite("aime24", tmp_path)
    assert loaded == load_suite("aime24", path) and len(loaded) == 2
    first, second = loaded.problems
    assert (first.answer, first.family) == ("2", "aime24")
    assert second.model_extra["nums"] == [1]
    assert len(load_suite("aime24", path, limit=1)) == 1


def test_the_version_is_that_of_the_content(tmp_path):
    one = load_suite("aime24", file(tmp_path, [ROW]))
    same = load_suite("aime24", file(tmp_path, [{**ROW, "note": "x"}]))
    other = load_suite("aime24", file(tmp_path, [{**ROW, "answer": "3"}]))
    assert one.version == same.version != other.version


def test_other_field_names(tmp_path):
    known = {"unique_id": "a", "question": "1+1?", "expected_answer": 2.0}
    assert load_suite("aime24", file(tmp_path, [known])).problems[0].answer == "2"
    strange = {"nr": 1, "task": "1+1?", "res": ["2"]}
    path = file(tmp_path, [strange])
    with pytest.raises(RecordError, match=r"aime24.jsonl:1: field 'problem': no problem \(fields"):
        load_suite("aime24", path)
    fields = {"id": "nr", "problem": "task", "answer": "res"}
    (problem,) = load_suite("aime24", path, fields=fields).problems
    assert (problem.id, problem.problem, problem.answer) == ("1", "1+1?", "2")
    with pytest.raises(UsageError, match="not gold"):
        load_suite("aime24", path, fields={"gold": "res"})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW, ROW], r":2: field 'id': id 'a' is that of line 1 too"),
        ([{"id": "a", "problem": "x"}], "no answer"),
        ([{**ROW, "answer": " "}], "the gold is empty"),
        ([{**ROW, "problem": ""}], "the problem is empty"),
        ([], "no problems"),
    ],
)
def test_bad_rows(tmp_path, rows, message):
    with pytest.raises(RecordError, match=message):
        load_suite("aime24", file(tmp_path, rows))


def test_bad_sources(tmp_path, monkeypatch):
    file(tmp_path, [ROW], "gsm8k.jsonl")
    with pytest.raises(UsageError, match=r"no aime24.jsonl .* suites there: gsm8k"):
        load_suite("aime24", tmp_path)
    with pytest.raises(UsageError, match="unknown suite 'x'; known are"):
        load_suite("x", tmp_path)
    with pytest.raises(UsageError, match="no data set of its own"):
        load_suite("countdown")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'anabranch\[data\]'"):
        load_suite("aime24", "hf:someone/something")


def test_a_full_solution_as_gold(tmp_path):
    row = {"question": "?", "answer": "so 1,000 + 234\n#### 1,234"}
    (problem,) = load_suite("gsm8k", file(tmp_path, [row], "gsm8k.jsonl")).problems
    assert (problem.id, problem.answer) == ("gsm8k/1", "1234")


def test_golds_that_only_match_as_text_are_listed(tmp_path):
    rows = [ROW, {**ROW, "id": "b", "answer": r"\frac{1}{"}, {**ROW, "id": "c", "answer": "2x+1"}]
    found = odd_golds(load_suite("aime24", file(tmp_path, rows)))
    assert [(name, gold) for name, gold, _ in found] == [("b", r"\frac{1}{")]


def test_suites_can_be_added():
    mine = Suite("mine-for-tests", "Mine", rules=get_suite("gsm8k").rules)
    register_suite(mine)
    register_suite(mine)
    assert get_suite("mine-for-tests") is mine and "mine-for-tests" in suite_names()
    with pytest.raises(UsageError, match="different suite"):
        register_suite(with_rules(mine, branches=True))


def test_the_public_sets(shared_data):
    sizes = {name: len(load_suite(name, shared_data / "data")) for name in SHARED}
    assert sizes == {**{name: get_suite(name).size for name in SHARED}, "countdown": 256}


SHARED = [
    "aime24",
    "aime25",
    "amc23",
    "math500",
    "minerva_math",
    "olympiadbench",
    "gsm8k",
    "hmmt_feb_2025",
    "countdown",
]
