"""Decoding without an event loop of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.decoding import make_setup, solve
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.simulated import SimulatedEngine
from anabranch.engines.symbols import CharTokenizer

TOKENIZER = CharTokenizer()


def setup(engine):
    made = make_setup("Q", engine, dialect="parason:compact", id="t")
    return replace(made, prompt="Q", prompt_ids=tuple(TOKENIZER.encode("Q")))


def test_an_engine_over_http_is_closed_in_its_loop_and_opens_itself_again():
    with LoopbackServer(TOKENIZER, "r</think>\\boxed{3}") as server:
        engine = CompletionsEngine(server.url, tokenizer=TOKENIZER)
        for _ in range(2):
            assert solve(setup(engine), engine).text.endswith("\\boxed{3}")
            assert engine._transport._session is None
        # Two requests of its discovery, once, and one of each trajectory.
        assert len(server.served) == 4


@pytest.mark.parametrize("close", [True, False])
def test_an_engine_may_be_kept(close):
    class Kept(SimulatedEngine):
        closed = 0

        async def close(self):
            self.closed += 1

    engine = Kept(lambda _: "r</think>\\boxed{3}", TOKENIZER)
    assert solve(setup(engine), engine, close=close).outcome == "answered"
    assert engine.closed == close
