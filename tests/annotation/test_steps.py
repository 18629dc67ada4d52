"""Steps and groups as a model gives them: what is taken, and what is sent back."""

from typing import Any

import pytest

from anabranch.annotation import AnswerError
from anabranch.annotation.groups import Group, ask_for_groups, depends_on, read_groups
from anabranch.annotation.lines import split_lines
from anabranch.annotation.steps import Step, ask_for_steps, read_steps


def spans(data: Any, count: int) -> list[tuple[str, int, int]]:
    return [(step.number, step.first, step.last) for step in read_steps(data, count)]


def test_gaps_belong_to_the_step_before() -> None:
    data = {
        "steps": [
            {"first": 2, "last": 3, "title": "a"},
            {
                "first": 5,
                "last": 8,
                "title": "b",
                "steps": [{"first": 5, "last": 5, "title": "c"}, {"first": 7, "last": 8}],
            },
        ]
    }
    assert spans(data, 10) == [("1", 1, 4), ("2", 5, 10), ("2.1", 5, 6), ("2.2", 7, 10)]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "at least one step"),
        ("x", "must be a list"),
        ([{"first": 1, "last": 99}], "lines 1 to 99"),
        ([{"first": 3, "last": 2}], "lines 3 to 2"),
        ([{"first": 1, "last": 4}, {"first": 4, "last": 6}], "begin at line 5 or later"),
        ([{"first": "1", "last": 2}], "must be line numbers"),
        ([{"first": True, "last": 2}], "must be line numbers"),
        ([7], "must be line numbers"),
    ],
)
def test_wrong_ranges_are_named(steps: Any, said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        read_steps({"steps": steps}, 6)


STEPS = tuple(Step(n, i, i) for i, n in enumerate(("1", "2", "3", "3.1", "3.2", "4"), 1))


def test_groups_and_what_they_need() -> None:
    found = read_groups(
        {
            "needs": [{"step": "4", "of": ["2", "3"]}, {"step": "3.1", "of": ["1"]}],
            "groups": [
                {"steps": ["3.2", "3.1"], "kind": "trial"},
                {"steps": ["Step 1", "2."], "kind": "subtask"},
            ],
        },
        STEPS,
    )
    assert found.groups == (Group(("1", "2"), "subtask"), Group(("3.1", "3.2"), "trial"))
    assert found.needs == {"4": ("2", "3"), "3.1": ("1",)}
    assert depends_on("4", {"4": ["3"], "3": ["1"]}) == {"1", "3"}


@pytest.mark.parametrize(
    ("needs", "groups", "said"),
    [
        ([], [{"steps": ["1", "9"], "kind": "trial"}], "no step '9'"),
        ([], [{"steps": ["1", "3"], "kind": "trial"}], "must follow one another"),
        ([], [{"steps": ["2", "3.1"], "kind": "trial"}], "must follow one another"),
        ([], [{"steps": ["1"], "kind": "trial"}], "at least two"),
        ([], [{"steps": ["1", "2"], "kind": "and"}], "must be 'subtask' or 'trial'"),
        ([{"step": "2", "of": ["1"]}], [{"steps": ["1", "2"], "kind": "trial"}], "needs it"),
        ([{"step": "1", "of": ["2"]}], [], "does not precede"),
        ([], [{"steps": ["1", "2"], "kind": "trial"}] * 2, "in two groups"),
        ("x", [], "list of objects"),
    ],
)
def test_wrong_groups_are_named(needs: Any, groups: Any, said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        read_groups({"needs": needs, "groups": groups}, STEPS)


def test_a_question_shows_numbered_lines_and_steps() -> None:
    lines = split_lines("First. Then.\nDone.")
    ask = ask_for_steps("P?", lines)
    assert "1: First.\n2: Then.\n3: Done." in ask.messages[1].content
    steps = (Step("1", 1, 2, "both"), Step("2", 3, 3, "end"))
    shown = ask_for_groups("P?", lines, steps).messages[1].content
    assert "Step 1 (both):\nFirst. Then.\n\nStep 2 (end):\nDone." in shown
