"""What the trials say of a server that can, that cannot, and that only seems to."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.engines import abilities
from anabranch.engines.abilities import examine
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.prefix_cache import PrefixCache
from anabranch.engines.simulated import SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.virtual_time import run_virtual

TOKENIZER = CharTokenizer()


def script(request):
    """Draws depend on the seed; a prompt that is gone on from is gone on from for long."""
    if request.body.get("temperature"):
        return f"{request.body['seed']:03d}" * 8
    return "0123456789" * 200


def found(manners=None, server_kind=LoopbackServer, replies=script):
    async def main():
        manner = manners or Manners(pace=0.0005)
        server = server_kind(TOKENIZER, replies, manners=manner)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            return {one.name: one for one in await examine(engine)}, server

    return asyncio.run(main())


def test_what_a_server_can_do_is_seen():
    seen, server = found()
    assert {name for name, one in seen.items() if one.seen} == {
        "seeds honoured",
        "siblings share a prefix",
        "load metrics",
        "prefix metrics",
        "stop ids",
        "tokenise endpoint",
        "aborts honoured",
    }
    assert seen["grammar"].seen is False
    assert "behind 2 of 8 tokens" in seen["stop ids"].detail
    assert server.running == 0 and server.served[-1].outcome == "left"


def test_what_it_cannot_do_is_seen_too():
    manners = Manners(pace=0.0005, stop_ids=False, tokenise=False)
    seen, _ = found(manners, replies="0123456789" * 200)
    assert seen["stop ids"].seen is False
    assert seen["tokenise endpoint"].seen is False and "404" in seen["tokenise endpoint"].detail
    assert (seen["seeds honoured"].seen, seen["seeds honoured"].detail) == (
        None,
        "every seed gave the same output",
    )


def test_seeds_that_are_ignored_are_seen():
    drawn = iter(range(100, 200))
    seen, _ = found(replies=lambda request: f"{next(drawn)}" * 20)
    assert seen["seeds honoured"].seen is False


class Deaf(LoopbackServer):
    """Goes on with what was left, as far as its metrics tell."""

    @property
    def running(self):
        long = [one for one in self.served if one.body["max_tokens"] > 100]
        return len(long)


def test_a_server_that_goes_on_after_an_abort_is_seen(monkeypatch):
    """Restates sglang#36333."""
    monkeypatch.setattr(abilities, "_DROPPED", 0.1)
    seen, _ = found(server_kind=Deaf)
    assert seen["aborts honoured"].seen is False
    assert "still running" in seen["aborts honoured"].detail


def test_an_answer_that_ends_by_itself_says_nothing_of_aborts():
    seen, _ = found(Manners(window=64), replies="0123456789" * 200)
    one = seen["aborts honoured"]
    assert one.seen is None or one.seen, one


@pytest.mark.parametrize(("cache", "shared"), [(PrefixCache(), True), (None, None)])
def test_an_engine_without_a_server_is_tried_by_its_calls_alone(cache, shared):
    engine = SimulatedEngine(lambda call: "x" * 20, cache=cache)
    names = {one.name: one.seen for one in run_virtual(examine(engine))}
    assert set(names) == {"seeds honoured", "siblings share a prefix", "grammar"}
    assert names["siblings share a prefix"] is shared
