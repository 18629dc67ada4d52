"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engines.stops import StopMatcher
from anabranch.errors import UsageError


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    out = [matcher.feed(piece) for piece in pieces]
    out.append(matcher.close())
    return out, matcher.stop


def first_end(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The slow definition: the match with the earliest end, the longest among equals."""
    hits = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not hits:
        return text, None
    end, _, stop = min(hits)
    return text[:end], stop


def test_pieces_of_a_tag_are_delivered_once_and_whole() -> None:
    """Restates vllm#3574: no piece of a stop string may leak before it is decided."""
    matcher = StopMatcher(("</Outlines>",))
    delivered = [matcher.feed(piece) for piece in ("x", "</", "Out", "lines", ">", "more")]
    assert delivered == ["x", "", "", "", "</Outlines>", ""]
    assert matcher.stop == "</Outlines>"
    assert matcher.dropped == 4


def test_text_that_only_begins_like_a_tag_is_delivered_in_full() -> None:
    out, stop = run(("</Outlines>",), ["a</Out", "er> b</Outl"])
    assert "".join(out) == "a</Outer> b</Outl"
    assert stop is None
    assert out[-1] == "</Outl"


@pytest.mark.parametrize(
    ("stops", "text", "kept", "stop"),
    [
        (("</Thread>", "</Threads>"), "a</Threads>b", "a</Threads>", "</Threads>"),
        (("</Thread>", "</Threads>"), "a</Thread>s", "a</Thread>", "</Thread>"),
        (("ab", "abc"), "abc", "ab", "ab"),
        (("abcd", "bc"), "abcd", "abc", "bc"),
        (("b", "ab"), "ab", "ab", "ab"),
        (("aab",), "aaab", "aaab", "aab"),
        (("abab", "abc"), "ababc", "abab", "abab"),
        (("]", "^", "-"), "x-", "x-", "-"),
        ((), "anything", "anything", None),
        (("x", "x"), "axx", "ax", "x"),
    ],
)
def test_earliest_end_wins(stops: tuple[str, ...], text: str, kept: str, stop: str) -> None:
    for pieces in ([text], list(text)):
        out, found = run(stops, pieces)
        assert "".join(out) == kept
        assert found == stop


def test_stop_and_more_text_in_one_piece() -> None:
    """Restates sglang#25980: several tokens at once, the text behind the stop is dropped."""
    out, stop = run(("</T>",), ["one </T> two </T>"])
    assert "".join(out) == "one </T>"
    assert stop == "</T>"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        StopMatcher(("a", ""))


@given(
    stops=st.lists(st.text("ab<", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(st.text("ab<c", max_size=6), max_size=12),
)
def test_independent_of_cutting(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    out, stop = run(tuple(stops), pieces)
    assert ("".join(out), stop) == first_end(tuple(stops), text)


@given(
    stops=st.lists(st.text("ab<", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab<c", max_size=6), max_size=12),
)
def test_holds_back_no_more_than_a_possible_beginning(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    for piece in pieces:
        matcher.feed(piece)
        if matcher.stop is not None:
            assert matcher.held == ""
            return
        assert matcher.held == "" or any(stop.startswith(matcher.held) for stop in stops)


def test_linear_time() -> None:
    """A text made of beginnings of the stop string, in pieces of one character."""

    def seconds(size: int) -> float:
        matcher = StopMatcher(("a" * 200 + "b",))
        started = time.thread_time()
        for _ in range(size):
            matcher.feed("a")
        return time.thread_time() - started

    seconds(1000)
    assert min(seconds(40_000) for _ in range(3)) < 40 * max(seconds(4_000), 1e-3)
