"""Where answers are found; several restate public reports of graders that missed them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.grading import Rules, extract
from anabranch.grading.extract import boxes
from anabranch.grading.sources import source_of
from anabranch.records import Request, Segment, Trajectory

RULES = Rules()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The domain is \boxed{[2,5)}", "[2,5)"),  # lm-evaluation-harness#3643
        (r"\[ \boxed{42} \]", "42"),
        (r"Mark your solution with \boxed . The answer is $7$.", "7"),
        (r"\boxed{3}, \boxed{5}, \boxed{7}", "3, 5, 7"),
        (r"first \boxed{3}. Now the result is \boxed{5}", "5"),
        (r"\boxed{4}, or rather \boxed{5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\text{E}}", r"\text{E}"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("5", "5"),
        ("Final Answer: $1600.", "$1600"),
        ("…\n#### 1,234", "1,234"),
        (r"\boxed{1} was wrong.\n\nFinal Answer: 7", "7"),
        ("the total cost is $29.00.", "$29.00"),  # omlx#3484
        ("The total is 72 clips, altogether.", "72"),  # lm-evaluation-harness#1204
        ("All in all it took\n\n**73**", "73"),
        ("east", "east"),
    ],
)
def test_answers(text, answer):
    assert extract(text, RULES).answer == answer


def test_a_long_box_is_kept_whole():
    content = "x+" * 250 + "1"
    assert extract(rf"so \boxed{{{content}}}.", RULES).answer == content


@pytest.mark.parametrize(
    "text", [r"thus 7, \boxed{\frac{1}{2}", r"\boxed{3} and \boxed{4", "", "   ", r"\boxed{}"]
)
def test_half_an_answer_is_none(text):
    found = extract(text, RULES)
    assert found.answer is None and found.reason


def test_words_without_a_digit_have_no_last_number():
    text = "I could not find any solution to this problem, sorry."
    assert extract(text, Rules(steps=("last_number",))).answer is None
    assert extract(text, RULES).answer is None


@given(st.recursive(st.sampled_from(["1", "x", r"\{", r"\}", " "]), lambda s: st.lists(s).map(
    lambda parts: "{" + "".join(parts) + "}"), max_leaves=20))  # fmt: skip
def test_balanced_contents_come_back(content):
    found = boxes(rf"a \boxed{{{content}}} b \boxed{{2}}")
    assert [box.content for box in found] == [content, "2"]


BLOCK = (
    "<think>a<Parallel><Outlines><Outline>1: a</Outline><Outline>2: b</Outline></Outlines>"
    r"<Thread>1: \boxed{3}</Thread><Thread>2: \boxed{4}</Thread>"
)


@pytest.mark.parametrize("dialect", [None, "threadweaver"])
def test_a_branch_alone_has_no_final_answer(dialect):
    whole = BLOCK + "</Parallel>joined</think>no result"
    source = source_of(whole, RULES, dialect, False)
    assert "boxed" not in source.text and not source.blocked
    plain = BLOCK.removeprefix("<think>") + "</Parallel>"
    loose = source_of(plain, Rules(branches=True), dialect, False)
    assert extract(loose.text, RULES).answer == "4"
    answered = source_of(BLOCK + r"</Parallel>x</think>\boxed{5}", RULES, dialect, False)
    assert extract(answered.text, RULES).answer == "5"


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        BLOCK.removeprefix("<think>") + r" and \boxed{9}",
        r"<think>I guess \boxed{3}",
        r"<Parallel><Path>a</Path><Path>b</Path></Parallel><Summary>so \boxed{2}",
    ],
)
def test_nothing_counts_inside_what_is_never_closed(text):
    source = source_of(text, RULES, None, True)
    assert source.blocked and source.truncated and not source.text


def test_reasoning_counts_only_where_asked():
    text = r"<think>it is \boxed{3}</think>"
    assert source_of(text, RULES, None, False).text == ""
    assert "boxed" in source_of(text, Rules(reasoning=True), None, False).text


def trajectory(prompt, text, outcome="answered"):
    return Trajectory(
        segments=[Segment(origin="prompt", text=prompt), Segment(origin="sampled", text=text)],
        requests=[Request(kind="main", context=(0,), output=1)],
        final=(0, 1),
        outcome=outcome,
    )


def test_a_prompt_is_never_looked_at():
    found = source_of(trajectory(r"Answer in \boxed{7}", "I cannot."), RULES, None, False)
    assert found.text == "I cannot."
    opened = source_of(trajectory("Q <think>", r"maybe \boxed{7}", "truncated"), RULES, None, False)
    assert opened.blocked and opened.truncated
