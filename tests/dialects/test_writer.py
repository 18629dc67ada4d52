from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    get_dialect,
    normalised,
    parse,
    write,
)
from anabranch.errors import DialectError

NAMES = [
    "threadweaver",
    "parason",
    "parallel-r1",
    "parallel-r1:trained",
    "multiverse",
    "npr",
    "threadweaver:compact",
    "parason:compact",
    "parallel-r1:compact",
    "multiverse:compact",
    "npr:compact",
]

TW = Document(
    [
        TextPart("<think>\nAdd.\n"),
        Block(
            [PlanItem(1, "outline", "first"), PlanItem(2, "outline", "second")],
            [Branch(1, "outline", "36"), Branch(2, "outline", "81")],
        ),
        TextPart("\n117\n</think>\n\\boxed{117}"),
    ]
)
TW_TEXT = (
    "<think>\nAdd.\n<Parallel>\n<Outlines>\n<Outline>1: first</Outline>\n"
    "<Outline>2: second</Outline>\n</Outlines>\n<Thread>\n1: 36\n</Thread><Thread>\n2: 81\n"
    "</Thread>\n</Parallel>\n117\n</think>\n\\boxed{117}"
)
R1 = Document(
    [
        TextPart("a\n"),
        Block([], [Branch(1, "path", "x"), Branch(2, "path", "y")], "s"),
        TextPart("b"),
    ]
)


def test_canonical_texts() -> None:
    assert write(TW, THREADWEAVER) == TW_TEXT
    assert write(TW, THREADWEAVER.compact()) == (
        "<think>\nAdd.\n<Parallel><Outlines><Outline>1:first</Outline><Outline>2:second</Outline>"
        "</Outlines><Thread>1:36</Thread><Thread>2:81</Thread></Parallel>"
        "\n117\n</think>\n\\boxed{117}"
    )
    assert write(R1, PARALLEL_R1) == (
        "a\n<Parallel>\n<Path>\nx\n</Path>\n<Path>\ny\n</Path>\n</Parallel>\n"
        "<Summary>\ns\n</Summary>b"
    )
    assert write(R1, get_dialect("parallel-r1:trained")) == (
        "a\n<Parallel><Path>\nx\n</Path><Path>\ny\n</Path></Parallel>\n<Summary>\ns\n</Summary>b"
    )


def test_the_text_is_what_the_runtime_forces_around_the_bodies() -> None:
    dialect = THREADWEAVER
    fork = TW_TEXT[: TW_TEXT.index(dialect.fork_tag) + len(dialect.fork_tag)]
    bodies = [" 36\n</Thread>", " 81\n</Thread>"]
    threads = dialect.branch_separator.join(
        dialect.branch_header(number) + body for number, body in enumerate(bodies, 1)
    )
    joined = fork + dialect.fork_text + threads + dialect.join_text()
    assert TW_TEXT.startswith(joined)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_reading_what_was_written_gives_the_document(
    name: str, documents: Callable[[Dialect], st.SearchStrategy[Document]], data: st.DataObject
) -> None:
    dialect = get_dialect(name)
    document = data.draw(documents(dialect))
    text = write(document, dialect)
    assert parse(text, dialect, strict=True) == document
    assert write(parse(text, dialect), dialect) == text


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_writing_what_was_read_is_canonical(
    name: str, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    dialect = get_dialect(name)
    document = parse(data.draw(soups(dialect)), dialect)
    try:
        text = write(document, dialect)
    except DialectError:
        return
    assert parse(text, dialect, strict=True) == normalised(document, dialect)
    assert write(parse(text, dialect), dialect) == text


def test_texts_are_normalised() -> None:
    loose = Document(
        [
            TextPart("a"),
            TextPart(""),
            TextPart("\n"),
            Block([], [Branch(7, "any", " x\n"), Branch(7, "any", "y")], "\ns "),
            TextPart("b"),
        ]
    )
    assert normalised(loose, PARALLEL_R1) == R1
    assert write(loose, PARALLEL_R1) == write(R1, PARALLEL_R1)


def test_nested_blocks_are_written_where_allowed() -> None:
    dialect = replace(PARALLEL_R1, name="nesting", nesting=True)
    outer = Block([], [Branch(1, "path", parts=list(R1.parts)), Branch(2, "path", "z")], "t")
    document = Document([outer])
    text = write(document, dialect)
    assert parse(text, dialect, strict=True) == normalised(document, dialect)
    with pytest.raises(DialectError, match="nested_block"):
        write(document, PARALLEL_R1)


def block(plan: list[PlanItem], branches: list[Branch], merge: str | None = None) -> Document:
    return Document([Block(plan, branches, merge)])


ONE, TWO = PlanItem(1, "outline", "a"), PlanItem(2, "outline", "b")
FIRST, SECOND = Branch(1, "outline", "x"), Branch(2, "outline", "y")


@pytest.mark.parametrize(
    ("dialect", "document", "complaint"),
    [
        (THREADWEAVER, block([ONE], [FIRST]), "one_branch"),
        (THREADWEAVER, block([ONE, TWO], [FIRST]), "count_mismatch|one_branch"),
        (THREADWEAVER, block([], [FIRST, SECOND]), "empty_plan"),
        (THREADWEAVER, block([ONE, TWO], [FIRST, FIRST]), "duplicate_number"),
        (THREADWEAVER, block([ONE, TWO], [FIRST, SECOND], "m"), "has no merge"),
        (THREADWEAVER, block([ONE, TWO], [FIRST, Branch(2, "outline", "</Thread>")]), "close"),
        (
            THREADWEAVER,
            block(
                [ONE, TWO, PlanItem(3, "outline")], [FIRST, Branch(2, "o", "</Thread><Thread>3:")]
            ),
            "holds tags",
        ),
        (
            THREADWEAVER,
            block([ONE, PlanItem(2, "trial", "b")], [FIRST, SECOND]),
            "knows no 'trial'",
        ),
        (PARALLEL_R1, block([], [FIRST, SECOND]), "needs a Summary"),
        (PARALLEL_R1, block([ONE, TWO], [FIRST, SECOND], "m"), "has no plan"),
        (PARASON, Document([TextPart("a</Outlines>")]), "stale_outline"),
        (PARASON, Document([TextPart("a <")]), "half_tag"),
    ],
)
def test_malformed_documents_are_not_written(
    dialect: Dialect, document: Document, complaint: str
) -> None:
    with pytest.raises(DialectError, match=complaint):
        write(document, dialect)
