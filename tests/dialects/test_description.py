from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from anabranch.dialects import (
    MULTIVERSE,
    NPR,
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    Dialect,
    Plan,
    Spacing,
    Tag,
    get_dialect,
)
from anabranch.errors import DialectError

CONTROL = {
    "threadweaver": (
        "</Outlines>",
        "\n",
        "<Thread>\n3:",
        "",
        "</Thread>",
        "\n</Thread>",
        " [cancelled]\n</Thread>",
        "\n</Parallel>",
        None,
        "\n</think>\n",
    ),
    "parason:compact": (
        "</Outlines>",
        "",
        "<Thread>3:",
        "",
        "</Thread>",
        "</Thread>",
        "[cancelled]</Thread>",
        "</Parallel>",
        None,
        "</think>",
    ),
    "parallel-r1": (
        "<Parallel>",
        "\n",
        "<Path>\n",
        "\n",
        "</Path>",
        "\n</Path>",
        "[cancelled]\n</Path>",
        "\n</Parallel>\n<Summary>\n",
        "</Summary>",
        "\n\nFinal Answer:",
    ),
    "multiverse": (
        "</Goal>",
        "\n",
        "<Path>\n3:",
        "\n",
        "</Path>",
        "\n</Path>",
        " [cancelled]\n</Path>",
        "\n<Conclusion>\n",
        "</Conclusion>",
        "\n</Think>\n",
    ),
    "npr": (
        "</guideline>",
        "\n",
        "<step>\n3:",
        "\n",
        "</step>",
        "\n</step>",
        " [cancelled]\n</step>",
        "\n<takeaway>\n",
        "</takeaway>",
        "\n\n\\boxed{",
    ),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_points(name: str) -> None:
    dialect = get_dialect(name)
    assert CONTROL[name] == (
        dialect.fork_tag,
        dialect.fork_text,
        dialect.branch_header(3),
        dialect.branch_separator,
        dialect.branch_stop,
        dialect.close_branch,
        dialect.stub(3, "cancelled"),
        dialect.join_text(),
        dialect.merge_stop,
        dialect.close_reasoning,
    )


def test_kinds_say_whether_one_success_is_enough() -> None:
    assert PARASON.is_or("trial") and PARALLEL_R1.is_or("path")
    assert not PARASON.is_or("subtask") and not THREADWEAVER.is_or("outline")


def test_compact_keeps_everything_but_white_space() -> None:
    compact = PARASON.compact()
    assert compact.spacing == Spacing.none()
    assert replace(compact, name=PARASON.name, spacing=PARASON.spacing) == PARASON


def test_prompts_hold_the_problem_and_survive_braces() -> None:
    problem = "What is {problem} in \\boxed{x}?"
    for dialect in (THREADWEAVER, PARASON, PARALLEL_R1, MULTIVERSE, NPR):
        assert problem in dialect.render_prompt(problem)


def test_dialects_are_hashable_and_picklable() -> None:
    for dialect in (THREADWEAVER, PARASON, PARALLEL_R1, MULTIVERSE, NPR):
        assert pickle.loads(pickle.dumps(dialect)) == dialect
        assert hash(dialect) == hash(replace(dialect))


def test_headers_inside_branches() -> None:
    assert MULTIVERSE.branch_header(1, (2, 3)) == "<Path>\n2.3.1:"
    assert NPR.branch_header(1, (2, 3)) == "<step>\n1:"
    assert MULTIVERSE.block_begin == "<Parallel>" and NPR.block_begin == "<guideline>"
    assert (MULTIVERSE.after_merge, NPR.after_merge) == ("\n</Parallel>", "")


@pytest.mark.parametrize(
    ("text", "inside"),
    [("", False), ("<Think>", True), ("<think>a</Think>", False), ("a</think><Think>", True)],
)
def test_a_text_ends_inside_a_tag(text: str, inside: bool) -> None:
    assert MULTIVERSE.think is not None
    assert MULTIVERSE.think.is_open_in(text) == inside


def test_merge_inside_the_block_closes_the_block_afterwards() -> None:
    dialect = replace(PARALLEL_R1, name="inside", merge=Tag("Conclusion"), merge_inside=True)
    assert dialect.join_text() == "\n<Conclusion>\n"
    assert dialect.close_merge + dialect.after_merge == "\n</Conclusion>\n</Parallel>"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"branch": Tag("Parallel")}, "two meanings"),
        ({"branch": Tag("a b")}, "cannot name a tag"),
        ({"plan": Plan(Tag("Plan"), {})}, "no kind of entry"),
        ({"min_branches": 5, "max_branches": 4}, "min_branches"),
        ({"spacing": Spacing(title="-")}, "not white"),
        ({"block": None}, "where a block ends"),
    ],
)
def test_impossible_descriptions_are_refused(options: dict[str, object], complaint: str) -> None:
    given: dict[str, object] = {"name": "x", "title": "X", "branch": Tag("Branch"), **options}
    with pytest.raises(DialectError, match=complaint):
        Dialect(**given)  # type: ignore[arg-type]
