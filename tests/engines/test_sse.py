"""Server-sent events in any cutting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engines.sse import SseReader, json_objects

DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)


@given(
    events=st.lists(DATA, max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    space=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_events_do_not_depend_on_the_cutting(
    events: list[str], end: str, space: bool, cuts: list[int]
) -> None:
    events = [event for event in events if space or not event.startswith(" ")]
    frames = [f": note{end}data:{' ' * space}{event}{end}id: 1{end}{end}" for event in events]
    body = "".join(frames).encode()
    reader, seen, last = SseReader(), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(body)), len(body)]:
        seen += reader.feed(body[last:cut])
        last = cut
    seen += reader.close()
    assert seen == events
    assert not reader.pending


def test_data_over_several_lines_is_one_event() -> None:
    assert SseReader().feed(b"data: a\ndata: b\n\n") == ["a\nb"]


def test_an_event_without_its_blank_line_comes_at_the_end() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.pending
    assert reader.close() == ["a"]
    assert reader.close() == []


def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    reader = SseReader(limit=100)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        reader.feed(b"data: " + b"x" * 200)


def test_several_objects_in_one_event() -> None:
    assert json_objects('{"a": 1}\n{"b": 2}') == [{"a": 1}, {"b": 2}]
    assert json_objects("[1]") == [[1]]


@pytest.mark.parametrize("data", ["", "{", '{"a": 1} x', " \n"])
def test_what_is_not_json_is_refused(data: str) -> None:
    with pytest.raises(ValueError):
        json_objects(data)
