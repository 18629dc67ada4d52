from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import (
    ERRORS,
    NOTES,
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    parse,
    read_plan,
)
from anabranch.errors import DialectError

ALL = pytest.mark.parametrize("dialect", [THREADWEAVER, PARASON, PARALLEL_R1], ids=lambda d: d.name)

CANONICAL = (
    "<think>\nAdd squares.\n<Parallel>\n<Outlines>\n<Outline>1: 6²</Outline>\n"
    "<Outline>2: 9²</Outline>\n</Outlines>\n<Thread>\n1: 36\n</Thread><Thread>\n2: 81\n</Thread>\n"
    "</Parallel>\n117\n</think>\n\\boxed{117}"
)
R1 = (
    "a\n<Parallel>\n<Path>\nx\n</Path>\n<Path>\ny\n</Path>\n</Parallel>\n"
    "<Summary>\ns\n</Summary>\nb"
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def codes(text: str, dialect: Dialect) -> list[str]:
    return [finding.code for finding in parse(text, dialect).diagnostics]


def tw(plan: str, branches: str) -> str:
    """A ThreadWeaver block without white space: ``1a`` is entry or branch 1 with text a."""
    items = "".join(f"<Outline>{item[0]}:{item[1:]}</Outline>" for item in plan.split())
    threads = "".join(f"<Thread>{item[0]}:{item[1:]}</Thread>" for item in branches.split())
    return f"<Parallel><Outlines>{items}</Outlines>{threads}</Parallel>"


def r1(*paths: str, summary: str = "<Summary>s</Summary>") -> str:
    return f"<Parallel>{''.join(f'<Path>{path}</Path>' for path in paths)}</Parallel>{summary}"


def test_canonical_threadweaver() -> None:
    document = parse(CANONICAL, THREADWEAVER)
    assert document.diagnostics == []
    assert document == Document(
        [
            TextPart("<think>\nAdd squares.\n"),
            Block(
                [PlanItem(1, "outline", "6²"), PlanItem(2, "outline", "9²")],
                [Branch(1, "outline", "36"), Branch(2, "outline", "81")],
            ),
            TextPart("\n117\n</think>\n\\boxed{117}"),
        ]
    )


def test_canonical_parallel_r1() -> None:
    document = parse(R1, PARALLEL_R1, strict=True)
    branches = [Branch(1, "path", "x"), Branch(2, "path", "y")]
    assert document == Document([TextPart("a\n"), Block([], branches, "s"), TextPart("\nb")])


def test_offsets_are_characters_of_the_text() -> None:
    document = parse(CANONICAL, THREADWEAVER)
    (block,) = document.blocks
    assert CANONICAL[slice(*block.span)].startswith("<Parallel>\n<Outlines>")
    assert CANONICAL[slice(*block.span)].endswith("</Thread>\n</Parallel>")
    assert CANONICAL[slice(*block.plan_span)].endswith("9²</Outline>\n</Outlines>")
    assert [CANONICAL[slice(*item.span)] for item in block.plan] == [
        "<Outline>1: 6²</Outline>",
        "<Outline>2: 9²</Outline>",
    ]
    assert CANONICAL[slice(*block.branches[1].span)] == "<Thread>\n2: 81\n</Thread>"
    assert CANONICAL[slice(*block.branches[1].body)] == "81"
    (summed,) = parse(R1, PARALLEL_R1).blocks
    assert R1[slice(*summed.merge_span)] == "<Summary>\ns\n</Summary>"
    assert summed.span[1] == summed.merge_span[1]


def test_parason_branches_take_the_kind_of_their_entry() -> None:
    text = (
        "<Parallel><Outlines><Subtask>1:a</Subtask><Trial>2:b</Trial><Outline>3:c</Outline>"
        "</Outlines><Thread>1:x</Thread><Thread>2:y</Thread><Thread>3:z</Thread></Parallel>"
    )
    (block,) = parse(text, PARASON, strict=True).blocks
    assert [branch.kind for branch in block.branches] == ["subtask", "trial", "outline"]


MALFORMED = [
    (THREADWEAVER, "a</</think>", ["half_tag"]),
    (THREADWEAVER, "is 3 <", ["half_tag"]),
    (THREADWEAVER, "</Paral", ["half_tag"]),
    (THREADWEAVER, "text </ text", ["half_tag"]),
    (THREADWEAVER, "<Thread>1:a</Thread>", ["misplaced_tag", "unexpected_close"]),
    (THREADWEAVER, "</Parallel>", ["unexpected_close"]),
    (THREADWEAVER, "so </Outlines> it is", ["stale_outline"]),
    (
        THREADWEAVER,
        "<Parallel></Outlines></Parallel>",
        ["no_branches", "plan_missing", "stale_outline"],
    ),
    (THREADWEAVER, "<Parallel></Parallel>", ["no_branches", "plan_missing"]),
    (THREADWEAVER, "<Parallel><Outlines></Outlines></Parallel>", ["empty_plan", "no_branches"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").removesuffix("</Parallel>"), ["missing_close"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("x</Thread>", "x"), ["missing_close"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("a</Outline>", "a"), ["missing_close"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("</Outlines>", ""), ["missing_close"]),
    (THREADWEAVER, tw("1a", "1x"), ["one_branch"]),
    (THREADWEAVER, tw("1a 2b", "1x"), ["count_mismatch", "one_branch"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y 3z"), ["count_mismatch"]),
    (THREADWEAVER, tw("1a 2b", "1x 1y"), ["duplicate_number", "number_mismatch"]),
    (THREADWEAVER, tw("1a 1b", "1x 2y"), ["duplicate_number", "number_mismatch"]),
    (THREADWEAVER, tw("1a 3b", "1x 3y"), ["number_gap", "number_gap"]),
    (THREADWEAVER, tw("2a 1b", "2x 1y"), ["number_gap", "number_gap"]),
    (THREADWEAVER, tw("1a 2b", "2x 1y"), ["number_gap", "number_mismatch", "number_mismatch"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("2:y", "y"), ["number_mismatch", "number_missing"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("2:", "1.2:"), ["number_gap", "number_gap"]),
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("</Outlines>", "</Outlines>and"), ["stray_text"]),
    (
        THREADWEAVER,
        tw("1a 2b", "1x 2y").replace("x", tw("1c 2d", "1v 2w")),
        ["nested_block"],
    ),
    (
        THREADWEAVER,
        tw("1a 2b", "1x 2y").replace("</Outlines>", "</Outlines><Outlines></Outlines>"),
        ["duplicate_plan", "empty_plan"],
    ),
    (THREADWEAVER, f"x</think>{tw('1a 2b', '1x 2y')}", ["block_after_reasoning"]),
    (THREADWEAVER, "x</think>y</think>", ["unexpected_close"]),
    (THREADWEAVER, "<think><think>", ["misplaced_tag", "unclosed_reasoning"]),
    (PARASON, tw("1a 2b", "1x 2y").replace("b</Outline>", "b</Trial>"), ["unexpected_close"]),
    (PARALLEL_R1, r1("a", "b", summary=""), ["summary_missing"]),
    (PARALLEL_R1, r1("a", "b", summary="<Summary>s"), ["missing_close"]),
    (PARALLEL_R1, r1("a", "b") + "<Summary>t</Summary>", ["misplaced_tag", "unexpected_close"]),
    (PARALLEL_R1, r1("a"), ["one_branch"]),
    (PARALLEL_R1, r1(), ["no_branches"]),
    (PARALLEL_R1, r1(*"abc").replace("</Parallel>", ""), ["missing_close"]),
    (PARALLEL_R1, r1("a", r1("b", "c")), ["nested_block"]),
    (
        PARALLEL_R1,
        "<Parallel><Path>a…</</Parallel>\n\n<Summary>s</",
        ["half_tag", "half_tag", "missing_close", "missing_close", "one_branch"],
    ),
]


@pytest.mark.parametrize(("dialect", "text", "expected"), MALFORMED)
def test_malformed_texts(dialect: Dialect, text: str, expected: list[str]) -> None:
    document = parse(text, dialect)
    assert sorted(finding.code for finding in document.diagnostics) == expected
    assert not document.well_formed
    first = next(finding for finding in document.diagnostics if finding.is_error)
    with pytest.raises(DialectError, match=f"{first.code} at character {first.start}"):
        parse(text, dialect, strict=True)


NOTED = [
    (THREADWEAVER, tw("1a 2b", "1x 2y").replace("Thread", "Path"), {"alias_tag": 4}),
    (THREADWEAVER, tw("1a 2b", "1x 2"), {"empty_branch": 1}),
    (THREADWEAVER, tw("1 2b", "1x 2y"), {"empty_title": 1}),
    (
        THREADWEAVER,
        tw("1a 2b", "1x 2y").replace("</Parallel>", "<Conclusion>c</Conclusion></Parallel>"),
        {"legacy_merge": 1},
    ),
    (THREADWEAVER, "<think>cut off", {"unclosed_reasoning": 1}),
    (PARALLEL_R1, r1("a", "b", summary="<Summary> </Summary>"), {"empty_summary": 1}),
    (PARALLEL_R1, r1("a", "b").replace("</Parallel>", "both agree</Parallel>"), {"stray_text": 1}),
]


@pytest.mark.parametrize(("dialect", "text", "expected"), NOTED)
def test_deviations_that_are_accepted(
    dialect: Dialect, text: str, expected: dict[str, int]
) -> None:
    document = parse(text, dialect, strict=True)
    assert document.well_formed
    assert Counter(finding.code for finding in document.diagnostics) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no block at all",
        "0 < P(A) < 1 and a<b, <b>bold</b>, <thread>, < Parallel>",
        "x</think>y",
        "<think>\nx\n</think>\ny",
        tw("1a 2b", "1x 2y") + tw("1a 2b", "1x 2y"),
        tw("1 2", "1x 2y")
        .replace("<Outline>1:", "<Outline> 1 :")
        .replace("<Outline>2:", "<Outline>\n2:"),
    ],
)
def test_texts_that_are_well_formed(text: str) -> None:
    assert parse(text, THREADWEAVER, strict=True).well_formed


def test_pieces_of_tags_are_named_with_their_offsets() -> None:
    """Restates a public reproduction of Parallel-R1: `</` tokens in front of whole tags."""
    text = "<Parallel><Path>a…</</Parallel>\n\n<Summary>s</"
    found = [(f.code, f.start, f.end) for f in parse(text, PARALLEL_R1).diagnostics]
    assert ("half_tag", 18, 20) in found and ("half_tag", 43, 45) in found
    assert ("missing_close", 10, 16) in found and ("missing_close", 33, 42) in found


def test_a_plan_belongs_to_its_own_block() -> None:
    text = (
        tw("1a 2b", "1x 2y")
        + "<Parallel></Outlines><Thread>1:x</Thread><Thread>2:y</Thread></Parallel>"
    )
    first, second = parse(text, THREADWEAVER).blocks
    assert len(first.plan) == 2 and second.plan == []
    assert {"stale_outline", "plan_missing"} <= set(codes(text, THREADWEAVER))


def test_nested_blocks_are_read_where_the_dialect_has_them() -> None:
    dialect = replace(THREADWEAVER, name="nesting", nesting=True)
    inner = (
        tw("1c 2d", "1v 2w").replace("1:", "2.1:").replace("2:d", "2.2:d").replace("2:w", "2.2:w")
    )
    text = tw("1a 2b", "1x 2y").replace("2:y", f"2: before {inner} after")
    (outer,) = parse(text, dialect, strict=True).blocks
    before, block, after = outer.branches[1].parts
    assert (before, after) == (TextPart("before "), TextPart(" after"))
    assert isinstance(block, Block)
    assert [branch.number for branch in block.branches] == [1, 2]
    assert outer.branches[0].parts == []


def test_nesting_beyond_any_sense_is_text() -> None:
    text = "<Parallel><Path>" * 10_000
    assert not parse(text, PARALLEL_R1).well_formed
    assert not parse(text, replace(PARALLEL_R1, name="deep", nesting=True)).well_formed


def test_parallel_r1_traces(shared_data: Path) -> None:
    traces = rows(shared_data / "traces" / "parallel_r1_gsm8k.jsonl")
    for field in ("text", "text_compact"):
        read = {row["id"]: parse(row[field], PARALLEL_R1) for row in traces}
        bad = {
            key: codes for key, d in read.items() if not d.well_formed and (codes := d.diagnostics)
        }
        assert len(read) == 341 and list(bad) == ["parallel-r1/gsm8k-475"]
        (finding,) = bad["parallel-r1/gsm8k-475"]
        assert finding.code == "missing_close" and "<Summary>" in finding.message
        blocks = Counter(len(document.blocks) for document in read.values())
        assert blocks == {1: 261, 2: 59, 3: 12, 4: 6, 0: 3}
        paths = Counter(len(block.branches) for d in read.values() for block in d.blocks)
        assert paths == {2: 427, 3: 11, 4: 1}
        # The malformed row is among these: its second block lacks only the summary's end.
        assert len(read["parallel-r1/gsm8k-475"].blocks) == 2


def test_threadweaver_page_variants(shared_data: Path) -> None:
    for row in rows(shared_data / "traces" / "threadweaver_page.jsonl"):
        document = parse(row["text"], THREADWEAVER, strict=True)
        for block in document.blocks:
            assert [item.number for item in block.plan] == [1, 2] and all(
                i.title for i in block.plan
            )
            assert [branch.number for branch in block.branches] == [1, 2]
            assert all(branch.text for branch in block.branches)


def test_multiverse_traces_never_fail(shared_data: Path) -> None:
    for name in ("multiverse_1k_examples.jsonl", "multiverse_plan_only.jsonl"):
        for row in rows(shared_data / "traces" / name):
            assert parse(row["text"], THREADWEAVER).blocks


@ALL
@given(data=st.data())
def test_reading_never_fails_and_loses_no_main_text(
    dialect: Dialect, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    text = data.draw(soups(dialect))
    document = parse(text, dialect)
    for finding in document.diagnostics:
        assert finding.code in ERRORS or finding.code in NOTES
        assert 0 <= finding.start <= finding.end <= len(text)
    ends = [0]
    for part in document.parts:
        assert part.span[0] == ends[-1] < part.span[1]
        if isinstance(part, TextPart):
            assert text[slice(*part.span)] == part.text
        ends.append(part.span[1])
    assert ends[-1] == len(text)
    if document.well_formed:
        parse(text, dialect, strict=True)
    else:
        with pytest.raises(DialectError):
            parse(text, dialect, strict=True)


@given(text=st.text(st.sampled_from("<>/TPhreadarlO1: \n"), max_size=60))
def test_reading_never_fails_on_letters_of_tags(text: str) -> None:
    parse(text, THREADWEAVER)


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "</",
        "<Parallel>",
        "<Thread>",
        "</Thread>",
        "<Parallel><Outlines>",
        "<Outline 1",
        "1:\n",
    ],
)
def test_time_is_linear_in_hostile_texts(unit: str) -> None:
    def seconds(size: int) -> float:
        text = "<Parallel><Outlines>1:" + unit * (size // len(unit)) + "</Outlines>"
        start = time.process_time()
        parse(text, THREADWEAVER)
        return time.process_time() - start

    small, large = min(seconds(50_000) for _ in range(3)), seconds(400_000)
    assert large < 8 * 6 * small + 0.5


def test_read_plan_of_one_block() -> None:
    text = "\n<Outlines>\n<Subtask>1: a</Subtask>\n<Trial>2: b</Trial>\n"
    for ending in ("</Outlines>", ""):
        items, found = read_plan(text + ending, PARASON)
        assert items == [PlanItem(1, "subtask", "a"), PlanItem(2, "trial", "b")] and found == []
        assert text[slice(*items[1].span)] == "<Trial>2: b</Trial>"


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("<Outline>1:a</Outline><Outline>1:b</Outline>", [1], {"duplicate_number"}),
        ("<Outline>1:a</Outline><Outline>3:b</Outline>", [1, 3], {"number_gap"}),
        ("<Outline>2:a</Outline><Outline>1:b</Outline>", [2, 1], {"number_gap"}),
        ("<Outline>a</Outline><Outline>2:b</Outline>", [2], {"number_missing", "number_gap"}),
        ("<Outline>1:a<Outline>2:b</Outline>", [1, 2], {"missing_close"}),
        ("", [], {"empty_plan"}),
        ("1: a\nand more\n2: b", [1, 2], {"bare_outline"}),
        ("whatever", [], {"empty_plan", "stray_text"}),
    ],
)
def test_read_plan_of_odd_plans(text: str, numbers: list[int], expected: set[str]) -> None:
    items, found = read_plan(f"<Outlines>{text}</Outlines>", THREADWEAVER)
    assert [item.number for item in items] == numbers
    assert {finding.code for finding in found} == expected


def test_read_plan_without_a_plan() -> None:
    items, found = read_plan("</Outlines>", THREADWEAVER)
    assert items == [] and {f.code for f in found} == {"plan_missing", "stale_outline"}
    assert read_plan("anything", PARALLEL_R1) == ([], [])


@given(data=st.data())
def test_read_plan_never_fails(
    soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    text = data.draw(soups(PARASON))
    items, found = read_plan(text, PARASON)
    assert len({item.number for item in items}) == len(items)
    assert all(item.number for item in items)
    assert all(0 <= finding.start <= finding.end <= len(text) for finding in found)
