"""Reference solutions as trajectories, and a script that solves everything."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.dialects import get_dialect, parse
from anabranch.engines.simulated import SimulatedEngine
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.lab.data import DIALECT, perfect_reply, reference_trajectory
from anabranch.lab.evaluate import FIRST_SUCCESS, solve_all
from anabranch.lab.families import draw_distinct
from anabranch.lab.page import page
from anabranch.lab.results import measure
from anabranch.lab.sizes import CHAIN_SIZES, PUZZLE_SIZE, demo_sizes, parse_size
from anabranch.lab.tokenizer import save_tokenizer
from anabranch.metrics.intervals import ratio_of_means, wilson
from anabranch.records import Limits

FORMS = ("sequential", "parallel", "mixed")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture
def engine(tokenizer):
    return SimulatedEngine(
        lambda call: perfect_reply(tokenizer.decode(call.ids)), tokenizer, decode_rate=1000.0
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("family", "size"), [("chains", (4, 5)), ("puzzle", PUZZLE_SIZE)])
def test_a_reference_is_what_decoding_it_records(tokenizer, engine, family, size, form):
    for problem in draw_distinct(3, family, size, 5):
        made = reference_trajectory(problem, form, tokenizer)
        assert made.text == problem.solve(form).text() and not made.findings
        assert problem.check(made.text)
        solved = run_virtual(solve_all(engine, [problem], form))[0]
        assert [s.ids for s in solved.trajectory.segments] == [s.ids for s in made.segments]


def test_a_cancelled_trial_leaves_a_stub_and_no_target(tokenizer):
    problem = draw_distinct(3, "puzzle", PUZZLE_SIZE, 1)[0]
    solution = problem.solve("parallel")
    won = 1 + next(i for i, body in enumerate(solution.branches) if not body.endswith("x"))
    losers = frozenset({1, 2, 3} - {won})
    made = reference_trajectory(problem, "parallel", tokenizer, winner=won, cancelled=losers)
    assert made.text.count("[cancelled]") == 2 and made.outcome == "answered"
    assert parse(made.text, get_dialect(DIALECT)).well_formed
    outcomes = {b.number: b.outcome for b in made.blocks[0].branches}
    assert outcomes == {n: "cancelled" if n in losers else "closed" for n in (1, 2, 3)}
    sampled = "".join(s.text for s in made.segments if s.origin == "sampled")
    assert "[cancelled]" not in sampled


def test_first_success_is_right_and_cheaper(engine):
    problems = draw_distinct(5, "puzzle", PUZZLE_SIZE, 20)
    every = run_virtual(solve_all(engine, problems, "parallel"))
    first = run_virtual(solve_all(engine, problems, "parallel", policy=FIRST_SUCCESS))
    assert all(one.correct and one.well_formed for one in every + first)
    assert sum(one.total for one in first) < 0.8 * sum(one.total for one in every)
    assert all(a.path <= b.path for a, b in zip(first, every, strict=True))


def test_a_limit_is_kept_and_counts_against_the_answer(engine):
    problems = draw_distinct(5, "puzzle", PUZZLE_SIZE, 20)
    free = run_virtual(solve_all(engine, problems, "sequential"))
    limit = sorted(one.path for one in free)[10]
    limited = run_virtual(
        solve_all(engine, problems, "sequential", limits=Limits(max_path_tokens=limit))
    )
    assert [one.correct for one in limited] == [one.within(limit) for one in free]
    assert max(one.path for one in limited) <= limit


def test_the_whole_measurement_of_a_model_without_a_fault(engine):
    result = run_virtual(measure(engine, problems=10, timed=2, note=lambda _: None))
    assert all(row[f]["correct"]["share"] == 1 for row in result["and"] for f in FORMS[:2])
    assert result["or"]["curve"][-1]["all"]["share"] == 1
    assert result["clock_all"]["speed_up"] > 1.6, "the path is what takes time here"
    written = page(result, plot="plot.svg")
    assert "100.0 % (72.2–100.0)" in written and "](plot.svg)" in written
    assert written.count("\n| 6 |") == 2, "six chains: in the table of answers and of the clock"


def test_prompts_that_are_none(tokenizer):
    with pytest.raises(ValueError, match="not a lab prompt"):
        perfect_reply("hello")
    problem = draw_distinct(3, "puzzle", PUZZLE_SIZE, 1)[0]
    with pytest.raises(ValueError, match="reference"):
        perfect_reply(f"<bos>{problem.text}[seq]<think>nonsense")


def test_intervals():
    low, high = wilson(95, 100)
    assert (round(low, 4), round(high, 4)) == (0.8882, 0.9785)
    assert wilson(0, 0) == (0.0, 1.0) and wilson(10, 10)[1] == 1.0
    ratio, low, high = ratio_of_means([2.0, 4.0, 6.0] * 20, [1.0, 2.0, 3.0] * 20)
    assert ratio == 2 and low == pytest.approx(2) and high == pytest.approx(2)
    with pytest.raises(ValueError, match="as many"):
        ratio_of_means([1.0], [])


def test_sizes():
    assert demo_sizes(5) == list(CHAIN_SIZES) and len(demo_sizes(2)) == 2
    assert parse_size("chains", "") == (4, 5) and parse_size("chains", "3") == (3, 5)
    assert parse_size("puzzle", "2") == (2,)


def test_two_runs_are_the_same(engine):
    problems = draw_distinct(7, "chains", (3, 5), 4)

    def texts():
        return [one.trajectory.text for one in asyncio.run(solve_all(engine, problems, "mixed"))]

    assert texts() == texts()
