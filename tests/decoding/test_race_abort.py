"""Losers of a race leave a real server at once."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.decoding import Decided, make_policy, make_setup, run
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.symbols import CharTokenizer

TOKENIZER = CharTokenizer()
TRIALS = "<Trial>1:a</Trial><Trial>2:b</Trial><Trial>3:c</Trial>"
REPLIES = {
    "<Thread>1:": "a" * 400 + "</Thread>",
    "<Thread>2:": "\\boxed{3}</Thread>",
    "<Thread>3:": "cccc\\boxed{3}" + "c" * 400 + "</Thread>",
    "</Parallel>": "</think>\\boxed{3}",
}


def reply(request):
    fork = f"<think><Parallel><Outlines>{TRIALS}</Outlines>"
    return next((text for end, text in REPLIES.items() if request.text.endswith(end)), fork)


@pytest.mark.parametrize("policy", ["first_conclusive", "deadline:0.3s", "deadline:30t"])
def test_losers_leave_the_server_within_a_tenth_of_a_second(policy):
    async def main():
        manners = Manners(pace=0.005)
        server = LoopbackServer(TOKENIZER, reply, manners=manners)
        waits = []

        def listen(event):
            if isinstance(event, Decided):
                gone = sum(one.outcome == "left" for one in server.served) + len(event.losers)
                waits.append(
                    asyncio.ensure_future(
                        server.until(
                            lambda: sum(s.outcome == "left" for s in server.served) >= gone, 0.1
                        )
                    )
                )

        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            setup = make_setup("p", engine, dialect="parason:compact", policy=make_policy(policy))
            done = await run(setup, engine, listen)
            assert await server.settled()
            assert all(await asyncio.gather(*waits)) and waits
        return done

    done = asyncio.run(main())
    outcomes = [b.outcome for b in done.blocks[0].branches]
    assert done.outcome == "answered" and outcomes == ["cancelled", "closed", "cancelled"]
