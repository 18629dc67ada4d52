"""The grader as its users meet it: verdicts, workers that hang or die, threads, event loops."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.errors import UsageError
from anabranch.grading import AllFailedError, Grader, Item, Rules, register_checker
from anabranch.records import Problem

TOWER = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)}-4\right)}-5}{16}"
HANGING = [("10^{10^{10^{10}}}", "10^{10^{10^{9}}}+1"), (TOWER, "3"), ("7", TOWER)]
ALGEBRA = (r"\tan^2(y)+1", r"\sec^2(y)")
FALSE_POSITIVES = [
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
    ("4", r"4\sqrt(2)"),
    ("x + y - z + 2 = 0", "5x - 7y + 11z + 4 = 0"),
    ("(2,\\infty)", "[2,\\infty)"),
    (r"(-\sqrt{3},\sqrt{3})", r"[-\sqrt{3},\sqrt{3}]"),
    (r"\pm 2021", "2021"),
    ("12:00", "1:00"),
    ("D=(0,1)", "D=(0,1.5)"),
    ("f(x) = 0", r"\forall x>0, f(x) = 0"),
]
SAME = [
    ALGEBRA,
    (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
    ("2x+4y-3=0", "y = -1/2*x + 3/4"),
    ("x < 1", "-x > -1"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, \sqrt{19}+1"),
    (r"(2,12) \cup (12,102)", r"(12,102)\cup(2,12)"),
    (r"\cos^{10}(\frac{\pi}{10})", "0.6054"),
    ("0<x<12.5", "(0,12.5)"),
    ("(0,12.5)", "0<x<12.5"),
]


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=2, timeout=10) as made:
        yield made


@pytest.mark.parametrize("pair", FALSE_POSITIVES, ids=lambda pair: pair[1])
def test_known_false_positives_are_wrong_in_both_orders(grader, pair):
    for gold, answer in (pair, pair[::-1]):
        assert grader.grade(gold, rf"It is $\boxed{{{answer}}}$.").status == "wrong"


@pytest.mark.parametrize("pair", SAME, ids=lambda pair: pair[1])
def test_equal_answers(grader, pair):
    verdict = grader.grade(*pair)
    assert verdict.correct and verdict.reason, verdict


def test_from_a_thread_and_from_an_event_loop(grader):
    pair = (r"\frac{1}{3}", r"The answer is \boxed{\frac{1}{3}}")  # verl#5635
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: grader.grade(*pair), range(4)))
        found += threads.map(lambda _: grader.grade(*ALGEBRA), range(4))
    assert all(verdict.correct for verdict in found)

    async def main():
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        beating = asyncio.create_task(beat())
        verdicts = await grader.agrade_many([pair, ALGEBRA, (r"\sin(2x)", r"2\sin(x)\cos(x)")])
        beating.cancel()
        return verdicts, beats

    verdicts, beats = asyncio.run(main())
    assert all(verdict.correct for verdict in verdicts) and beats > 0


def test_hanging_pairs_time_out_and_the_others_are_graded_meanwhile():
    with Grader(workers=2, timeout=1.0) as grader:
        grader.pool.warm_up()
        hanging = [grader._begin(Item(*pair)) for pair in HANGING]
        begin = time.monotonic()
        others = grader.grade_many([ALGEBRA, *[(str(i), f"so {i}.0") for i in range(100)]])
        assert all(v.correct for v in others)
        assert not all(future.done() for future in hanging), time.monotonic() - begin
        assert [future.result(60).status for future in hanging] == ["timeout"] * 3
        assert grader.grade_many([ALGEBRA] * 4 + [("1", "1")] * 96)[0].correct
        for pid in grader.pool.pids():
            told = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            most = int(told.partition("VmHWM:")[2].split()[0])
            assert most < 600 * 1024, f"a worker took {most} KiB"


def test_no_process_is_left_behind_and_nothing_is_said():
    program = (
        "from anabranch.grading import Grader\n"
        "g = Grader(workers=1, timeout=5)\n"
        f"assert g.grade({ALGEBRA[0]!r}, {ALGEBRA[1]!r}).correct\n"
        "print(*g.pool.pids())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for pid in map(int, done.stdout.split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_dies_is_an_error_and_is_replaced():
    with Grader(workers=1, timeout=30) as grader:
        assert grader.grade(*ALGEBRA).correct
        (pid,) = grader.pool.pids()
        waiting = grader._begin(Item(TOWER, "3"))
        threading.Timer(0.2, os.kill, (pid, 9)).start()
        assert waiting.result(60).status == "error"
        assert grader.grade(r"\cos(2x)", r"2\cos^2(x)-1").correct
        assert grader.pool.pids() not in ([], [pid])


def broken(answer, problem):
    raise RuntimeError("defect")


register_checker("broken-for-tests", broken)


def test_a_batch_of_nothing_but_errors_is_loud(grader):
    rules = Rules(checker="broken-for-tests")
    one = grader.grade("1", "1", rules=rules)
    assert one.status == "error" and "defect" in one.reason
    assert grader.counts["error"] >= 1
    with pytest.raises(AllFailedError, match="all 3 answers") as raised:
        grader.grade_many([Item("1", "1", rules)] * 3)
    assert [verdict.status for verdict in raised.value.verdicts] == ["error"] * 3
    mixed = grader.grade_many([Item("1", "1", rules), ("1", "1")])
    assert [verdict.status for verdict in mixed] == ["error", "correct"]


def test_truncated_is_not_wrong(grader):
    cut = grader.grade("3", "<think>Let me see, 3", truncated=True)
    assert cut.status == "truncated"
    assert grader.grade("3", "<think>Let me see, 3").status == "unparsed"
    assert grader.grade("3", r"so \boxed{\frac{1}{2}").status == "unparsed"


def test_a_very_long_answer_takes_no_time(grader):
    long = "1+" * 83_500 + "1"
    assert grader.grade(long, long).correct
    verdict = grader.grade("3", rf"\boxed{{{long}}}")
    assert verdict.status == "unparsed" and "longer than" in verdict.reason


COUNTDOWN = Problem(
    id="c",
    problem="",
    answer="23",
    nums=[30, 100, 93],
    target=23,  # type: ignore[arg-type]
)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("(93+(30-100))", "correct"),
        (r"so \boxed{93 - (100 - 30) = 23}", "correct"),
        (r"\boxed{93 + 30 - 100}", "correct"),
        ("23", "wrong"),
        ("93+30-100+0", "wrong"),
        ("93-100+30-30+30", "wrong"),
        (r"\boxed{\frac{93}{30-30}-100}", "wrong"),
        ("__import__('os')", "wrong"),
    ],
)
def test_countdown(grader, answer, status):
    rules = Rules(checker="countdown", steps=("boxed", "bare"))
    assert grader.grade(COUNTDOWN, answer, rules=rules).status == status


def test_unknown_checkers_and_impossible_graders_are_refused(grader):
    with pytest.raises(UsageError, match="unknown checker 'nope'; known are"):
        grader.grade("1", "2", rules=Rules(checker="nope"))
    with pytest.raises(UsageError, match="workers"):
        Grader(workers=0)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
