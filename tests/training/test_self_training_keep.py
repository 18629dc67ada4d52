"""Which answers self-training keeps: every reason against an answer, duplicates, quotas."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.dialects import get_dialect
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import DIALECT, reference_trajectory
from anabranch.lab.families import draw_distinct
from anabranch.lab.self_training import lab_grade, lab_problems
from anabranch.records import Finding, Verdict
from anabranch.training.cards import details, family_counts
from anabranch.training.self_training_config import Keep
from anabranch.training.self_training_keep import REASONS, Sieve, fault_of

TOKENIZER = load_tokenizer(bundled_model())
PROBLEMS = [
    *draw_distinct(5, "chains", (3, 2), 6, evaluation=False),
    *draw_distinct(5, "puzzle", (2,), 6, evaluation=False),
]
RIGHT = Verdict(status="correct")


def answer(number=0, form="parallel", sample=0, **changes):
    record = lab_problems(PROBLEMS)[number]
    found = reference_trajectory(PROBLEMS[number], form, TOKENIZER)
    changes = {"problem": record, "verdict": RIGHT, "id": f"{record.id}#{sample}", **changes}
    return found.model_copy(update=changes)


def with_text(trajectory, old, new):
    segments = [
        s.model_copy(update={"text": s.text.replace(old, new)}) for s in trajectory.segments
    ]
    return trajectory.model_copy(update={"segments": segments})


def with_branch(trajectory, number, **changes):
    block = trajectory.blocks[0]
    branches = list(block.branches)
    branches[number] = branches[number].model_copy(update=changes)
    blocks = [block.model_copy(update={"branches": tuple(branches)})]
    return trajectory.model_copy(update={"blocks": blocks})


def shortened(trajectory, branch, text, ids):
    """The branch with this number says something else."""
    output = trajectory.requests[trajectory.blocks[0].branches[branch].requests[0]].output
    segments = list(trajectory.segments)
    segments[output] = segments[output].model_copy(update={"text": text, "ids": ids})
    return trajectory.model_copy(update={"segments": segments})


def same_branches():
    found = answer()
    first = found.requests[found.blocks[0].branches[0].requests[0]].output
    return shortened(found, 1, found.segments[first].text, found.segments[first].ids)


CASES = {
    "unfinished": (answer(outcome="truncated"), "truncated"),
    "malformed": (with_text(answer(), "</Parallel>", ""), "missing_close"),
    "repaired": (with_branch(answer(), 1, outcome="truncated"), "branch truncated"),
    "wrong": (answer(verdict=Verdict(status="wrong")), "wrong"),
    "ungraded": (answer(verdict=Verdict(status="timeout")), "timeout"),
    "no_block": (answer(form="sequential"), ""),
    "thin_branch": (shortened(answer(), 0, "</Thread>", (7,)), "branch 1"),
    "same_branches": (same_branches(), ""),
}


@pytest.mark.parametrize("reason", CASES)
def test_the_reason_against_one_answer(reason):
    trajectory, detail = CASES[reason]
    assert fault_of(trajectory, Keep(), get_dialect(DIALECT)) == (reason, detail)


def test_a_right_answer_has_no_fault_and_asks_for_its_acceleration():
    assert fault_of(answer(), Keep(), get_dialect(DIALECT)) == (None, "")
    strict = Keep(min_acceleration=0.9)
    assert fault_of(answer(), strict, get_dialect(DIALECT))[0] == "not_parallel"


def test_whatever_the_runtime_noted_counts_as_repair():
    noted = answer(findings=[Finding(code="cap_ignored")])
    harmless = answer(findings=[Finding(code="empty_title")])
    assert fault_of(noted, Keep(), get_dialect(DIALECT)) == ("repaired", "cap_ignored")
    assert fault_of(harmless, Keep(), get_dialect(DIALECT)) == (None, "")


def test_an_answer_without_verdict_is_not_graded():
    assert fault_of(answer(verdict=None), Keep(), get_dialect(DIALECT))[0] == "ungraded"


def sieve(answers, known=(), **rules):
    found = Sieve(Keep(**rules), get_dialect(DIALECT), seed=1)
    for one in known:
        found.know(one)
    for one in answers:
        found.see(one)
    return found.choose()


def test_duplicates_of_one_problem_and_of_earlier_rows():
    done = sieve([answer(0), answer(0, sample=1), answer(1)], known=[answer(1)])
    assert [one.id for one in done.kept] in (["chains-0#0"], ["chains-0#1"])
    assert done.reasons() == {"duplicate": 2}


def test_near_duplicates_by_similarity():
    near = shortened(answer(0, sample=1), 0, "a1</Thread>", (60, 61, 62, 63))
    assert len(sieve([answer(0), near]).kept) == 2
    assert len(sieve([answer(0), near], similarity=0.3).kept) == 1


def different(number, sample):
    """Another answer to a problem: the branch begins with other tokens."""
    return shortened(answer(number, sample=sample), 0, "a1</Thread>", tuple(range(sample, 60)))


def test_quotas_per_problem_and_family():
    answers = [different(n, 10 * s) for n in range(3) for s in range(4)]
    done = sieve(answers, per_problem=2, similarity=1.0)
    assert Counter(one.problem for one in done.kept) == {p.text: 2 for p in PROBLEMS[:3]}
    assert done.reasons() == {"problem_quota": 6}
    answers += [different(n, 10 * s) for n in range(6, 9) for s in range(4)]
    done = sieve(answers, per_problem=2, per_family=3, similarity=1.0)
    assert Counter(one.family for one in done.kept) == {"chains": 3, "puzzle": 3}


@pytest.mark.parametrize(("share", "kept"), [(1.0, 0), (0.75, 1), (0.5, 3), (0.0, 6)])
def test_answers_in_one_line_up_to_their_share(share, kept):
    answers = [answer(n) for n in range(3)] + [answer(n, "sequential") for n in range(6, 12)]
    done = sieve(answers, parallel_share=share)
    assert sum(not one.parallel for one in done.kept) == kept
    assert done.reasons() == ({"no_block": 6 - kept} if kept < 6 else {})


def test_preferred_are_the_short_or_the_accelerated():
    short, long = different(0, 50), different(0, 0)
    assert sieve([long, short], per_problem=1, prefer="short").kept[0].path <= min(
        one.path for one in sieve([long, short]).kept
    )
    best = sieve([long, short], per_problem=1, prefer="accelerated").kept[0]
    assert best.acceleration == max(one.acceleration for one in sieve([long, short]).kept)


@given(
    st.lists(st.sampled_from([*CASES, "good", "line"]), max_size=12),
    st.floats(0, 1),
    st.integers(1, 3),
)
def test_every_answer_has_one_fate(kinds, share, per_problem):
    made = {"good": answer(2), "line": answer(7, "sequential")}
    answers = [made[k] if k in made else CASES[k][0] for k in kinds]
    found = Sieve(Keep(parallel_share=share, per_problem=per_problem), get_dialect(DIALECT), seed=3)
    for one in answers:
        found.see(one)
    done = found.choose()
    assert len(done.kept) + len(done.dropped) == len(answers)
    assert sum(done.reasons().values()) == len(done.dropped)
    assert set(done.reasons()) <= set(REASONS)
    lines = sum(not one.parallel for one in done.kept)
    assert len(done.kept) == 0 or 1 - lines / len(done.kept) >= share - 1e-9
    counts = family_counts(found.seen, done)
    assert counts["all"].kept == len(done.kept) and counts["all"].decoded == len(answers)
    assert all(set(found) for found in details(done).values())


def test_the_labs_grader_uses_the_familys_checker():
    good = answer(0, verdict=None)
    assert lab_grade(good).correct
    assert lab_grade(with_text(good, "\\boxed{", "\\boxed{x")).status == "wrong"
    assert lab_grade(with_text(good, "\\boxed{", "")).status == "unparsed"
