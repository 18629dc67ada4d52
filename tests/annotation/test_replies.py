"""JSON of models: LaTeX that is not doubled, fences, words around it, truncation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.annotation import AnswerError, parse_json
from anabranch.annotation.replies import suspicious_controls

COMMANDS = r"\frac \times \nu \beta \rho \text \alpha \underbrace \neq \theta \right \nabla \forall"


def test_latex_with_single_backslashes_is_kept() -> None:
    wire = '{"latex": "' + COMMANDS + r" \(x\) \{y\} \u0041 \n next" + '"}'
    value = parse_json(wire)["latex"]
    assert value == COMMANDS + " \\(x\\) \\{y\\} A \n next"
    assert not suspicious_controls(value)


def test_latex_that_was_escaped_is_kept_too() -> None:
    assert parse_json(json.dumps({"latex": COMMANDS}))["latex"] == COMMANDS


# Without control characters: those before letters are the rule's business.
PLAIN = st.none() | st.integers() | st.text(st.characters(exclude_categories=["Cc"]))


@given(st.recursive(PLAIN, lambda one: st.lists(one) | st.dictionaries(st.text("abc"), one)))
def test_valid_json_is_read_as_it_is(value: object) -> None:
    assert parse_json(json.dumps({"value": value})) == {"value": value}


def test_control_characters_before_words_are_real() -> None:
    assert parse_json(r'{"a": "one\nTwo\tthree"}')["a"] == "one\nTwo\tthree"
    assert parse_json(r'{"a": "\nValue\textra\rreal"}')["a"] == "\nValue\textra\rreal"


@pytest.mark.parametrize(
    "command", ["textdegree", "textnormal", "trianglelefteq", "twoheadrightarrow", "nVdash"]
)
def test_rarer_commands_are_kept(command: str) -> None:
    assert parse_json(rf'{{"a": "x \{command} y"}}') == {"a": rf"x \{command} y"}


@pytest.mark.parametrize(
    "text",
    [
        'Sure! Here:\n```json\n{"a": [1, 2]}\n```\nDone.',
        '{"a": [1, 2,],}',
        'see [1] and {x} first: {"a": [1, 2]} trailing {"b": 3}',
        '[{"a": [1, 2]}]',
    ],
)
def test_what_stands_around_the_object_does_not_matter(text: str) -> None:
    assert parse_json(text) == {"a": [1, 2]}


def test_a_list_can_be_wanted() -> None:
    assert parse_json("so: [1, 2]", list) == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I cannot help with that.", "no JSON object"),
        ("", "no JSON object"),
        ('{"a": [1, 2', "breaks off"),
        ('{"a": "half a tex', "breaks off"),
        ('{"a": {"b": 1}, oops}', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, said: str) -> None:
    with pytest.raises(AnswerError, match=said):
        parse_json(text)


def test_lost_latex_is_seen() -> None:
    assert suspicious_controls("\x0crac and \times") == [0, 9]
    assert suspicious_controls("a\tB\n\tindented 4") == [4]
