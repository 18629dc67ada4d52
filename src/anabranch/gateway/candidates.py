"""A candidate beside what serves: recorded or live requests asked of it too, and compared.

A candidate is any endpoint that speaks the API, such as a second gateway with another mode, policy
or model. **Replay** asks it, and a baseline, a file of requests. **Shadow** asks it a share of the
live requests; callers get nothing of it, wait for nothing, and pay nothing: the candidate has keys
and budgets of its own, and while it is busy requests pass it by. Rows of a comparison hold figures
and whether the answers are alike, no text.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from anabranch.engines.transport import base_url
from anabranch.gateway.tickets import Ticket
from anabranch.jsonl import dump_line

ROUTES = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class Side:
    """What one endpoint did with a request.

    Attributes:
        status: of its response; 0 where it was not reached.
        outcome: of the answer, or ``refused``, ``failed``, ``unreachable``.
        seconds: until the answer was whole.
        tokens, path: sampled, and those on the critical path (all, where it does not say).
        answer: what it says, to be compared and not kept.
    """

    status: int
    outcome: str
    seconds: float
    tokens: int = 0
    path: int = 0
    answer: str = ""

    def row(self) -> dict[str, Any]:
        """Its figures."""
        return {name: value for name, value in asdict(self).items() if name != "answer"}


class Candidate:
    """An endpoint that requests are asked of; run it with ``async with``.

    Args:
        url: of the endpoint.
        api_key: its own.
        timeout: seconds for one answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.url = base_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Candidate:
        self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, route: str, body: Mapping[str, Any]) -> Side:
        """The side of a request; it is asked whole, and for the model that the endpoint has."""
        assert self._session is not None
        asked = {k: v for k, v in body.items() if k not in ("stream", "stream_options", "model")}
        began = time.monotonic()
        try:
            async with self._session.post(self.url + route, json=asked) as response:
                data = await response.json(content_type=None)
                return _side(response.status, data, time.monotonic() - began)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return Side(0, "unreachable", time.monotonic() - began)


def _side(status: int, data: Any, seconds: float) -> Side:
    if status != 200 or not isinstance(data, dict):
        return Side(status, "refused" if 400 <= status < 500 else "failed", seconds)
    usage = data.get("usage") or {}
    ours = (data.get("anabranch") or {}).get("choices") or []
    choices = data.get("choices") or [{}]
    tokens = int(usage.get("completion_tokens") or 0)
    path = (usage.get("anabranch") or {}).get("critical_path_tokens")
    ended = {"length": "truncated"}.get(choices[0].get("finish_reason"), "answered")
    return Side(
        status,
        str(ours[0]["outcome"]) if ours else ended,
        seconds,
        tokens,
        tokens if path is None else int(path),
        "\n".join(_text(choice) for choice in choices),
    )


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    return " ".join(str(text or "").split())


def comparison(name: str, baseline: Side, candidate: Side) -> dict[str, Any]:
    """The row of a request that both were asked."""
    alike = baseline.answer == candidate.answer if baseline.answer and candidate.answer else None
    return {
        "id": name,
        "baseline": baseline.row(),
        "candidate": candidate.row(),
        "same_answer": alike,
    }


async def replay(
    requests: Iterable[tuple[str, str, Mapping[str, Any]]],
    baseline: Candidate,
    candidate: Candidate,
    *,
    concurrency: int = 4,
) -> AsyncIterator[dict[str, Any]]:
    """Rows of requests, in order; each is asked of both, in turn first of one and of the other.

    Args:
        requests: id, route and body of each.
        baseline, candidate: opened.
        concurrency: requests at once.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, name: str, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with slots:
            first, second = (baseline, candidate) if number % 2 == 0 else (candidate, baseline)
            one, other = await first.ask(route, body), await second.ask(route, body)
            sides = (one, other) if number % 2 == 0 else (other, one)
            return comparison(name, *sides)

    tasks = [asyncio.create_task(one(n, *request)) for n, request in enumerate(requests)]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Shadow:
    """Asks a candidate a share of the live requests; an observer of the gateway.

    Args:
        candidate: opened and closed by the caller.
        share: of the requests, from 0 to 1; the same request ids are always chosen.
        output: JSON Lines of comparisons, appended to.
        most: requests that it works on at once; more pass it by and are counted.

    Attributes:
        asked, passed: requests that it was asked, and that passed it by.
    """

    def __init__(self, candidate: Candidate, share: float, output: Path, *, most: int = 8) -> None:
        self.candidate, self.share, self.output, self.most = candidate, share, output, most
        self.asked = self.passed = 0
        self._ends: dict[str, asyncio.Future[Side]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, ticket: Ticket, body: Mapping[str, Any]) -> None:
        """A request that was admitted."""
        draw = int.from_bytes(hashlib.sha256(ticket.id.encode()).digest()[:4]) / 2**32
        if draw >= self.share:
            return
        if len(self._tasks) >= self.most:
            self.passed += 1
            return
        self.asked += 1
        self._ends[ticket.id] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._compare(ticket, dict(body)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, ticket: Ticket, body: dict[str, Any]) -> None:
        ended = self._ends[ticket.id]
        try:
            theirs = await self.candidate.ask(ticket.route, body)
            row = comparison(ticket.id, await ended, theirs)
        finally:
            self._ends.pop(ticket.id, None)
        # One write of one line: whole, whatever else appends to the file.
        with self.output.open("a", encoding="ascii", newline="\n") as handle:
            handle.write(dump_line(row) + "\n")

    def began(self, ticket: Ticket) -> None:
        """Offered with its body instead."""

    def refused(self, status: int, code: str | None) -> None:
        """What is not admitted here is not asked elsewhere."""

    def ended(self, ticket: Ticket) -> None:
        """What became of a request here."""
        ended = self._ends.get(ticket.id)
        if ended is None or ended.done():
            return
        spent = ticket.spent
        answers = "\n".join(" ".join(_answer(one.text).split()) for one in ticket.answers)
        side = Side(
            ticket.status,
            ticket.outcome,
            ticket.seconds or 0.0,
            spent.sampled,
            spent.path,
            answers if ticket.route == ROUTES[0] else "",
        )
        ended.set_result(side)

    async def close(self) -> None:
        """Wait a moment for what is under way, then let it go."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _answer(text: str) -> str:
    """What stands behind the reasoning."""
    return text.rpartition("</think>")[2] if "</think>" in text else text
