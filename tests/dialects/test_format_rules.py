from __future__ import annotations

import json
from collections.abc import Callable
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
    check_format,
    parse,
)


def made(count: int, dialect: Dialect, text: str = "x") -> Document:
    kind = dialect.branch_kind
    plan = [PlanItem(n, kind, f"t{n}") for n in range(1, count + 1)] if dialect.plan else []
    merge = "s" if dialect.merge else None
    return Document([Block(plan, [Branch(n, kind, text) for n in range(1, count + 1)], merge)])


def errors(document: Document, dialect: Dialect) -> set[str]:
    return {finding.code for finding in check_format(document, dialect) if finding.is_error}


@pytest.mark.parametrize("dialect", [THREADWEAVER, PARASON, PARALLEL_R1], ids=lambda d: d.name)
def test_counts(dialect: Dialect) -> None:
    assert errors(Document([TextPart("no block")]), dialect) == set()
    assert errors(made(0, dialect), dialect) >= {"no_branches"}
    assert errors(made(1, dialect), dialect) == {"one_branch"}
    assert errors(made(2, dialect), dialect) == set()
    assert errors(made(50, dialect), dialect) == set()
    assert errors(made(51, dialect), dialect) == {"too_many_branches"}


def test_documents_made_by_hand_are_checked_like_texts() -> None:
    document = made(3, THREADWEAVER)
    document.blocks[0].branches[2].number = 2
    assert errors(document, THREADWEAVER) == {"duplicate_number", "number_mismatch"}
    assert errors(made(2, PARALLEL_R1), THREADWEAVER) == {"plan_missing"}
    assert errors(made(2, THREADWEAVER), PARALLEL_R1) == {"misplaced_tag", "summary_missing"}
    assert errors(made(2, THREADWEAVER, "a</Thread>"), THREADWEAVER) == {"misplaced_tag"}


def test_tags_of_another_dialect_inside_a_block_are_errors() -> None:
    foreign = made(2, THREADWEAVER, "so <Summary> it")
    assert errors(foreign, THREADWEAVER) == {"foreign_tag"}
    assert errors(made(2, THREADWEAVER, "so <b> it"), THREADWEAVER) == set()
    outside = Document([TextPart("<Summary>"), *made(2, THREADWEAVER).parts])
    assert errors(outside, THREADWEAVER) == set()


@pytest.mark.parametrize("dialect", [THREADWEAVER, PARASON, PARALLEL_R1], ids=lambda d: d.name)
@given(data=st.data())
def test_for_texts_it_adds_only_foreign_tags(
    dialect: Dialect, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    document = parse(data.draw(soups(dialect)), dialect)
    found = check_format(document, dialect)
    assert [f for f in found if f.code != "foreign_tag"] == list(
        dict.fromkeys(document.diagnostics)
    )


def test_parallel_r1_traces(shared_data: Path) -> None:
    with (shared_data / "traces" / "parallel_r1_gsm8k.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    bad = [row["id"] for row in rows if errors(parse(row["text"], PARALLEL_R1), PARALLEL_R1)]
    assert bad == ["parallel-r1/gsm8k-475"]
