"""Runs fork-join through a proxy that breaks answers, and checks the client's books against it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

from anabranch.decoding import decode_many
from anabranch.engines.completions import CompletionsEngine, Retries, Timeouts
from anabranch.engines.loopback.chaos import BEFORE
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import FIRST_SUCCESS, with_limits
from anabranch.lab.families import draw_distinct
from anabranch.lab.sizes import PUZZLE_SIZE

OUTCOMES = {"answered", "truncated", "context_exhausted", "protocol_error", "failed"}
#: After these the same request may be sent again: nothing had been generated for the client.
SAFE = {"busy", "type", "refuse"}


def problems(count, seed=41):
    half = count // 2
    chosen = [("chains", (k, 5)) for k in (2, 4, 6)]
    drawn = [
        problem
        for number in range(half)
        for problem in draw_distinct(seed + number, *chosen[number % 3], 1)
    ]
    return drawn + draw_distinct(seed, "puzzle", PUZZLE_SIZE, count - half)


def client_tasks():
    """Tasks besides the caller's own and those in which the test's servers hold connections."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return len([name for name in names if not name.startswith("RequestHandler.")]) - 1


async def run_through(proxy, tokenizer, chosen, *, rate, concurrency=8, between=0.4):
    """Solves problems with both policies while a share of all answers is broken."""
    timeouts = Timeouts(connect=2, first=20, between=between)
    engine = CompletionsEngine(
        proxy.url,
        tokenizer=tokenizer,
        retries=Retries(attempts=2, backoff=0.01),
        timeouts=timeouts,
    )
    async with engine:
        proxy.book.clear()
        proxy.rate = rate
        setups = [
            with_limits(
                lab_setup(
                    one, "parallel", tokenizer, FIRST_SUCCESS if one.family == "puzzle" else None
                ),
                engine,
                None,
            )
            for one in chosen
        ]
        # The same problem with draws is another trajectory, and its log-probs are asked for.
        setups += [replace(one, id=one.id + "'", logprobs=True) for one in setups]
        done = await decode_many(setups, engine, concurrency=concurrency)
    closed = await proxy.settled(1.0)
    return done, closed, client_tasks()


def check_books(proxy, done):
    """Every token is in the server's book, once; nothing was sent again that was not safe."""
    sent = defaultdict(list)
    for passed in proxy.book:
        sent[passed.key].append(passed)
    for same in sent.values():
        for earlier in same[:-1]:
            assert earlier.havoc in SAFE and not earlier.client_ids, earlier
        assert len(same) <= 3
    by_call = {(tuple(passed.body["prompt"]), passed.body["seed"]): passed for passed in proxy.book}
    used = set()
    for trajectory in done:
        assert trajectory.outcome in OUTCOMES
        for request in trajectory.requests:
            ids = trajectory.segments[request.output].ids
            if not ids:
                continue
            call = (trajectory.ids_of(request.context), request.seed)
            assert call not in used, "two records of one request"
            used.add(call)
            passed = by_call[call]
            assert list(ids) == passed.client_ids[: len(ids)], (request, passed)
            counted = passed.usage.get("completion_tokens")
            if request.finish in ("stop", "eos", "length") and passed.outcome == "done":
                assert counted == len(ids) == len(passed.server_ids)
            if request.finish != "error":
                assert passed.havoc not in BEFORE


def figures(proxy, done):
    """What happened, for messages."""
    broken = [passed.havoc for passed in proxy.book if passed.havoc]
    return {
        "requests": len(proxy.book),
        "broken": {kind: broken.count(kind) for kind in sorted(set(broken))},
        "outcomes": {kind: sum(t.outcome == kind for t in done) for kind in OUTCOMES},
    }
