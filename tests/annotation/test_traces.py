"""Traces taken apart, and cut into lines that join to the same text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.annotation.lines import split_lines
from anabranch.annotation.traces import loops, read_trace


@pytest.mark.parametrize(
    ("text", "thought", "answer", "faults"),
    [
        ("<think>a b</think>\n\\boxed{1}", "a b", "\\boxed{1}", ()),
        (
            "<|begin_of_thought|>a<|end_of_thought|>\n<|begin_of_solution|>x<|end_of_solution|>",
            "a",
            "x",
            (),
        ),
        ("a</think>x", "a", "x", ()),
        ("plain text", "plain text", "", ("no_wrapper",)),
        ("", "", "", ("empty",)),
        (" \n", "", "", ("empty",)),
        ("<think>a \\boxed{2}", "a \\boxed{2}", "", ("unclosed_thought", "answer_missing")),
        ("<think>a \\boxed{2}</think>", "a \\boxed{2}", "", ("answer_missing",)),
        ("<think></think>x", "", "x", ("empty",)),
        ("<think>a</think>b<think>c</think>x", "a</think>b<think>c", "x", ("several_thoughts",)),
    ],
)
def test_wrappers(text: str, thought: str, answer: str, faults: tuple[str, ...]) -> None:
    trace = read_trace(text)
    assert (trace.thought, trace.answer, trace.faults) == (thought, answer, faults)
    assert text[trace.start :].startswith(trace.thought)


def test_loops_are_seen_and_long_texts_are_none() -> None:
    assert read_trace("<think>" + "Wait, let me check again. " * 500 + "</think>x").faults == (
        "looping",
    )
    assert loops("と思います。" * 2000)
    assert not loops(
        " ".join(f"Step {n}: {n * n} + {n + 7} = {n * n + n + 7}." for n in range(9000))
    )
    assert not loops("short " * 10)


@given(st.text())
def test_lines_join_to_the_text(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines.pieces) == text
    assert lines.text(1, len(lines)) == text
    assert [text[a:b] for a, b in zip([0, *lines.ends()], lines.ends(), strict=False)] == list(
        lines.pieces
    )


def test_lines_end_at_newlines_and_sentences() -> None:
    text = "One is 3.14 here. Two!\n\nThree? 答えは五です。次。"
    assert split_lines(text).pieces == (
        "One is 3.14 here. ",
        "Two!\n\n",
        "Three? ",
        "答えは五です。",
        "次。",
    )
    assert "1: One is 3.14 here.\n2: Two!" in split_lines(text).numbered()
    assert len(split_lines("x" * 167_000).numbered()) < 500
