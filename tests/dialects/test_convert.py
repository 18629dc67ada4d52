from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import (
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    convert,
    parse,
    write,
)
from anabranch.errors import DialectError


def planned(kinds: list[str], titles: str = "ab", after: str = "") -> Document:
    plan = [PlanItem(n, kind, titles[n - 1]) for n, kind in enumerate(kinds, 1)]
    branches = [Branch(n, kind, f"b{n}") for n, kind in enumerate(kinds, 1)]
    return Document([Block(plan, branches), *([TextPart(after)] if after else [])])


def test_threadweaver_to_parason_loses_nothing() -> None:
    document = planned(["outline", "outline"])
    converted, lost = convert(document, THREADWEAVER, PARASON)
    assert converted == document and lost == []


def test_parason_to_threadweaver_loses_the_kinds() -> None:
    converted, lost = convert(planned(["subtask", "trial"]), PARASON, THREADWEAVER)
    assert converted == planned(["outline", "outline"])
    assert lost == [
        "a branch changes from subtask to outline",
        "a branch changes from trial to outline: that one success is enough is lost",
    ]


def test_parason_to_parallel_r1() -> None:
    after = TextPart("\nThe sum is 3.\n\nSo it is.\n</think>\n\\boxed{3}")
    source = Document([TextPart("<think>\nGo.\n"), *planned(["trial", "subtask"]).parts, after])
    converted, lost = convert(source, PARASON, PARALLEL_R1)
    assert converted == Document(
        [
            TextPart("Go.\n"),
            Block([], [Branch(1, "path", "b1"), Branch(2, "path", "b2")], "The sum is 3."),
            TextPart("\n\nSo it is.\n\\boxed{3}"),
        ]
    )
    assert lost == [
        "a branch changes from subtask to path: that all are needed is lost",
        "the titles of a plan are dropped",
        "a summary is the first paragraph behind its block",
        "the answer is still written with '\\\\boxed{'",
        "the reasoning tags <think> are dropped",
    ]


def test_no_text_behind_a_block_makes_an_empty_summary() -> None:
    converted, lost = convert(planned(["trial", "trial"]), PARASON, PARALLEL_R1)
    assert converted.blocks[0].merge == ""
    assert "a summary is empty: no text follows its block" in lost


def test_parallel_r1_to_parason() -> None:
    block = Block([], [Branch(1, "path", "x"), Branch(2, "path", "y")], "both agree")
    source = Document([TextPart("Go.\n"), block, TextPart("\n\nFinal Answer: 3")])
    converted, lost = convert(source, PARALLEL_R1, PARASON)
    assert write(converted, PARASON) == (
        "<think>\nGo.\n<Parallel>\n<Outlines>\n<Trial>1: </Trial>\n<Trial>2: </Trial>\n"
        "</Outlines>\n<Thread>\n1: x\n</Thread><Thread>\n2: y\n</Thread>\n</Parallel>\nboth agree\n"
        "</think>\nFinal Answer: 3"
    )
    assert lost == [
        "a plan has empty titles: the source has none",
        "a merge becomes text behind its block",
        "the answer is still written with 'Final Answer:'",
        "the reasoning is taken to end before 'Final Answer:'",
    ]


def test_parallel_r1_to_threadweaver_loses_the_alternatives() -> None:
    block = Block([], [Branch(1, "path", "x"), Branch(2, "path", "y")], "s")
    _, lost = convert(Document([block]), PARALLEL_R1, THREADWEAVER)
    what = "a branch changes from path to outline: that one success is enough is lost (2 times)"
    assert what in lost


def test_a_legacy_merge_becomes_text() -> None:
    text = write(planned(["outline", "outline"]), THREADWEAVER).replace(
        "\n</Parallel>", "<Conclusion>c</Conclusion>\n</Parallel>"
    )
    converted, lost = convert(parse(text, THREADWEAVER), THREADWEAVER, THREADWEAVER)
    assert converted == planned(["outline", "outline"], after="\nc")
    assert lost == ["a merge becomes text behind its block"]


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(DialectError, match="cannot convert: one_branch"):
        convert(planned(["outline"]), THREADWEAVER, PARASON)
    with pytest.raises(DialectError, match="holds <Path>, a tag of parallel-r1"):
        source = Document([TextPart("a <Path> of mine"), *planned(["trial", "trial"]).parts])
        convert(source, PARASON, PARALLEL_R1)


@pytest.mark.parametrize(
    ("source", "target"),
    list(permutations([THREADWEAVER, PARASON, PARALLEL_R1], 2)),
    ids=lambda d: d.name,
)
@given(data=st.data())
def test_what_is_converted_can_be_written(
    source: Dialect,
    target: Dialect,
    documents: Callable[[Dialect], st.SearchStrategy[Document]],
    data: st.DataObject,
) -> None:
    document = data.draw(documents(source))
    converted, lost = convert(document, source, target)
    text = write(converted, target)
    assert parse(text, target, strict=True).well_formed
    assert len(converted.blocks) == len(document.blocks)
    for old, new in zip(document.blocks, converted.blocks, strict=True):
        assert [branch.text for branch in old.branches] == [branch.text for branch in new.branches]
    assert len(lost) == len(set(lost))


@given(data=st.data())
def test_there_and_back(
    documents: Callable[[Dialect], st.SearchStrategy[Document]], data: st.DataObject
) -> None:
    document = data.draw(documents(THREADWEAVER))
    there, _ = convert(document, THREADWEAVER, PARASON)
    back, _ = convert(there, PARASON, THREADWEAVER)
    assert back == document


def test_traces_convert(shared_data: Path) -> None:
    with (shared_data / "traces" / "parallel_r1_gsm8k.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    for text in texts:
        document = parse(text, PARALLEL_R1)
        if document.well_formed:
            converted, lost = convert(document, PARALLEL_R1, PARASON)
            assert parse(write(converted, PARASON), PARASON, strict=True) and lost
