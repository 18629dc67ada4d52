"""One request from its arrival to its end: what admission, books and observers need to know of it.

Who keeps the books (:class:`Ledger`) and who watches (:class:`Observer`) are interfaces; the ledger
here has no limits but the number of answers at once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.gateway.errors import ApiError, overloaded
from anabranch.metrics import Metrics, trajectory_metrics
from anabranch.records import Trajectory


@dataclass(slots=True)
class Spent:
    """Tokens of one request over all calls to the engine.

    ``prompt`` counts every prompt once per answer, ``sampled`` all sampled tokens, ``path`` the
    longest critical path, ``prefill`` the contexts of all calls without what was cached where the
    engine says so, ``calls`` requests to the engine.
    """

    prompt: int = 0
    sampled: int = 0
    reasoning: int = 0
    path: int = 0
    context: int = 0
    cached: int = 0
    prefill: int = 0
    forced: int = 0
    calls: int = 0
    estimated: bool = False

    def add(self, trajectory: Trajectory, metrics: Metrics) -> None:
        """Book one finished trajectory."""
        self.prompt += trajectory.prompt_tokens
        self.sampled += metrics.total_tokens
        self.path = max(self.path, metrics.critical_path)
        context = metrics.context_tokens or 0
        self.context += context
        self.cached += metrics.cached_tokens or 0
        self.prefill += context if metrics.prefill_tokens is None else metrics.prefill_tokens
        self.forced += metrics.forced_tokens
        self.calls += len(trajectory.requests)


@dataclass(slots=True)
class Ticket:
    """One request of a client.

    Attributes:
        id: sent back as the response's id.
        route: path of the endpoint.
        key: name of the key that it came with; "" without one.
        subject: whom the client says it asks for (its ``user``), for deletion on request.
        traceparent: the caller's span (W3C Trace Context), as it came.
        started: monotonic seconds.
        prompt_text, prompt_tokens: what it asks, and the tokens of all its prompts.
        cap: most tokens that it may sample, all answers together; None: no limit is known.
        answers, figures: finished trajectories, and the metrics of each.
        first: seconds until the first text was sent.
        outcome: ``answered``, ``truncated``, ``refused``, ``failed`` or ``gone`` (client left).
        status: of the response.
    """

    route: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    key: str = ""
    subject: str = ""
    model: str = ""
    mode: str = ""
    dialect: str = ""
    arm: str = ""
    traceparent: str = ""
    stream: bool = False
    prompt_text: str = ""
    prompt_tokens: int = 0
    cap: int | None = None
    started: float = field(default_factory=time.monotonic)
    created: float = field(default_factory=time.time)
    first: float | None = None
    seconds: float | None = None
    spent: Spent = field(default_factory=Spent)
    answers: list[Trajectory] = field(default_factory=list)
    figures: list[Metrics] = field(default_factory=list)
    outcome: str = "refused"
    status: int = 200
    error: str = ""

    def end(self) -> None:
        """Stop its clock."""
        if self.seconds is None:
            self.seconds = time.monotonic() - self.started

    def book(self, trajectory: Trajectory) -> None:
        """One of its answers is done."""
        metrics = trajectory_metrics(trajectory)
        self.answers.append(trajectory)
        self.figures.append(metrics)
        self.spent.add(trajectory, metrics)


class Ledger(Protocol):
    """Decides whether a request may start, and books what it cost."""

    async def admit(self, ticket: Ticket, credential: str | None) -> None:
        """Check the key and reserve ``ticket.cap``; sets ``ticket.key``.

        Raises:
            ApiError: no such key (401), not allowed (403), or over a limit (429).
        """
        ...

    async def settle(self, ticket: Ticket) -> None:
        """Give back what was reserved and not spent. Called exactly once per admitted ticket."""
        ...

    async def require(self, credential: str | None, scope: str) -> None:
        """Let only keys with this scope pass.

        Raises:
            ApiError: 401 or 403.
        """
        ...

    async def feedback(self, credential: str | None, ticket: str, rating: str) -> None:
        """Write down what a client says of an answer.

        Raises:
            ApiError: 401, or 404 where no such answer went to this key.
        """
        ...

    async def close(self) -> None: ...


class Observer(Protocol):
    """Told of every request that was admitted; must not block."""

    def began(self, ticket: Ticket) -> None: ...

    def ended(self, ticket: Ticket) -> None: ...

    def refused(self, status: int, code: str | None) -> None:
        """A request that was not admitted; ``code`` as in the API's error."""
        ...


class OpenLedger:
    """No keys and no budgets: only a bound on how many requests run at once."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._running = 0

    async def admit(self, ticket: Ticket, credential: str | None) -> None:
        if self._running >= self._most:
            raise overloaded(f"{self._running} requests are running: try again later")
        self._running += 1

    async def settle(self, ticket: Ticket) -> None:
        self._running -= 1

    async def require(self, credential: str | None, scope: str) -> None:
        """There are no keys here: nothing is asked for."""

    async def feedback(self, credential: str | None, ticket: str, rating: str) -> None:
        raise ApiError("feedback needs a store, which this gateway has not", status=404)

    async def close(self) -> None:
        pass


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def began(self, ticket: Ticket) -> None:
        for observer in self._observers:
            observer.began(ticket)

    def ended(self, ticket: Ticket) -> None:
        for observer in self._observers:
            observer.ended(ticket)

    def refused(self, status: int, code: str | None) -> None:
        for observer in self._observers:
            observer.refused(status, code)
