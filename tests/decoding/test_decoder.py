"""The async decoder: a simulated engine in virtual time, and a real server on loopback."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from anabranch.decoding import Answer, BlockOpened, Token, decode, decode_many, make_setup, run
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.prefix_cache import PrefixCache
from anabranch.engines.simulated import ScriptedReply, SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import EngineError, UsageError
from anabranch.records import Limits

PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {
    "Q": PLAN,
    "<Thread>1:": "A" * 30 + "</Thread>",
    "<Thread>2:": "B" * 10 + "</Thread>",
    "</Parallel>": "r</think>\\boxed{3}",
}
BLOCK = 8
FULL = (
    f"{PLAN}<Thread>1:{'A' * 30}</Thread><Thread>2:{'B' * 10}</Thread></Parallel>"
    "r</think>\\boxed{3}"
)


def reply(script, prompt):
    """What a script says to a prompt; anything to a client that tries the server out."""
    return next((text for end, text in script.items() if prompt.endswith(end)), "hello there")


def made(engine, **changes):
    changes.setdefault("dialect", "parason:compact")
    setup = make_setup("Q", engine, id="t", **changes)
    return replace(setup, prompt="Q", prompt_ids=tuple(engine.tokenizer.encode("Q")))


def simulated(script=SCRIPT, **changes):
    return SimulatedEngine(script, decode_rate=100.0, **changes)


def test_time_to_answer_is_the_critical_path():
    engine = simulated()
    done = run_virtual(run(made(engine), engine))
    assert done.text == FULL
    path = len(PLAN) + 30 + len("</Thread>") + len(SCRIPT["</Parallel>"]) + 1
    assert done.seconds == pytest.approx(path / 100, abs=0.05)
    assert engine.running == 0 and engine.peak == 2


def test_siblings_share_their_prefix_and_one_affinity_key():
    engine = simulated(cache=PrefixCache(BLOCK))
    done = run_virtual(run(made(engine), engine))
    branches = [r for r in done.requests if r.kind == "branch"]
    blocks = (1 + len(PLAN)) // BLOCK
    assert all(r.cached_tokens >= blocks * BLOCK for r in branches)
    assert len({served.call.affinity for served in engine.served}) == 1


def test_events_come_in_order_and_end_with_the_answer():
    engine = simulated()

    async def collect():
        return [event async for event in decode(made(engine), engine)]

    events = run_virtual(collect())
    assert isinstance(events[-1], Answer) and events[-1].trajectory.text == FULL
    kinds = [type(event) for event in events]
    assert kinds.index(Token) < kinds.index(BlockOpened)
    written = "".join(e.text for e in events if isinstance(e, Token) and e.branch == 1)
    assert written == "A" * 30 + "</Thread>"


def test_leaving_early_aborts_every_call():
    engine = simulated()

    async def leave():
        async with aclosing(decode(made(engine), engine)) as events:
            async for event in events:
                if isinstance(event, Token) and event.kind == "branch":
                    break
        return engine.running, len(asyncio.all_tasks())

    running, tasks = run_virtual(leave())
    assert running == 0 and engine.cancelled == 2 and tasks == 1


def test_cancelling_the_task_aborts_every_call():
    engine = simulated()

    async def cancel():
        task = asyncio.create_task(run(made(engine), engine))
        await asyncio.sleep((len(PLAN) + 5) / 100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return engine.running

    assert run_virtual(cancel()) == 0
    assert engine.cancelled == 2


def test_a_deadline_is_kept_and_answered():
    engine = simulated({**SCRIPT, "</think>": "\\boxed{3}"})
    limits = Limits(deadline=(len(PLAN) + 20) / 100, answer_reserve=20)
    done = run_virtual(run(made(engine, limits=limits), engine))
    assert done.outcome == "answered" and done.text.endswith("</think>\\boxed{3}")
    assert done.seconds < limits.deadline + 0.2
    assert [b.outcome for b in done.blocks[0].branches] == ["truncated", "truncated"] or (
        done.blocks[0].branches[1].outcome == "closed"
    )


def test_a_branch_that_breaks_is_tried_again():
    broken = [ScriptedReply("A" * 30, error=EngineError("reset", retryable=True), after=4)]

    def script(call):
        text = engine.tokenizer.decode(call.ids)
        if text.endswith("<Thread>1:") and broken:
            return broken.pop()
        return reply(SCRIPT, text)

    engine = simulated(script)
    done = run_virtual(run(made(engine), engine))
    assert done.text == FULL and done.sampled_tokens == engine.sampled


def test_a_defect_in_an_engine_is_not_taken_for_an_outage():
    class Broken(SimulatedEngine):
        async def generate(self, call):
            raise ZeroDivisionError("a defect")
            yield

    engine = Broken(SCRIPT)
    with pytest.raises(ZeroDivisionError):
        run_virtual(run(made(engine), engine))


def test_many_trajectories_at_once_keep_their_order_and_their_bound():
    engine = simulated()
    done = run_virtual(decode_many((made(engine) for _ in range(20)), engine, concurrency=5))
    assert [t.text for t in done] == [FULL] * 20
    assert engine.peak <= 10


def test_the_same_record_over_http():
    tokenizer = CharTokenizer()

    def script(request):
        return reply(SCRIPT, request.text)

    async def both():
        async with LoopbackServer(tokenizer, script) as server:
            async with CompletionsEngine(server.url, tokenizer=tokenizer) as engine:
                over_http = await run(made(engine), engine)
            assert await server.settled()
        local = SimulatedEngine(SCRIPT, tokenizer)
        return over_http, await run(made(local), local)

    over_http, local = asyncio.run(both())
    assert over_http.text == local.text == FULL
    assert [s.ids for s in over_http.segments] == [s.ids for s in local.segments]
    assert not over_http.retokenized


def test_cancelling_over_http_closes_every_connection():
    # sglang#36333: a server decoded on after its client had gone.
    tokenizer = CharTokenizer()
    endless = {**SCRIPT, "<Thread>1:": "A" * 20_000, "<Thread>2:": "B" * 20_000}

    def script(request):
        return reply(endless, request.text)

    async def go():
        async with (
            LoopbackServer(tokenizer, script, manners=Manners(pace=0.001)) as server,
            CompletionsEngine(server.url, tokenizer=tokenizer) as engine,
        ):
            async with aclosing(decode(made(engine), engine)) as events:
                async for event in events:
                    if isinstance(event, Token) and event.kind == "branch":
                        break
            assert await server.settled(5.0), "a connection stayed open"
            return [served.outcome for served in server.served]

    assert asyncio.run(go()).count("left") == 2


def test_an_error_in_one_of_many_is_that_error_and_ends_the_others():
    def script(call):
        if engine.sampled > 200:
            raise UsageError("no reply")
        return reply(SCRIPT, engine.tokenizer.decode(call.ids))

    engine = simulated(script)
    with pytest.raises(UsageError, match="no reply"):
        run_virtual(decode_many((made(engine) for _ in range(20)), engine, concurrency=5))
    assert engine.running == 0
