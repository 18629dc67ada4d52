"""Prometheus metrics and structured log lines of every request; no text of anybody in either.

Spans of requests are in :mod:`anabranch.gateway.tracing`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anabranch.gateway.tickets import Ticket
from anabranch.records import Block, Trajectory

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 50)

logger = logging.getLogger("anabranch.gateway")


class Metrics:
    """An observer that counts. Each gateway has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        told: dict[str, Any] = {"registry": self.registry, "namespace": "anabranch"}
        by = ("model", "mode")
        self.running = Gauge("requests_running", "Requests in flight.", ("model",), **told)
        self.requests = Counter(
            "requests", "Requests by how they ended.", (*by, "route", "outcome"), **told
        )
        self.refusals = Counter("refusals", "Requests not admitted.", ("status", "code"), **told)
        self.arms = Counter(
            "arm_requests", "Requests of an experiment.", ("arm", "outcome"), **told
        )
        self.tokens = Counter(
            "tokens", "Tokens: prompt, sampled, forced, prefill, cached.", (*by, "kind"), **told
        )
        self.first = Histogram(
            "first_text_seconds", "Until the first text.", by, buckets=_SECONDS, **told
        )
        self.answer = Histogram(
            "answer_seconds", "Until the answer was whole.", by, buckets=_SECONDS, **told
        )
        self.path = Histogram(
            "critical_path_tokens", "Critical path of an answer.", by, buckets=_TOKENS, **told
        )
        self.width = Histogram("fork_width", "Branches of a fork.", by, buckets=_WIDTHS, **told)
        self.wait = Histogram(
            "join_wait_seconds",
            "Between the first and the last branch of a fork.",
            by,
            buckets=_SECONDS,
            **told,
        )
        self.branches = Counter(
            "branches", "Branches by what became of them.", (*by, "outcome"), **told
        )

    def began(self, ticket: Ticket) -> None:
        self.running.labels(ticket.model).inc()

    def ended(self, ticket: Ticket) -> None:
        by = (ticket.model, ticket.mode)
        self.running.labels(ticket.model).dec()
        self.requests.labels(*by, ticket.route, ticket.outcome).inc()
        if ticket.arm:
            self.arms.labels(ticket.arm, ticket.outcome).inc()
        spent = ticket.spent
        for kind in ("prompt", "sampled", "forced", "prefill", "cached"):
            self.tokens.labels(*by, kind).inc(getattr(spent, kind))
        if ticket.first is not None:
            self.first.labels(*by).observe(ticket.first)
        if ticket.outcome in ("answered", "truncated"):
            self.answer.labels(*by).observe(ticket.seconds or 0.0)
            self.path.labels(*by).observe(spent.path)
        for trajectory in ticket.answers:
            for block in trajectory.blocks:
                self._block(by, trajectory, block)

    def refused(self, status: int, code: str | None) -> None:
        """A request that was not admitted."""
        self.refusals.labels(str(status), code or "").inc()

    def _block(self, by: tuple[str, str], trajectory: Trajectory, block: Block) -> None:
        self.width.labels(*by).observe(sum(bool(one.requests) for one in block.branches))
        for branch in block.branches:
            self.branches.labels(*by, branch.outcome).inc()
        ends = list(_ends(trajectory, block))
        if len(ends) > 1:
            self.wait.labels(*by).observe(max(ends) - min(ends))

    def routes(self) -> list[Route]:
        """The endpoint that Prometheus reads."""

        async def metrics(request: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        return [Route("/metrics", metrics, methods=["GET"])]


def _ends(trajectory: Trajectory, block: Block) -> Iterator[float]:
    for branch in block.branches:
        finished = [trajectory.requests[r].finished for r in branch.requests]
        known = [one for one in finished if one is not None]
        if known:
            yield max(known)


class LogLines:
    """An observer that writes one JSON line for each request."""

    def began(self, ticket: Ticket) -> None:
        pass

    def ended(self, ticket: Ticket) -> None:
        spent = ticket.spent
        line = {
            "event": "request",
            "id": ticket.id,
            "route": ticket.route,
            "model": ticket.model,
            "mode": ticket.mode,
            "arm": ticket.arm,
            "key": ticket.key,
            "outcome": ticket.outcome,
            "status": ticket.status,
            "seconds": round(ticket.seconds or 0.0, 4),
            "first": None if ticket.first is None else round(ticket.first, 4),
            "prompt": spent.prompt,
            "sampled": spent.sampled,
            "path": spent.path,
            "calls": spent.calls,
            "error": ticket.error,
        }
        logger.info(json.dumps(line))

    def refused(self, status: int, code: str | None) -> None:
        logger.info(json.dumps({"event": "refused", "status": status, "code": code}))
