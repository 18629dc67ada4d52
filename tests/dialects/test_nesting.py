"""Multiverse and NPR: blocks inside branches, merges inside the block, no tag around a block."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import (
    MULTIVERSE,
    NPR,
    PARASON,
    THREADWEAVER,
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    check_format,
    convert,
    parse,
    read_plan,
    write,
)
from anabranch.errors import DialectError

M_TEXT = """<Think>
Two parts.
<Parallel>
<Goal>
<Outline>
1: first
</Outline>
<Outline>
2: second
</Outline>
</Goal>
<Path>
1: x
</Path>
<Path>
2: before
<Parallel>
<Goal>
<Outline>
2.1: p
</Outline>
<Outline>
2.2: q
</Outline>
</Goal>
<Path>
2.1: v
</Path>
<Path>
2.2: w
</Path>
<Conclusion>
inner
</Conclusion>
</Parallel>
after
</Path>
<Conclusion>
outer
</Conclusion>
</Parallel>
So 3.
</Think>
\\boxed{3}"""

N_TEXT = """First.
<guideline>
<plan>1: one</plan>
<plan>2: two</plan>
</guideline>
<step>
1: x
</step>
<step>
2: before
<guideline>
<plan>1: only</plan>
</guideline>
<step>
1: v
</step>
<takeaway>
inner
</takeaway>
after
</step>
<takeaway>
outer
</takeaway>
So \\boxed{3}"""


def multiverse_document() -> Document:
    inner = Block(
        [PlanItem(1, "outline", "p"), PlanItem(2, "outline", "q")],
        [Branch(1, "outline", "v"), Branch(2, "outline", "w")],
        "inner",
    )
    nested = Branch(2, "outline", parts=[TextPart("before\n"), inner, TextPart("\nafter")])
    outer = Block(
        [PlanItem(1, "outline", "first"), PlanItem(2, "outline", "second")],
        [Branch(1, "outline", "x"), nested],
        "outer",
    )
    texts = TextPart("<Think>\nTwo parts.\n"), TextPart("\nSo 3.\n</Think>\n\\boxed{3}")
    return Document([texts[0], outer, texts[1]])


def npr_document() -> Document:
    inner = Block([PlanItem(1, "plan", "only")], [Branch(1, "plan", "v")], "inner")
    nested = Branch(2, "plan", parts=[TextPart("before\n"), inner, TextPart("\nafter")])
    plan = [PlanItem(1, "plan", "one"), PlanItem(2, "plan", "two")]
    outer = Block(plan, [Branch(1, "plan", "x"), nested], "outer")
    return Document([TextPart("First.\n"), outer, TextPart("\nSo \\boxed{3}")])


CASES = pytest.mark.parametrize(
    ("dialect", "text", "document"),
    [(MULTIVERSE, M_TEXT, multiverse_document()), (NPR, N_TEXT, npr_document())],
    ids=["multiverse", "npr"],
)


@CASES
def test_the_canonical_text(dialect: Dialect, text: str, document: Document) -> None:
    assert write(document, dialect) == text
    read = parse(text, dialect, strict=True)
    assert read.diagnostics == [] and write(read, dialect) == text
    assert len(read.blocks) == 1 and len(list(read.all_blocks())) == 2
    assert check_format(read, dialect) == [] and check_format(document, dialect) == []


@CASES
def test_compact(dialect: Dialect, text: str, document: Document) -> None:
    short = write(document, dialect.compact())
    assert parse(short, dialect, strict=True).diagnostics == []
    assert len(short) < len(text)


def codes(text: str, dialect: Dialect) -> list[str]:
    return [finding.code for finding in parse(text, dialect).diagnostics]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("2.1: v", "1: v", ["loose_number"]),
        ("2.1: v", "1.1: v", ["loose_number"]),
        ("2.1: v", "2.1.1: v", ["loose_number"]),
        ("2.2: w", "2.3: w", ["number_gap", "number_mismatch"]),
        ("2.2: w", "w", ["number_missing", "number_mismatch"]),
        ("\n1: x", "\n3.1: x", ["loose_number"]),
        ("<Path>\n1: x", "<Path 1>\nx", ["alias_tag"]),
        ("<Think>", "<think>", ["alias_tag"]),
        ("<Conclusion>\ninner\n</Conclusion>\n", "", ["summary_missing"]),
        ("<Path>\n2.2: w\n</Path>\n", "", ["one_branch", "count_mismatch"]),
        ("after\n</Path>", "after", ["missing_close"]),
        ("inner\n</Conclusion>\n</Parallel>", "inner", ["missing_close", "missing_close"]),
    ],
)
def test_deviations_of_multiverse_are_named(old: str, new: str, found: list[str]) -> None:
    assert M_TEXT.count(old) == 1
    assert sorted(codes(M_TEXT.replace(old, new), MULTIVERSE)) == sorted(found)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("\n1: v", "\n2.1: v", ["loose_number"]),
        ("<takeaway>\nouter\n</takeaway>\n", "", ["summary_missing"]),
        ("<takeaway>\nouter\n</takeaway>", "<takeaway>\nouter", ["missing_close"]),
        ("<takeaway>\ninner\n</takeaway>\n", "", ["summary_missing"]),
        ("</guideline>\n<step>\n1: x", "</guideline>\nhm\n<step>\n1: x", ["stray_text"]),
        ("So", "</takeaway>", ["unexpected_close"]),
        ("So", "<step>", ["misplaced_tag"]),
    ],
)
def test_deviations_of_npr_are_named(old: str, new: str, found: list[str]) -> None:
    assert N_TEXT.count(old) == 1
    assert sorted(codes(N_TEXT.replace(old, new), NPR)) == sorted(found)


def test_a_block_without_its_takeaway_ends_with_its_last_step() -> None:
    block = "<guideline><plan>1: a</plan></guideline><step>1: x</step>"
    document = parse(f"{block}Then {block}<takeaway>t{block}<takeaway>u</takeaway>end", NPR)
    assert [type(part).__name__ for part in document.parts] == [
        "Block",
        "TextPart",
        "Block",
        "Block",
        "TextPart",
    ]
    assert [block.merge for block in document.blocks] == [None, "t", "u"]
    assert document.parts[-1] == TextPart("end")
    assert [f.code for f in document.diagnostics] == ["summary_missing", "missing_close"]


@pytest.mark.parametrize("count", [1, 5, 6])
def test_npr_has_one_to_five_branches(count: int) -> None:
    plan = [PlanItem(n, "plan", "p") for n in range(1, count + 1)]
    block = Block(plan, [Branch(n, "plan", "x") for n in range(1, count + 1)], "t")
    if count <= NPR.max_branches:
        assert parse(write(Document([block]), NPR), NPR, strict=True).blocks == [block]
    else:
        with pytest.raises(DialectError, match="too_many_branches"):
            write(Document([block]), NPR)


def test_dotted_numbers_need_blocks_in_branches() -> None:
    with pytest.raises(DialectError, match="dotted"):
        replace(THREADWEAVER, name="dots", dotted=True)


def test_a_plan_inside_branches_has_their_numbers() -> None:
    text = "<Goal><Outline>2.1: a</Outline><Outline>2.2: b</Outline></Goal>"
    items, found = read_plan(text, MULTIVERSE, (2,))
    assert [(item.number, item.title) for item in items] == [(1, "a"), (2, "b")] and not found
    assert [f.code for f in read_plan(text, MULTIVERSE)[1]] == ["loose_number"] * 2


def test_no_text_nests_without_end() -> None:
    text = "<guideline><plan>1:</plan></guideline><step>1:" * 5_000
    assert not parse(text, NPR).well_formed


# Conversion ------------------------------------------------------------------------------------


def test_nested_blocks_and_numbers_are_carried_over() -> None:
    converted, lost = convert(npr_document(), NPR, replace(MULTIVERSE, name="m", min_branches=1))
    assert "2.1: v" in write(converted, replace(MULTIVERSE, min_branches=1))
    assert "a branch changes from plan to outline (3 times)" in lost
    with pytest.raises(DialectError, match="cannot hold a block inside a branch"):
        convert(multiverse_document(), MULTIVERSE, PARASON)
    with pytest.raises(DialectError, match="cannot be multiverse: one_branch"):
        convert(npr_document(), NPR, MULTIVERSE)


def test_a_conclusion_becomes_text_and_text_a_conclusion() -> None:
    plan = [PlanItem(1, "outline", "a"), PlanItem(2, "outline", "b")]
    block = Block(plan, [Branch(1, "outline", "x"), Branch(2, "outline", "y")], "both")
    there, lost = convert(Document([block, TextPart("\nend")]), MULTIVERSE, THREADWEAVER)
    assert there == Document([replace(block, merge=None), TextPart("\nboth\nend")])
    assert "a merge becomes text behind its block" in lost
    back, lost = convert(there, THREADWEAVER, MULTIVERSE)
    assert back.blocks[0].merge == "both\nend"
    assert "a summary is the first paragraph behind its block" in lost


def test_reasoning_tags_under_another_name_are_carried_over() -> None:
    text = M_TEXT.replace("Think>", "think>")
    converted, _ = convert(parse(text, MULTIVERSE), MULTIVERSE, MULTIVERSE)
    assert write(converted, MULTIVERSE) == M_TEXT
    converted, lost = convert(parse(text, MULTIVERSE), MULTIVERSE, NPR)
    assert "think>" not in write(converted, NPR) and any("tags" in what for what in lost)


@pytest.mark.parametrize("dialect", [MULTIVERSE, NPR], ids=lambda d: d.name)
@given(data=st.data())
def test_everything_about_a_document_survives(
    dialect: Dialect, documents: Callable[[Dialect], st.SearchStrategy[Document]], data: Any
) -> None:
    document = data.draw(documents(dialect))
    read = parse(write(document, dialect), dialect, strict=True)
    assert read == document and check_format(read, dialect) == read.diagnostics
    other = NPR if dialect is MULTIVERSE else MULTIVERSE
    widths = [len(block.branches) for block in document.all_blocks()]
    if all(other.min_branches <= width <= other.max_branches for width in widths):
        there, _ = convert(document, dialect, other)
        assert [len(block.branches) for block in there.all_blocks()] == widths
        assert [b.merge for b in there.all_blocks()] == [b.merge for b in document.all_blocks()]


# Published traces ------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def depth(parts: list[TextPart | Block]) -> int:
    blocks = [part for part in parts if isinstance(part, Block)]
    return max([1 + depth(b.parts) for block in blocks for b in block.branches], default=0)


def test_multiverse_examples(shared_data: Path) -> None:
    traces = rows(shared_data / "traces" / "multiverse_1k_examples.jsonl")
    depths: Counter[int] = Counter()
    for row in traces:
        document = parse(row["text"], MULTIVERSE)
        assert len(list(document.all_blocks())) == row["blocks"]
        assert depth(document.parts) == row["max_depth"]
        depths[depth(document.parts)] += 1
        if row["id"] == "multiverse/9":  # a block inside a branch has a single path
            assert [finding.code for finding in document.diagnostics] == ["one_branch"]
        else:
            assert document.diagnostics == []
            assert write(document, MULTIVERSE) == row["text"]
    assert len(traces) == 24 and depths == {1: 8, 2: 16}


def test_multiverse_plans(shared_data: Path) -> None:
    for row in rows(shared_data / "traces" / "multiverse_plan_only.jsonl"):
        document = parse(row["text"], MULTIVERSE)
        found = [(finding.code, finding.message) for finding in document.diagnostics]
        tags = [("<think>", "<Think>"), ("</think>", "<Think>")]
        assert found == [("alias_tag", f"`{own}` for {canonical}") for own, canonical in tags]
        assert len(document.blocks) == 1 and document.blocks[0].merge
        assert parse(write(document, MULTIVERSE), MULTIVERSE) == document


def test_threadweaver_page(shared_data: Path) -> None:
    traces = rows(shared_data / "traces" / "threadweaver_page.jsonl")
    found = [
        Counter(finding.code for finding in parse(row["text"], THREADWEAVER).diagnostics)
        for row in traces
    ]
    aliases = {"alias_tag": 2 * 2 * (1 + 2)}  # in both blocks those of the plan and of two paths
    assert found == [{}, aliases, {"alias_tag": 4, "bare_outline": 1}]
