"""Strategies for dialect tests: documents that a dialect can write, and tag soup."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from anabranch.dialects import (
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    normalised,
    parse,
)

WHITE = " \t\r\n"
PIECES = [
    "a",
    "Zoë",
    "1:",
    "12",
    " ",
    "\n",
    "0<P(A)",
    "<b>",
    "</b>",
    "<<x",
    "x<y",
    "\u2028",
    "𝛼",
    "?",
]


def _is_free(text: str, dialect: Dialect) -> bool:
    """Whether a text can stand anywhere without being read as a tag or a piece of one."""
    read = parse(text, dialect)
    return "think>" not in text.lower() and not read.diagnostics and not read.blocks


@pytest.fixture(scope="session")
def free_texts() -> Callable[[Dialect], st.SearchStrategy[str]]:
    def make(dialect: Dialect) -> st.SearchStrategy[str]:
        pieces = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6)
        safe = st.characters(exclude_categories=["Cs"])
        text = pieces.map("".join).map(lambda t: t.encode("utf-8", "ignore").decode())
        return (text | st.text(safe, max_size=20)).filter(lambda t: _is_free(t, dialect))

    return make


@pytest.fixture(scope="session")
def documents(
    free_texts: Callable[[Dialect], st.SearchStrategy[str]],
) -> Callable[[Dialect], st.SearchStrategy[Document]]:
    """Well-formed documents in normal form, at most 8 branches a block and 2 blocks deep."""

    def make(dialect: Dialect) -> st.SearchStrategy[Document]:
        free = free_texts(dialect)
        inner = free.map(lambda t: t.strip(WHITE))
        kinds = list(dialect.plan.items) if dialect.plan else [dialect.branch_kind]

        @st.composite
        def inside(draw: st.DrawFn, number: int, kind: str) -> Branch:
            before, after = TextPart(draw(free)), TextPart(draw(free))
            parts: list[TextPart | Block] = [before, draw(block(nested=True)), after]
            return Branch(number, kind, "", parts)

        @st.composite
        def block(draw: st.DrawFn, nested: bool = False) -> Block:
            most = min(3 if nested else 8, dialect.max_branches)
            count = draw(st.integers(dialect.min_branches, most))
            chosen = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
            plan = [PlanItem(n, k, draw(inner)) for n, k in enumerate(chosen, 1)]
            branches = [Branch(n, k, draw(inner)) for n, k in enumerate(chosen, 1)]
            if dialect.nesting and not nested and draw(st.booleans()):
                at = draw(st.integers(1, count))
                branches[at - 1] = draw(inside(at, chosen[at - 1]))
            merge = draw(inner) if dialect.merge else None
            return Block(plan if dialect.plan else [], branches, merge)

        @st.composite
        def document(draw: st.DrawFn) -> Document:
            blocks = draw(st.lists(block(), max_size=2))
            texts = [draw(free) for _ in range(len(blocks) + 1)]
            if dialect.think is not None:
                if draw(st.booleans()):
                    texts[0] = f"{dialect.think.open}\n{texts[0]}"
                if draw(st.booleans()):
                    texts[-1] += f"\n{dialect.think.close}\n{draw(free)}"
            parts: list[TextPart | Block] = []
            for at, text in enumerate(texts):
                parts += [TextPart(text)] if text else []
                parts += [blocks[at]] if at < len(blocks) else []
            return normalised(Document(parts), dialect)

        return document()

    return make


@pytest.fixture(scope="session")
def soups() -> Callable[[Dialect], st.SearchStrategy[str]]:
    """Texts of tags, aliases, pieces of tags and anything else, in any order."""

    def make(dialect: Dialect) -> st.SearchStrategy[str]:
        names = [*dialect.tag_of, "Path", "Other"]
        whole = [f"<{s}{n}{t}>" for n in names for s in ("", "/") for t in ("", " ", " 1", " 12 ")]
        cut = [piece[:size] for piece in whole for size in (1, 2, 3, len(piece) - 1)]
        extra = ["1:", " 2:", "\n3:", "1.1:", "01:", "\n", " ", "text", "<", "</", "/", ">"]
        piece = st.sampled_from(whole) | st.sampled_from(cut + extra) | st.text(max_size=4)
        return st.lists(piece, max_size=30).map("".join)

    return make
