"""Problems, solutions and checkers of the lab families."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.lab import chains, puzzle
from anabranch.lab.families import FAMILIES, LabProblem, draw, draw_distinct, family_of
from anabranch.lab.structure import (
    EOS,
    FORMS,
    Form,
    Unit,
    extract_answer,
    held_out,
    prompt_of,
)

SIZES = [("chains", (k, n)) for k in (1, 2, 3, 6) for n in (1, 5)] + [
    ("puzzle", (slots,)) for slots in (1, 2, 3)
]

problems = st.builds(
    lambda seed, where: draw(random.Random(seed), *where),
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
)
forms = st.sampled_from(FORMS)


@given(problems, forms)
def test_every_form_is_right_and_free_of_white_space(problem: LabProblem, form: Form) -> None:
    text = problem.solve(form).text()
    assert problem.check(text)
    assert not any(character.isspace() for character in text)
    assert text.startswith("<think>")


@given(problems, forms)
def test_units_put_together_are_the_text(problem: LabProblem, form: Form) -> None:
    solution = problem.solve(form)
    prompt = prompt_of(problem.text, form)
    units = solution.units(prompt)
    assert units[-1].context + units[-1].completion == prompt + solution.text() + EOS
    for number, unit in enumerate(units[1:-1], 1):
        assert unit.context == units[0].context + units[0].completion + f"<Thread>{number}:"
        assert f"<Thread>{number}:{unit.completion}" in units[-1].context


@given(problems)
def test_a_wrong_answer_is_refused(problem: LabProblem) -> None:
    right = problem.solve("sequential").answer
    wrong = str((int(right) + 1) % 10) if problem.family == "chains" else "+" + right
    assert not problem.check(f"\\boxed{{{wrong}}}")
    assert not problem.check(right)
    assert problem.check(f"\\boxed{{{wrong}}}\\boxed{{{right}}}")


@given(problems)
def test_a_problem_is_read_back_by_its_own_family_only(problem: LabProblem) -> None:
    assert family_of(problem.text) is FAMILIES[problem.family]


def test_the_text_of_the_chains_family_is_exactly_this() -> None:
    problem = "a:D6E(-0)F(-8);b:J8K(+4)L(+1)?"
    assert chains.solve(problem, "sequential").text() == (
        "<think>a:D6,6E(-0)=6,6F(-8)=8,a8.b:J8,8K(+4)=2,2L(+1)=3,b3!a8b3=1</think>\\boxed{1}"
    )
    assert chains.solve(problem, "parallel").text() == (
        "<think><Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
        "<Thread>1:a:D6,6E(-0)=6,6F(-8)=8,a8</Thread>"
        "<Thread>2:b:J8,8K(+4)=2,2L(+1)=3,b3</Thread></Parallel>"
        "a8b3=1</think>\\boxed{1}"
    )


def test_the_text_of_the_puzzle_family_is_exactly_this() -> None:
    problem = "3?4?2=1"
    assert puzzle.solve(problem, "sequential").text() == (
        "<think>3+4=7:7+2=9-1=8n7-2=5-1=4n7*2=4-1=3nx3-4=9:9+2=1-1=0y!-+</think>\\boxed{-+}"
    )
    solution = puzzle.solve(problem, "parallel")
    assert solution.titles == ("+", "-", "*")
    assert solution.branches[2] == "3*4=2:2+2=4-1=3n2-2=0-1=9n2*2=4-1=3nx"
    assert puzzle.winners(solution) == [1]


@pytest.mark.parametrize(("count", "in_line"), [(1, 1), (2, 0), (3, 1), (6, 3)])
def test_mixed_chains_start_in_the_main_line(count: int, in_line: int) -> None:
    problem = chains.generate(random.Random(count), count, 4)
    solution = chains.solve(problem, "mixed")
    assert len(solution.branches) == count - in_line
    assert solution.prefix.count(".") + solution.prefix.count("!") == in_line


def test_a_cancelled_join_shows_a_stub_and_trains_no_such_branch() -> None:
    solution = puzzle.solve("3?4?2=1", "parallel").cancel([0, 2])
    units = solution.units("P")
    assert [unit.context[-10:] for unit in units[1:-1]] == ["<Thread>2:"]
    assert "<Thread>1:[cancelled]</Thread>" in units[-1].context
    assert "<Thread>3:[cancelled]</Thread>" in units[-1].context
    assert units[-1].completion == "</think>\\boxed{-+}<eos>"


def test_any_subset_of_the_losers_is_cancelled_and_never_the_winner() -> None:
    solution = puzzle.solve("3?4?2=1", "parallel")
    rng = random.Random(0)
    seen = {puzzle.cancel_losers(solution, rng).cancelled for _ in range(100)}
    assert seen == {frozenset(), frozenset({0}), frozenset({2}), frozenset({0, 2})}


def test_cancelling_a_branch_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such branches"):
        puzzle.solve("3?4?2=1", "parallel").cancel([3])


def test_a_puzzle_has_one_solution_and_every_first_operator_wins() -> None:
    rng = random.Random(1)
    firsts = []
    for _ in range(300):
        found = puzzle.solutions(puzzle.parse(puzzle.generate(rng)))
        assert len(found) == 1
        firsts.append(found[0][0])
    assert all(firsts.count(operator) > 70 for operator in "+-*")


@given(problems)
def test_training_problems_are_never_held_out(problem: LabProblem) -> None:
    assert not held_out(problem.text)
    assert not problem.held_out


def test_about_a_tenth_is_held_out() -> None:
    rng = random.Random(2)
    share = sum(held_out(chains.generate(rng, 3, 5)) for _ in range(3000)) / 3000
    assert 0.08 < share < 0.12


def test_held_out_problems_are_distinct_and_repeatable() -> None:
    first = draw_distinct(7, "puzzle", (3,), 50)
    assert first == draw_distinct(7, "puzzle", (3,), 50)
    assert len({problem.text for problem in first}) == 50
    assert all(problem.held_out for problem in first)


def test_a_split_that_is_too_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="only"):
        draw_distinct(0, "puzzle", (1,), 100)


@pytest.mark.parametrize(
    "problem",
    [
        "",
        "a:?",
        "a:E6?",
        "a:E6F(-0)",
        "b:J6L(-0)?",
        "c:Q1R(+2);a:E6F(-0)?",
        "a:E6F(-0);c:E1F(+2)?",
        "a:E6F(-0);a:E6F(-0)?",
        "a:E6F(-0);?",
        "a:D6F(-0)?",
        "a:E6F-0?",
        "7?7=12",
        "7=7",
        "x",
    ],
)
def test_other_texts_are_refused(problem: str) -> None:
    with pytest.raises(ValueError, match="no family reads"):
        family_of(problem)


@pytest.mark.parametrize(
    "make",
    [
        lambda: chains.generate(random.Random(0), 7, 3),
        lambda: chains.generate(random.Random(0), 2, 0),
        lambda: puzzle.generate(random.Random(0), 4),
        lambda: puzzle.solve("0?0=5", "parallel"),
    ],
)
def test_impossible_requests_are_errors(make: object) -> None:
    with pytest.raises(ValueError, match=r"cannot make|no solution"):
        make()  # type: ignore[operator]


def test_the_last_box_is_the_answer() -> None:
    assert extract_answer("\\boxed{1} then \\boxed{2}") == "2"
    assert extract_answer("none") is None
    assert Unit("a", "b").completion == "b"
