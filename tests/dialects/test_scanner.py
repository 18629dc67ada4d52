from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import (
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    Dialect,
    Event,
    Plan,
    Scanner,
    Tag,
    TagEvent,
    TextEvent,
    join_texts,
    scan,
)

ALL = pytest.mark.parametrize("dialect", [THREADWEAVER, PARASON, PARALLEL_R1], ids=lambda d: d.name)


def feed(pieces: list[str], dialect: Dialect) -> list[Event]:
    scanner = Scanner(dialect)
    events = [event for piece in pieces for event in scanner.feed(piece)]
    return [*events, *scanner.close()]


@ALL
@given(data=st.data())
def test_events_do_not_depend_on_the_cutting(
    dialect: Dialect, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    text = data.draw(soups(dialect))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = list(join_texts(scan(text, dialect)))
    assert list(join_texts(feed(pieces, dialect))) == whole
    assert list(join_texts(feed(list(text), dialect))) == whole


@ALL
@given(data=st.data())
def test_events_cover_the_text_once_and_in_order(
    dialect: Dialect, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    text = data.draw(soups(dialect))
    events = feed(list(text), dialect)
    assert "".join(event.text for event in events) == text
    ends = [0, *(event.end for event in events)]
    assert [event.start for event in events] == ends[:-1]
    assert all(text[event.start : event.end] == event.text for event in events)


@ALL
@given(data=st.data())
def test_only_the_beginning_of_a_tag_is_held_back(
    dialect: Dialect, soups: Callable[[Dialect], st.SearchStrategy[str]], data: st.DataObject
) -> None:
    scanner = Scanner(dialect)
    for char in data.draw(soups(dialect)):
        scanner.feed(char)
        held = scanner.held
        if held:
            rest = [
                tag for name in dialect.tag_of for tag in (f"<{name} 1234 >", f"</{name} 1234 >")
            ]
            bare = held.translate(str.maketrans("", "", "0123456789 "))
            assert any(tag.replace(" 1234 ", "").startswith(bare) for tag in rest)


def test_a_tag_in_pieces_is_one_event() -> None:
    """Restates vllm#3574: the pieces of a stop string must not leak into a stream."""
    scanner = Scanner(THREADWEAVER)
    assert [scanner.feed(piece) for piece in ("x</", "Out", "lines")] == [
        [TextEvent("x", 0, 1)],
        [],
        [],
    ]
    assert scanner.feed(">y") == [
        TagEvent("close", "Outlines", None, "</Outlines>", 1, 12),
        TextEvent("y", 12, 13),
    ]


def test_text_that_begins_like_a_tag_is_delivered_in_full() -> None:
    scanner = Scanner(THREADWEAVER)
    pieces = [event for piece in ("</", "Out", "er") for event in scanner.feed(piece)]
    assert "".join(event.text for event in pieces) == "</Outer"
    assert scanner.held == ""
    assert Scanner(THREADWEAVER).feed("</Outer>") == [TextEvent("</Outer>", 0, 8)]


def test_a_name_that_begins_another_is_told_apart() -> None:
    dialect = Dialect(
        "pair", "Pair", branch=Tag("Thread"), plan=Plan(Tag("Threads"), {"item": Tag("Item")})
    )
    events = feed(list("</Thread></Threads>"), dialect)
    assert [event.name for event in events if isinstance(event, TagEvent)] == ["Thread", "Threads"]


def test_aliases_have_the_canonical_name_and_numbers_are_read() -> None:
    tags = scan("<Path 12></Goal >", THREADWEAVER)
    assert [(tag.name, tag.number) for tag in tags if isinstance(tag, TagEvent)] == [
        ("Thread", 12),
        ("Outlines", None),
    ]


@pytest.mark.parametrize(
    "unit", ["<", "</", "<Thread", "<Thread ", "<Thread 1", "</Parallel ", "<<Parallel>"]
)
def test_time_is_linear_in_hostile_texts(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        scan(text, THREADWEAVER)
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        feed(pieces, THREADWEAVER)
        return time.process_time() - start

    small, large = min(seconds(50_000) for _ in range(3)), seconds(400_000)
    assert large < 8 * 6 * small + 0.5


def test_a_million_brackets_are_text() -> None:
    text = "<" * 1_000_000
    assert list(join_texts(scan(text, PARASON))) == [TextEvent(text, 0, len(text))]
