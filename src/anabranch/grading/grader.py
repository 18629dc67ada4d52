"""The grader: one prediction, or many, to verdicts with reasons.

Cheap pairs are decided in the calling process; the rest goes to
:class:`anabranch.grading.pool.WorkerPool`. A verdict is always given: what fails is ``error``,
what takes too long is ``timeout``, an answer that the limit cut off is ``truncated``, and none of
them is ``wrong``. Rewards are made elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from anabranch.dialects import Dialect
from anabranch.errors import AnabranchError, UsageError
from anabranch.grading.checkers import get_checker
from anabranch.grading.compare import NeedsAlgebra, identical, matches
from anabranch.grading.extract import Extracted, extract, gold_answer
from anabranch.grading.latex import normalised
from anabranch.grading.pool import Answer, WorkerPool
from anabranch.grading.rules import DEFAULT, Rules
from anabranch.grading.sources import source_of
from anabranch.records import Problem, Trajectory, Verdict, VerdictStatus

_ALL_FAILED_FROM = 2


class AllFailedError(AnabranchError):
    """Every item of a batch ended in ``error``: the grader is broken, not the answers.

    ``verdicts`` holds them.
    """

    def __init__(self, verdicts: list[Verdict]) -> None:
        self.verdicts = verdicts
        super().__init__(
            f"all {len(verdicts)} answers of the batch ended in an error of the grader; "
            f"the first: {verdicts[0].reason}"
        )


@dataclass(frozen=True)
class Item:
    """One thing to grade.

    Attributes:
        gold: the right answer, a problem that has it, or None for a problem of the trajectory.
        prediction: a trajectory, a whole answer's text without its prompt, or a bare answer.
        rules: None takes the grader's.
        dialect: of a text; None reads it from the text.
        truncated: whether a limit ended the text (a trajectory knows itself).
    """

    gold: str | Problem | None
    prediction: str | Trajectory
    rules: Rules | None = None
    dialect: str | Dialect | None = None
    truncated: bool = False


Pair = tuple[str | Problem | None, str | Trajectory]


class Grader:
    """Grades answers. Safe to use from any thread, from an event loop, and after a fork.

    Args:
        rules: for items without their own.
        workers: processes for algebra; they start when first needed.
        timeout: seconds for one comparison in a worker.
        memory: bytes that one worker may allocate on top of its imports.

    Attributes:
        counts: how many verdicts of each status were given.
    """

    def __init__(
        self,
        rules: Rules = DEFAULT,
        *,
        workers: int = 2,
        timeout: float = 5.0,
        memory: int = 192 << 20,
    ) -> None:
        if workers < 1 or timeout <= 0 or memory < 1 << 20:
            raise UsageError("a grader needs workers ≥ 1, timeout > 0 and memory ≥ 1 MiB")
        self.rules = rules
        self.counts: Counter[VerdictStatus] = Counter()
        self._options = (workers, timeout, memory)
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()

    @property
    def pool(self) -> WorkerPool:
        """The workers of this process; a forked child gets its own."""
        if self._pool is None or self._pool.pid != os.getpid():
            # A lock that another thread held during a fork would never be free in the child.
            lock = self._lock if self._pool is None else threading.Lock()
            with lock:
                if self._pool is None or self._pool.pid != os.getpid():
                    self._pool = WorkerPool(*self._options)
                    self._lock = threading.Lock()
        return self._pool

    def grade(
        self,
        gold: str | Problem | None,
        prediction: str | Trajectory,
        *,
        rules: Rules | None = None,
        dialect: str | Dialect | None = None,
        truncated: bool = False,
    ) -> Verdict:
        """The verdict of one answer; see :class:`Item` for the arguments."""
        return self._count(self._begin(Item(gold, prediction, rules, dialect, truncated)).result())

    def grade_many(self, items: Iterable[Item | Pair]) -> list[Verdict]:
        """The verdicts of many answers, in their order; the workers share them.

        Raises:
            AllFailedError: two or more items, and every one ended in ``error``.
        """
        futures = [self._begin(_item(item)) for item in items]
        return self._checked([future.result() for future in futures])

    async def agrade(self, gold: str | Problem | None, prediction: str | Trajectory) -> Verdict:
        """As :meth:`grade`, without blocking the event loop."""
        return self._count(await asyncio.wrap_future(self._begin(Item(gold, prediction))))

    async def agrade_many(self, items: Sequence[Item | Pair]) -> list[Verdict]:
        """As :meth:`grade_many`, without blocking the event loop for longer than one cheap pair."""
        futures = []
        for item in items:
            futures.append(asyncio.wrap_future(self._begin(_item(item))))
            await asyncio.sleep(0)
        return self._checked(list(await asyncio.gather(*futures)))

    def close(self) -> None:
        """End the workers. The grader starts new ones if it is used again."""
        if self._pool is not None and self._pool.pid == os.getpid():
            self._pool.close()
        self._pool = None

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, item: Item) -> Future[Verdict]:
        """A future that is resolved at once where no worker is needed."""
        done: Future[Verdict] = Future()
        try:
            verdict = self._decide(item, done)
        except UsageError:
            raise
        except Exception as error:  # one bad item must not end a batch; it is told apart
            verdict = Verdict(status="error", reason=f"{type(error).__name__}: {error}")
        if verdict is not None:
            done.set_result(verdict)
        return done

    def _decide(self, item: Item, done: Future[Verdict]) -> Verdict | None:
        rules = item.rules or self.rules
        problem = _problem(item)
        gold = gold_answer(problem.answer) if problem.answer is not None else None
        raw = item.prediction if isinstance(item.prediction, str) else None
        if gold is not None and raw is not None and rules.checker is None and identical(gold, raw):
            return Verdict(status="correct", answer=raw, gold=gold, reason="identical")
        source = source_of(item.prediction, rules, item.dialect, item.truncated)
        found = Extracted(None, reason=source.blocked) if source.blocked else None
        found = found or extract(source.text, rules)
        if found.answer is None:
            status: VerdictStatus = "truncated" if source.truncated else "unparsed"
            return Verdict(status=status, gold=gold, reason=found.reason)
        if rules.checker is not None:
            return _checked_by(rules.checker, found.answer, problem)
        if gold is None or not normalised(gold):
            return Verdict(status="error", answer=found.answer, gold=gold, reason="no gold answer")
        return self._compare(gold, found, rules, done)

    def _compare(
        self, gold: str, found: Extracted, rules: Rules, done: Future[Verdict]
    ) -> Verdict | None:
        answer = found.answer or ""

        def verdict(status: VerdictStatus, reason: str) -> Verdict:
            return Verdict(
                status=status, answer=answer, gold=gold, reason=f"{found.step}: {reason}"
            )

        if not normalised(answer):
            return verdict("unparsed", "the answer is empty")
        if identical(gold, answer):
            return verdict("correct", "identical")
        if max(len(gold), len(answer)) > rules.max_chars:
            return verdict("unparsed", f"longer than {rules.max_chars} characters")
        try:
            same, step = matches(gold, answer, rules)
            return verdict("correct" if same else "wrong", step)
        except NeedsAlgebra:
            pass

        def settle(future: Future[Answer]) -> None:
            error = future.exception()
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(verdict(*_status(future.result())))

        self.pool.submit(gold, answer, rules).add_done_callback(settle)
        return None

    def _count(self, verdict: Verdict) -> Verdict:
        self.counts[verdict.status] += 1
        return verdict

    def _checked(self, verdicts: list[Verdict]) -> list[Verdict]:
        for verdict in verdicts:
            self._count(verdict)
        if len(verdicts) >= _ALL_FAILED_FROM and all(v.status == "error" for v in verdicts):
            raise AllFailedError(verdicts)
        return verdicts


def _status(answer: Answer) -> tuple[VerdictStatus, str]:
    if answer.status == "unreadable":
        return "wrong", f"not the gold's text, and no expression: {answer.reason}"
    statuses: dict[str, VerdictStatus] = {
        "correct": "correct",
        "wrong": "wrong",
        "timeout": "timeout",
    }
    return statuses.get(answer.status, "error"), answer.reason


def _problem(item: Item) -> Problem:
    if isinstance(item.gold, Problem):
        return item.gold
    if item.gold is None:
        if isinstance(item.prediction, Trajectory) and item.prediction.problem is not None:
            return item.prediction.problem
        return Problem(id="", problem="", answer=None)
    return Problem(id="", problem="", answer=item.gold)


def _checked_by(name: str, answer: str, problem: Problem) -> Verdict:
    said = get_checker(name)(answer, problem)
    right, reason = said if isinstance(said, tuple) else (said, "checked")
    return Verdict(
        status="correct" if right else "wrong",
        answer=answer,
        gold=problem.answer,
        reason=f"{name}: {reason}",
    )


def _item(item: Item | Pair) -> Item:
    return item if isinstance(item, Item) else Item(*item)
