"""Admission by keys and budgets of the store, and the audit of every decision.

What a request may cost at most is reserved before the engine sees it and settled once, whatever
ended it. A database that is gone refuses new requests (503) and does not lose what running ones
cost: their settling is tried again until it succeeds or their lease books it in full.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from anabranch.gateway.errors import ApiError
from anabranch.gateway.store.audit import Content, append, digest, holder, keep
from anabranch.gateway.store.budgets import (
    LEASE,
    Budget,
    Budgets,
    Over,
    reclaim,
    renew,
    reserve,
    settle,
)
from anabranch.gateway.store.database import Database, StoreError
from anabranch.gateway.store.keys import Key, find
from anabranch.gateway.tickets import OpenLedger, Ticket

#: How much of a request's text is kept: nothing, or all of it.
Contents = Literal["metadata", "full"]


@dataclass(frozen=True)
class Prices:
    """Money for a million tokens."""

    prompt: float = 0.0
    sampled: float = 0.0

    def of(self, prompt: int, sampled: int) -> float:
        return (prompt * self.prompt + sampled * self.sampled) / 1e6


class StoreLedger:
    """A :class:`anabranch.gateway.tickets.Ledger` on a database.

    Args:
        database: migrated.
        most: requests of this process at once.
        need_key: refuse requests without a key; else they are let in as nobody's.
        prices: for budgets of money.
        contents: how much of the texts is kept.
        retry_seconds: between attempts to settle while the database is away.
    """

    def __init__(
        self,
        database: Database,
        *,
        most: int = 1024,
        need_key: bool = True,
        prices: Prices | None = None,
        contents: Contents = "metadata",
        retry_seconds: float = 1.0,
    ) -> None:
        self.database = database
        self.holder = uuid.uuid4().hex
        self._open = OpenLedger(most)
        self._need_key = need_key
        self._prices = prices or Prices()
        self._contents: Contents = contents
        self._retry = retry_seconds
        self._tending: asyncio.Task[None] | None = None
        self._unsettled: set[asyncio.Task[None]] = set()

    async def admit(self, ticket: Ticket, credential: str | None) -> None:
        await self._open.admit(ticket, credential)
        try:
            await self._admit(ticket, credential)
        except BaseException:
            await self._open.settle(ticket)
            raise

    async def _admit(self, ticket: Ticket, credential: str | None) -> None:
        if self._tending is None:
            self._tending = asyncio.ensure_future(self._tend())

        def work(connection: Connection) -> ApiError | None:
            refusal = self._decide(connection, ticket, credential)
            if refusal is not None:
                data = {**_facts(ticket), "why": str(refusal), "status": refusal.status}
                append(connection, [(ticket.id, "refused", data)])
            return refusal

        try:
            refusal = await self.database.do(work)
        except StoreError:
            raise _away() from None
        if refusal is not None:
            raise refusal

    def _decide(
        self, connection: Connection, ticket: Ticket, credential: str | None
    ) -> ApiError | None:
        key = find(connection, credential)
        if (denied := self._denied(key, credential)) is not None:
            return denied
        ticket.key = key.id if key else ""
        # The reservation is undone on its own when one budget of several says no.
        inner = connection.begin_nested()
        try:
            reserve(connection, ticket.id, self.holder, ticket.key, self._most(ticket))
        except Over as over:
            inner.rollback()
            return ApiError(
                str(over), status=429, kind="insufficient_quota", code="budget_exceeded",
                retry_after=over.retry_after,
            )  # fmt: skip
        except LookupError as unknown:
            inner.rollback()
            return ApiError(
                f"max_completion_tokens: is needed, since a budget of {unknown.args[0]} applies",
                param="max_completion_tokens", code="cap_required",
            )  # fmt: skip
        inner.commit()
        append(connection, [(ticket.id, "admitted", _facts(ticket))])
        return None

    def _denied(self, key: Key | None, credential: str | None) -> ApiError | None:
        if key is None and not self._need_key and not credential:
            return None
        return _lacking(key, credential, "infer", "ask for answers")

    async def require(self, credential: str | None, scope: str) -> None:
        try:
            key = await self.database.do(lambda connection: find(connection, credential))
        except StoreError:
            raise _away() from None
        if (lack := _lacking(key, credential, scope, "see this")) is not None:
            raise lack

    async def feedback(self, credential: str | None, ticket: str, rating: str) -> None:
        def work(connection: Connection) -> ApiError | None:
            key = find(connection, credential)
            if (denied := self._denied(key, credential)) is not None:
                return denied
            mine = key.id if key else ""
            if holder(connection, ticket) != mine:
                # The same answer whether it is another's or nobody's: ids tell nothing.
                return ApiError("no such answer went to this key", status=404, param="id")
            append(connection, [(ticket, "feedback", {"key": mine, "rating": rating})])
            return None

        try:
            problem = await self.database.do(work)
        except StoreError:
            raise _away() from None
        if problem is not None:
            raise problem

    async def budgets(self) -> list[Budget]:
        """All budgets, and where they stand.

        Raises:
            ApiError: the store is away.
        """
        try:
            return await asyncio.to_thread(Budgets(self.database).list)
        except StoreError:
            raise _away() from None

    def _most(self, ticket: Ticket) -> dict[str, float | None]:
        cap = ticket.cap
        priced = self._prices.prompt or self._prices.sampled
        money = None if cap is None else self._prices.of(ticket.prompt_tokens, cap)
        return {
            "tokens": cap,
            "money": money if priced else 0.0,
            "requests": 1.0,
            "concurrency": 1.0,
        }

    async def settle(self, ticket: Ticket) -> None:
        def work(connection: Connection) -> None:
            spent = ticket.spent
            cost = self._prices.of(spent.prompt, spent.sampled)
            amounts = {"tokens": float(spent.sampled), "money": cost, "requests": 1.0,
                       "concurrency": 0.0}  # fmt: skip
            settle(connection, ticket.id, amounts)
            data = {**_facts(ticket), **_outcome(ticket), "cost": cost}
            if self._contents == "full":
                data["content"] = keep(connection, _content(ticket))
            append(connection, [(ticket.id, "ended", data)])

        await self._open.settle(ticket)
        try:
            await self.database.do(work)
        except StoreError:
            task = asyncio.ensure_future(self._settle_later(work))
            self._unsettled.add(task)
            task.add_done_callback(self._unsettled.discard)

    async def _settle_later(self, work: Any) -> None:
        """The database is away: try until it is back; a lease that runs out books it in full."""
        while True:
            await asyncio.sleep(self._retry)
            try:
                await self.database.do(work)
            except StoreError:
                continue
            return

    async def _tend(self) -> None:
        """Renew our leases, and book those of holders that died."""
        while True:
            try:
                await self.database.do(lambda connection: renew(connection, self.holder))
                await self.database.do(reclaim)
            except StoreError:
                pass  # the next round tries again, well within the lease
            await asyncio.sleep(LEASE / 4)

    async def close(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        if self._unsettled:
            await asyncio.wait(self._unsettled, timeout=10)
            for task in self._unsettled:
                task.cancel()


def _away() -> ApiError:
    return ApiError(
        "the store of keys and budgets is away: try again later",
        status=503, kind="api_error", code="store_unavailable", retry_after=5,
    )  # fmt: skip


def _lacking(key: Key | None, credential: str | None, scope: str, what: str) -> ApiError | None:
    """What keeps a key from passing; None where it has the scope."""
    if key is None:
        problem = "is not good" if credential else "is needed: send it as bearer token"
        return ApiError(
            f"an API key {problem}", status=401, kind="authentication_error",
            code="invalid_api_key",
        )  # fmt: skip
    if scope not in key.scopes:
        return ApiError(
            f"this key may not {what}", status=403, kind="permission_error", code="wrong_scope"
        )
    return None


def _facts(ticket: Ticket) -> dict[str, Any]:
    """Who asked for what, without a word of the text."""
    return {
        "key": ticket.key,
        "route": ticket.route,
        "model": ticket.model,
        "mode": ticket.mode,
        "dialect": ticket.dialect,
        "arm": ticket.arm,
        "stream": ticket.stream,
        "cap": ticket.cap,
        "prompt_tokens": ticket.prompt_tokens,
        "prompt_hash": digest(ticket.prompt_text),
        "subject_hash": digest(ticket.subject) if ticket.subject else "",
    }


def _outcome(ticket: Ticket) -> dict[str, Any]:
    spent = ticket.spent
    return {
        "outcome": ticket.outcome,
        "status": ticket.status,
        "error": ticket.error,
        "seconds": ticket.seconds,
        "first": ticket.first,
        "prompt": spent.prompt,
        "sampled": spent.sampled,
        "path": spent.path,
        "prefill": spent.prefill,
        "calls": spent.calls,
        "estimated": spent.estimated,
        "findings": sorted({f.code for t in ticket.answers for f in t.findings}),
        "logprob": _mean_logprob(ticket),
        "trajectories": [digest(t.to_json()) for t in ticket.answers],
    }


def _mean_logprob(ticket: Ticket) -> float | None:
    """Of all sampled tokens; None where log-probs were not asked of the engine."""
    segments = [s for t in ticket.answers for s in t.segments if s.origin == "sampled"]
    known = [one for s in segments for one in s.logprobs or ()]
    return sum(known) / len(known) if known else None


def _content(ticket: Ticket) -> Content:
    problem = next((t.problem.problem for t in ticket.answers if t.problem), "")
    data = {
        "prompt": ticket.prompt_text,
        "problem": problem,
        "answers": [t.text for t in ticket.answers],
    }
    return Content(ticket.id, ticket.subject, data)
