"""What a report of checks counts: findings by kind, shapes of blocks, the worst rows."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anabranch.annotation.traces import read_trace
from anabranch.curation.checks.findings import Finding, Sample
from anabranch.curation.rows import WRITERS
from anabranch.dialects import Dialect

#: How much a finding of a kind counts when the worst rows are chosen.
WEIGHTS = {"format": 5, "wrong_answer": 4, "leak": 3, "answer_first": 3, "contaminated": 3}
Row = tuple[str, Sample, list[Finding]]


def sample_of(row: dict[str, Any], text: str, dialect: Dialect) -> Sample:
    """The sample of a row: of a curation, with its source; or any row with a text.

    Args:
        row: as it was read.
        text: of the row.
        dialect: of the row's parallel text.
    """
    made = _made(row)
    source = None
    if made is not None:
        source = read_trace(text).thought if "cold_start" not in row["data"] else None
        text = made["text"]
    problem, answer = row.get("problem"), row.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = f"{answer:g}" if isinstance(answer, float) else str(answer)
    return Sample(
        text,
        dialect,
        problem if isinstance(problem, str) else "",
        answer if isinstance(answer, str) else None,
        source,
    )


def own_dialect(row: dict[str, Any]) -> str:
    """The dialect that a row says its parallel text is in; empty where it says none."""
    named = (_made(row) or row).get("dialect")
    return named if isinstance(named, str) else ""


def _made(row: dict[str, Any]) -> dict[str, Any] | None:
    """What a stage has written."""
    data = row.get("data")
    if not isinstance(data, dict):
        return None
    made = [data[name] for name in WRITERS if isinstance(data.get(name), dict)]
    return next((one for one in made if isinstance(one.get("text"), str)), None)


@dataclass
class Report:
    """Figures over many rows, in memory that does not grow with them.

    Attributes:
        keep: how many of the worst rows are kept.
        rows, found: rows seen, and rows with a finding.
        kinds: rows with a finding of each kind.
        branches: blocks by their number of branches.
        shares: rows by the share of the source that survived, in steps of 0.001; without those
            that have no source.
    """

    keep: int = 20
    rows: int = 0
    found: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    branches: Counter[int] = field(default_factory=Counter)
    shares: Counter[float] = field(default_factory=Counter)
    _worst: list[tuple[int, int, Row]] = field(default_factory=list)
    _first: dict[str, list[tuple[str, list[Finding]]]] = field(default_factory=dict)

    def add(self, name: str, sample: Sample, findings: list[Finding]) -> None:
        """Count a row."""
        self.rows += 1
        for block in sample.document.all_blocks():
            self.branches[len(block.branches)] += 1
        if sample.share is not None:
            self.shares[round(sample.share, 3)] += 1
        if not findings:
            return
        self.found += 1
        for kind in {finding.kind for finding in findings}:
            self.kinds[kind] += 1
            first = self._first.setdefault(kind, [])
            if len(first) < self.keep:
                first.append((name, [one for one in findings if one.kind == kind]))
        weight = sum(WEIGHTS.get(finding.kind, 1) for finding in findings)
        entry = (weight, -self.rows, (name, sample, findings))
        if len(self._worst) < self.keep:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)

    def worst(self) -> list[Row]:
        """The rows with most and gravest findings, worst first."""
        return [row for _, _, row in sorted(self._worst, key=lambda one: one[:2], reverse=True)]

    def first_rows(self, kind: str) -> Iterator[tuple[str, list[Finding]]]:
        """The first rows with a kind of finding."""
        yield from self._first.get(kind, ())
