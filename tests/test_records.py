from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.jsonl import read_records, write_records
from anabranch.records import (
    Block,
    Branch,
    Finding,
    Limits,
    Problem,
    Request,
    Sampling,
    Segment,
    Trajectory,
    Verdict,
)

# Every code point, lone surrogates too.
TEXTS = st.text(st.characters(), max_size=20)
IDS = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    ids = draw(IDS)
    scored = draw(st.booleans()) and len(ids) > 0
    logprobs = draw(st.lists(FLOATS, min_size=len(ids), max_size=len(ids))) if scored else None
    origin = draw(st.sampled_from(["prompt", "sampled", "forced"]))
    return Segment(origin=origin, ids=ids, text=draw(TEXTS), logprobs=logprobs)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    made = draw(st.lists(segments(), min_size=1, max_size=6))
    index = st.integers(0, len(made) - 1)
    request = st.builds(
        Request,
        kind=st.sampled_from(["main", "branch", "merge"]),
        context=st.lists(index, max_size=4).map(tuple),
        output=index,
        block=st.lists(st.integers(1, 4), max_size=3).map(tuple),
        branch=st.none() | st.integers(1, 50),
        finish=st.sampled_from(["stop", "eos", "length", "cancelled", "error"]),
        stop=st.none() | TEXTS,
        seed=st.integers(0, 2**64),
        started=st.none() | FLOATS,
        error=st.none() | TEXTS,
    )
    branch = st.builds(Branch, number=st.integers(1, 9), kind=TEXTS, title=TEXTS)
    block = st.builds(
        Block,
        path=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        opener=st.integers(0, 3),
        branches=st.lists(branch, max_size=3).map(tuple),
    )
    finding = st.builds(Finding, code=TEXTS, message=TEXTS, block=st.none() | st.just((1, 2)))
    problem = st.builds(Problem, id=TEXTS, problem=TEXTS, answer=st.none() | TEXTS)
    verdict = st.builds(Verdict, status=st.sampled_from(["correct", "timeout"]), reason=TEXTS)
    return Trajectory(
        id=draw(TEXTS),
        problem=draw(st.none() | problem),
        segments=made,
        requests=draw(st.lists(request, max_size=4)),
        blocks=draw(st.lists(block, max_size=2)),
        findings=draw(st.lists(finding, max_size=2)),
        final=draw(st.lists(index, max_size=4).map(tuple)),
        verdict=draw(st.none() | verdict),
        sampling=draw(st.builds(Sampling, seed=st.integers(0, 2**64), temperature=st.just(0.7))),
        seconds=draw(st.none() | FLOATS),
    )


@given(records=st.lists(trajectories(), max_size=3))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_what_is_written_is_read_back(
    records: list[Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("records") / "t.jsonl"
    assert write_records(path, records) == len(records)
    path.read_bytes().decode("utf-8")
    assert list(read_records(path, Trajectory)) == records


def test_ten_megabytes_of_text(tmp_path: Path) -> None:
    text = "0 < P(A)\u2028\u0085\x00\udc81𝛼" * 800_000
    assert len(text) > 10_000_000
    record = Trajectory(segments=[Segment(origin="sampled", ids=(1,), text=text)], final=(0,))
    path = tmp_path / "t.jsonl"
    write_records(path, [record, record])
    assert [r.text == text for r in read_records(path, Trajectory)] == [True, True]


def test_unknown_fields_survive(tmp_path: Path) -> None:
    data: dict[str, Any] = Trajectory(
        segments=[Segment(origin="prompt", ids=(1,))],
        requests=[Request(kind="main", context=(0,), output=0)],
    ).to_json()
    data["from_the_future"] = {"a": [1, None, "\udc00"]}
    data["segments"][0]["colour"] = "red"
    data["requests"][0]["gpu"] = 3
    path = tmp_path / "t.jsonl"
    write_records(path, [data])
    (read,) = read_records(path, Trajectory)
    write_records(path, [read])
    (again,) = read_records(path, Trajectory)
    assert again.to_json() == data | {"final": ()} == read.to_json()
    assert again.segments[0].model_extra == {"colour": "red"}


def test_a_problem_is_stored_under_the_name_of_the_data_sets() -> None:
    problem = Problem.model_validate({"id": "p", "problem": "What?"})
    assert problem.text == "What?" and problem.to_json()["problem"] == "What?"


def small() -> Trajectory:
    parts = [("prompt", (1, 2), "Q"), ("sampled", (3,), "a"), ("forced", (4, 5), "b")]
    made = [Segment(origin=origin, ids=ids, text=text) for origin, ids, text in parts]  # type: ignore[arg-type]
    made += [
        Segment(origin="sampled", ids=(6, 7), text="c", logprobs=(-0.5, -1.0)),
        Segment(origin="sampled", text=""),
    ]
    return Trajectory(
        segments=made,
        requests=[
            Request(kind="main", context=(0,), output=1),
            Request(kind="branch", context=(0, 1, 2), output=3, block=(1,), branch=1),
            Request(
                kind="branch", context=(0, 1, 2), output=4, block=(1,), branch=2, finish="error"
            ),
        ],
        final=(0, 1, 2, 3),
    )


def test_everything_follows_from_the_segments() -> None:
    trajectory = small()
    assert trajectory.text == "abc" and trajectory.prompt_text == "Q"
    assert trajectory.ids == (1, 2, 3, 4, 5, 6, 7)
    assert (trajectory.sampled_tokens, trajectory.forced_tokens, trajectory.prompt_tokens) == (
        3,
        2,
        2,
    )


def test_units_are_what_each_request_saw_and_sampled() -> None:
    """Restates trl#5224: training rows are the ids themselves, never text encoded again."""
    first, second = small().units()
    assert (first.context, first.completion, first.logprobs) == ((1, 2), (3,), None)
    assert second.context == (1, 2, 3, 4, 5)
    assert second.completion == (6, 7) and second.logprobs == (-0.5, -1.0)
    assert second.request == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"final": (9,)}, "final names a segment outside"),
        (
            {"requests": [{"kind": "main", "context": (0, 7), "output": 0}]},
            "request 0 names segment 7",
        ),
        (
            {"requests": [{"kind": "main", "context": (), "output": -1}]},
            "request 0 names segment -1",
        ),
        ({"schema_version": 99}, "schema_version 99 is newer than 1"),
        ({"outcome": "happy"}, "outcome"),
    ],
)
def test_records_that_contradict_themselves_are_refused(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Trajectory.model_validate(small().to_json() | change)


def test_limits_leave_room_for_the_answer() -> None:
    with pytest.raises(ValidationError, match="answer_reserve 50 is not below max_total_tokens 50"):
        Limits(max_total_tokens=50, answer_reserve=50)
    assert Limits(max_path_tokens=51, answer_reserve=50).answer_reserve == 50
