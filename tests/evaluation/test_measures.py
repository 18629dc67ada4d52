"""Measures by hand, and intervals that hold what they say they hold."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import RecordError, UsageError
from anabranch.evaluation.measures import (
    Run,
    Sample,
    accuracy,
    bootstrap,
    compare,
    curve,
    detectable,
    majority,
    pass_at,
    samples_of,
    summary,
    within,
)
from anabranch.records import Problem, Request, Segment, Trajectory, Verdict


def sample(problem: str, correct: bool, answer: str = "", path: int = 10, **rest: object) -> Sample:
    fields = {"status": "correct" if correct else "wrong", "total": 2 * path, "blocks": 1,
              "well_formed": True, "seconds": None, "confidence": None, **rest}  # fmt: skip
    return Sample(problem, correct, answer=answer, path=path, **fields)  # type: ignore[arg-type]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one() -> None:
    samples = [sample("p", n < 2) for n in range(5)]
    assert pass_at(1)(samples) == pytest.approx(2 / 5)
    assert pass_at(2)(samples) == pytest.approx(1 - 3 / 10)
    assert pass_at(4)(samples) == 1.0


def test_majority() -> None:
    votes = [sample("p", True, "4"), sample("p", True, "4"), sample("p", False, "5")]
    assert majority(votes) == 1.0
    assert majority([*votes, sample("p", False, "5")]) == 0.5
    assert majority([sample("p", False)]) == 0.0
    sure = [sample("p", False, "5", confidence=-0.01), sample("p", True, "4", confidence=-3.0),
            sample("p", True, "4", confidence=-3.0)]  # fmt: skip
    assert majority(sure) == 1.0 and majority(sure, weighted=True) == 0.0


def test_a_limit_counts_only_what_is_right_in_time() -> None:
    run = Run([sample("a", True, path=10), sample("b", True, path=30), sample("c", False, path=5)])
    assert [run.mean(within(limit)).value for limit in (9, 10, 30)] == [
        0, pytest.approx(1 / 3), pytest.approx(2 / 3)
    ]  # fmt: skip
    points = curve(run)
    assert points[-1]["value"] == pytest.approx(2 / 3)
    assert [p["value"] for p in points] == sorted(p["value"] for p in points)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """200 runs of 80 problems with known accuracy; the benchmark does 1,000."""
    rng = random.Random(7)
    held = 0
    for turn in range(200):
        chances = [rng.betavariate(2, 1) for _ in range(80)]
        values = [sum(rng.random() < p for _ in range(4)) / 4 for p in chances]
        found = bootstrap(values, turn)
        held += found.low <= 2 / 3 <= found.high
    assert 180 <= held <= 198


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_is_around_its_value(values: list[float]) -> None:
    found = bootstrap(values)
    assert found.low <= found.value + 1e-9 and found.value - 1e-9 <= found.high
    assert bootstrap(values) == found


def test_comparison_is_paired() -> None:
    rng = random.Random(1)
    hard = [rng.random() for _ in range(60)]
    one = Run([sample(f"p{n}", rng.random() < h) for n, h in enumerate(hard)])
    same = compare(one, one, "accuracy", accuracy)
    assert same.difference.value == 0 and same.p == 1.0
    better = Run([sample(name, True) for name in one.problems])
    gain = compare(one, better, "accuracy", accuracy)
    assert gain.difference.low > 0 and gain.p < 0.01
    with pytest.raises(UsageError, match="different problems"):
        compare(one, Run([sample("else", True)]), "accuracy", accuracy)
    assert 0.05 < detectable(one) < 0.5


def test_all_alike_is_not_certain() -> None:
    found = bootstrap([1.0] * 30)
    assert found.value == 1.0 and found.low == pytest.approx(0.9) and found.high == 1.0
    assert bootstrap([0.0] * 30).high == pytest.approx(0.1)


def trajectory(name: str, verdict: Verdict | None) -> Trajectory:
    return Trajectory(
        id=name,
        problem=Problem(id=name.partition("#")[0], problem="q"),
        segments=[Segment(origin="sampled", ids=(1, 2), text="4", logprobs=(-1.0, -3.0))],
        requests=[Request(kind="main", context=(), output=0)],
        final=(0,),
        verdict=verdict,
    )


def test_from_trajectories() -> None:
    good = Verdict(status="correct", answer=" 4 ")
    found = samples_of([trajectory("p#0", good), trajectory("p#1", good)])
    assert found[0].answer == "4" and found[0].confidence == -2.0 and found[0].path == 2
    told = summary(Run(found))
    assert told["mean@2"]["value"] == 1.0 and told["problems"] == 1 and told["samples"] == 2
    with pytest.raises(RecordError, match="anabranch grade"):
        samples_of([trajectory("p#0", None)])
    with pytest.raises(UsageError, match="no trajectory"):
        samples_of([])
