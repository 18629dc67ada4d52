"""A fifth of all answers broken on their way: every trajectory ends, every token is booked once."""

from __future__ import annotations

import asyncio

import pytest
from chaos_books import check_books, figures, problems, run_through

from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.loopback.chaos import KINDS, ChaosProxy
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply

TOKENIZER = load_tokenizer(bundled_model())


def script(request):
    try:
        return perfect_reply(request.text)
    except ValueError:  # a line that chaos has bent
        return "</think>\\boxed{0}" if "<think>" in request.text else "12"


def chaos(chosen, *, kinds=KINDS, rate=0.2, seed=0, window=None, pace=0.0):
    async def main():
        server = LoopbackServer(TOKENIZER, script, manners=Manners(pace=pace))
        async with server, ChaosProxy(server.url, seed=seed, kinds=kinds) as proxy:
            proxy.window = window
            done, closed, tasks = await run_through(proxy, TOKENIZER, chosen, rate=rate)
            idle = await server.settled(1.0)
            return proxy, done, (closed, idle, tasks)

    return asyncio.run(main())


def test_everything_at_once():
    proxy, done, (closed, idle, tasks) = chaos(problems(20))
    check_books(proxy, done)
    seen = figures(proxy, done)
    assert closed and idle and tasks == 0, seen
    assert 0.1 < sum(seen["broken"].values()) / seen["requests"] < 0.3
    assert seen["outcomes"]["answered"] >= len(done) // 2, seen


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_alone(kind):
    proxy, done, (closed, idle, tasks) = chaos(problems(4), kinds=(kind,), rate=0.3, seed=3)
    check_books(proxy, done)
    seen = figures(proxy, done)
    assert closed and idle and tasks == 0, seen
    assert seen["broken"][kind] > 0
    if kind in ("busy", "type", "refuse", "double", "joined", "split"):
        lost = [t for t in done if t.outcome != "answered"]
        assert len(lost) <= (0 if kind in ("double", "joined", "split") else 1), seen


def test_a_window_that_is_smaller_than_promised():
    proxy, done, (closed, idle, tasks) = chaos(problems(8), rate=0.0, window=200)
    check_books(proxy, done)
    seen = figures(proxy, done)
    assert closed and idle and tasks == 0, seen
    assert {t.outcome for t in done} <= {"answered", "context_exhausted", "truncated"}, seen
    assert all(len(p.body["prompt"]) + len(p.client_ids) <= 200 for p in proxy.book)
