"""What runs now and what ran last, by model and key, as figures for the live page; no text in them.

Kept in memory, of this process alone: sums over days and hosts are Prometheus's.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from anabranch.gateway.ledger import Prices
from anabranch.gateway.tickets import Ticket
from anabranch.records import Trajectory

_RUNNING_SHOWN = 100


@dataclass(frozen=True, slots=True)
class _Past:
    ended: float
    model: str
    key: str
    arm: str
    outcome: str
    first: float | None
    seconds: float
    sampled: int
    path: int
    cost: float


class Live:
    """An observer that remembers the requests in flight and the last ones.

    Args:
        prices: of tokens, for costs.
        most: ended requests that are remembered.
        keep: trajectories that are kept to be looked at; they hold texts, so none by default.
    """

    def __init__(self, prices: Prices | None = None, *, most: int = 2000, keep: int = 0) -> None:
        self._prices = prices or Prices()
        self._running: dict[str, Ticket] = {}
        self._past: deque[_Past] = deque(maxlen=most)
        self._refused: Counter[str] = Counter()
        self._since = time.time()
        self.trajectories: deque[Trajectory] = deque(maxlen=keep)

    def began(self, ticket: Ticket) -> None:
        self._running[ticket.id] = ticket

    def ended(self, ticket: Ticket) -> None:
        self._running.pop(ticket.id, None)
        spent = ticket.spent
        cost = self._prices.of(spent.prompt, spent.sampled)
        self._past.append(
            _Past(time.time(), ticket.model, ticket.key, ticket.arm, ticket.outcome, ticket.first,
                  ticket.seconds or 0.0, spent.sampled, spent.path, cost)
        )  # fmt: skip
        if self.trajectories.maxlen:
            self.trajectories.extend(ticket.answers)

    def refused(self, status: int, code: str | None) -> None:
        self._refused[f"{status} {code or ''}".strip()] += 1

    def figures(self) -> dict[str, Any]:
        """Plain data: ``running``, ``groups`` (a model and key each), ``refused``, ``last``."""
        now = time.monotonic()
        running = sorted(self._running.values(), key=lambda ticket: ticket.started)
        pairs = {(t.model, t.key) for t in running} | {(p.model, p.key) for p in self._past}
        return {
            "now": time.time(),
            "since": self._since,
            "in_flight": len(running),
            "running": [
                {"id": t.id, "model": t.model, "key": t.key, "mode": t.mode, "arm": t.arm,
                 "seconds": round(now - t.started, 2), "stream": t.stream}
                for t in running[:_RUNNING_SHOWN]
            ],
            "groups": [self._group(*pair, running) for pair in sorted(pairs)],
            "refused": dict(self._refused.most_common()),
            "last": [[round(p.ended, 2), round(p.seconds, 4), p.outcome]
                     for p in list(self._past)[-120:]],
        }  # fmt: skip

    def _group(self, model: str, key: str, running: list[Ticket]) -> dict[str, Any]:
        past = [p for p in self._past if (p.model, p.key) == (model, key)]
        answered = [p.seconds for p in past if p.outcome in ("answered", "truncated")]
        first = [p.first for p in past if p.first is not None]
        return {
            "model": model,
            "key": key,
            "in_flight": sum((t.model, t.key) == (model, key) for t in running),
            "ended": len(past),
            "outcomes": dict(Counter(p.outcome for p in past)),
            "first_median": _percentile(first, 50),
            "seconds_median": _percentile(answered, 50),
            "seconds_95": _percentile(answered, 95),
            "sampled": sum(p.sampled for p in past),
            "path": sum(p.path for p in past),
            "cost": sum(p.cost for p in past),
        }


def _percentile(values: list[float], percent: int) -> float | None:
    if not values:
        return None
    if len(values) == 1:
        return round(values[0], 4)
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 4)
