"""A fleet of two real servers on loopback, one of which is killed in the middle of a branch."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from anabranch.decoding import Token, decode, make_setup
from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine, Retries, Timeouts
from anabranch.engines.failures import UnreachableError
from anabranch.engines.fleet import FleetEngine, Health
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.symbols import CharTokenizer

TOKENIZER = CharTokenizer()
PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {
    "Q": PLAN,
    "<Thread>1:": "A" * 600 + "</Thread>",
    "<Thread>2:": "B" * 600 + "</Thread>",
    "</Parallel>": "r</think>\\boxed{3}",
}
FULL = (
    f"{PLAN}<Thread>1:{'A' * 600}</Thread><Thread>2:{'B' * 600}</Thread></Parallel>"
    "r</think>\\boxed{3}"
)


def server(port: int = 0) -> LoopbackServer:
    def script(request):
        endings = (reply for end, reply in SCRIPT.items() if request.text.endswith(end))
        return next(endings, "hello there")

    return LoopbackServer(TOKENIZER, script, manners=Manners(pace=0.002), port=port)


def replica(one: LoopbackServer) -> CompletionsEngine:
    return CompletionsEngine(
        one.url, tokenizer=TOKENIZER, retries=Retries(attempts=0), timeouts=Timeouts(connect=1)
    )


def setup(engine):
    made = make_setup("Q", engine, dialect="parason:compact", id="t")
    return replace(made, prompt="Q", prompt_ids=tuple(TOKENIZER.encode("Q")))


def running(one: LoopbackServer) -> int:
    return sum(request.outcome == "running" for request in one.served)


def test_a_killed_server_costs_one_retry_of_each_of_its_branches_elsewhere():
    async def main():
        first, second = server(), server()
        async with first, second:
            fleet = FleetEngine(
                [replica(first), replica(second)], routing="spread", health=Health(backoff=60)
            )
            async with fleet:
                done, killed = None, False
                async for event in decode(setup(fleet), fleet):
                    branch = isinstance(event, Token) and event.kind == "branch"
                    if branch and not killed and running(first) and running(second):
                        killed = True
                        await first._runner.cleanup()
                    done = event
                seen = fleet.statistics()
            assert killed
            assert await second.settled()
            tasks = len(asyncio.all_tasks())
        return done.trajectory, seen, tasks

    done, seen, tasks = asyncio.run(main())
    assert done.text == FULL and done.outcome == "answered"
    branches = [(r.branch, r.attempt, r.finish) for r in done.requests if r.kind == "branch"]
    assert len(branches) == 3
    assert [one[1:] for one in branches[:2]].count((0, "error")) == 1
    assert branches[2][1:] == (1, "stop")
    lost, kept = seen.replicas
    assert not lost.healthy and lost.failed == 1 and "broke the connection" in lost.last_error
    assert kept.healthy and kept.failed == 0
    assert seen.broken == 1
    assert tasks < 12  # nothing but the server's own


def test_a_server_that_is_not_there_is_found_when_it_comes():
    async def main():
        async with server() as first:
            gone = server()
            async with gone:
                port = gone.port = int(gone.url.rsplit(":", 1)[1])
            fleet = FleetEngine(
                [replica(first), replica(gone)],
                limit=1,
                health=Health(backoff=0.05, longest=0.05),
            )
            async with fleet:
                assert [one.healthy for one in fleet.statistics().replicas] == [True, False]
                call = Call(tuple(TOKENIZER.encode("<Thread>1:")), ("</Thread>",), 1000)
                busy = fleet.generate(call)
                await anext(busy)
                async with server(port) as back:
                    # The only slot is taken: this call waits until the other replica is there.
                    text = "".join([chunk.text async for chunk in fleet.generate(call)])
                    served = len(back.served)
                await busy.aclose()
        return text, served

    text, served = asyncio.run(main())
    assert text == "A" * 600 + "</Thread>"
    assert served == 3  # two requests of its discovery, and the call


def test_a_fleet_of_which_none_is_there_says_so():
    async def main():
        async with server() as one:
            engines = [replica(one), replica(one)]
        async with FleetEngine(engines):
            pass

    before = threading.active_count()
    with pytest.raises(UnreachableError, match="is the server running"):
        asyncio.run(main())
    assert threading.active_count() == before
