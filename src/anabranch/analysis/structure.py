"""A trace as steps that need one another, and what could be decoded at the same time.

A step is a run of text with a kind: ``serial``, ``subtask`` (worked out beside others that are all
needed: AND) or ``trial`` (an attempt or a check beside others of which one is enough: OR). Steps
are found by :mod:`anabranch.analysis.classifier`, by a judge, or are those of a parallel trace.

The ideal path is the heaviest chain of steps that need one another. With a limited number of
branches at once it is what list scheduling gives, the step with the heaviest rest first: at most
``2 − 1/branches`` times the best possible schedule (Graham, 1969).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["serial", "subtask", "trial"]
KINDS: tuple[Kind, ...] = ("serial", "subtask", "trial")
#: Numbers of branches at once that a path is given for; 0 is without limit.
WIDTHS = (2, 4, 8, 0)

#: Size of a text, in whatever unit.
Count = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        start, end: offsets in the text.
        kind: what it is.
        needs: places (from 0) of earlier steps whose results it uses.
    """

    start: int
    end: int
    kind: Kind
    needs: tuple[int, ...] = ()


def quarter(text: str) -> float:
    """A token is about four characters of English; without a tokenizer at hand."""
    return len(text) / 4


@dataclass(frozen=True, slots=True)
class Structure:
    """The steps of one text."""

    text: str
    steps: tuple[Step, ...]

    def sizes(self, count: Count = quarter) -> list[float]:
        """The size of each step."""
        return [count(self.text[step.start : step.end]) for step in self.steps]

    def shares(self, count: Count | None = quarter) -> dict[Kind, float]:
        """The share of each kind by size, or by number of steps without a measure."""
        sizes = self.sizes(count) if count else [1.0] * len(self.steps)
        total = sum(sizes) or 1.0
        return {
            kind: sum(s for s, step in zip(sizes, self.steps, strict=True) if step.kind == kind)
            / total
            for kind in KINDS
        }

    def ideal_path(self, branches: int = 0, count: Count = quarter) -> float:
        """The size that must follow one another; ``branches`` at once, 0 for no limit."""
        sizes = self.sizes(count)
        return schedule(sizes, [step.needs for step in self.steps], branches)

    def ideal_gain(self, branches: int = 0, count: Count = quarter) -> float:
        """The whole size over the ideal path: the acceleration ratio at best."""
        path = self.ideal_path(branches, count)
        return sum(self.sizes(count)) / path if path else 1.0


def schedule(sizes: Sequence[float], needs: Sequence[Sequence[int]], workers: int) -> float:
    """When the last of some jobs ends, if each waits for those that it needs.

    Args:
        sizes: of the jobs.
        needs: of each job the earlier ones that it waits for.
        workers: jobs at once; 0 for no limit.
    """
    if not sizes:
        return 0.0
    if workers < 1:
        workers = len(sizes)
    followers: list[list[int]] = [[] for _ in sizes]
    for job, before in enumerate(needs):
        for one in before:
            followers[one].append(job)
    rest = list(sizes)
    for job in reversed(range(len(sizes))):
        rest[job] += max((rest[one] for one in followers[job]), default=0.0)
    missing = [len(set(before)) for before in needs]
    ready = [(-rest[job], job) for job, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            _, job = heapq.heappop(ready)
            heapq.heappush(running, (now + sizes[job], job))
        now, job = heapq.heappop(running)
        for one in set(followers[job]):
            missing[one] -= 1
            if not missing[one]:
                heapq.heappush(ready, (-rest[one], one))
    return now
