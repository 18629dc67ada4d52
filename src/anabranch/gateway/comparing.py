"""What a file of comparisons says of a candidate, with 95 % intervals over requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anabranch.metrics.intervals import mean, ratio_of_means, wilson

Figure = tuple[float, float, float]
_FINE = frozenset({"answered", "truncated"})


@dataclass(frozen=True)
class Comparison:
    """Baseline and candidate on the same requests.

    Attributes:
        requests: how many were asked of both.
        outcomes: how often each pair of outcomes came.
        worse: share of the requests that the baseline answered and the candidate did not.
        same: share of like answers, where both gave one; None: nothing to compare.
        seconds, tokens, path: candidate over baseline, of requests that both answered.
        slower: mean difference in seconds.
    """

    requests: int
    outcomes: dict[tuple[str, str], int]
    worse: Figure
    same: Figure | None
    seconds: Figure | None
    tokens: Figure | None
    path: Figure | None
    slower: Figure | None


def compare_rows(rows: Iterable[dict[str, Any]]) -> Comparison | None:
    """The comparison of some rows; None without any."""
    kept = list(rows)
    if not kept:
        return None
    outcomes: dict[tuple[str, str], int] = {}
    for row in kept:
        pair = (str(row["baseline"]["outcome"]), str(row["candidate"]["outcome"]))
        outcomes[pair] = outcomes.get(pair, 0) + 1
    lost = sum(n for (a, b), n in outcomes.items() if a in _FINE and b not in _FINE)
    told = [row["same_answer"] for row in kept if row["same_answer"] is not None]
    both = [
        (row["baseline"], row["candidate"])
        for row in kept
        if row["baseline"]["outcome"] in _FINE and row["candidate"]["outcome"] in _FINE
    ]
    return Comparison(
        len(kept),
        outcomes,
        (lost / len(kept), *wilson(lost, len(kept))),
        (sum(told) / len(told), *wilson(sum(told), len(told))) if told else None,
        _ratio(both, "seconds"),
        _ratio(both, "tokens"),
        _ratio(both, "path"),
        _mean([b["seconds"] - a["seconds"] for a, b in both]),
    )


def _ratio(pairs: list[tuple[dict[str, Any], dict[str, Any]]], name: str) -> Figure | None:
    kept = [(float(a[name]), float(b[name])) for a, b in pairs if a[name]]
    return ratio_of_means([b for _, b in kept], [a for a, _ in kept]) if kept else None


def _mean(values: list[float]) -> Figure | None:
    if not values:
        return None
    value, low, high = mean(values)
    return value, low, high
