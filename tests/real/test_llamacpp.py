"""The bundled model on a real llama.cpp server: what it lacks is found, worked round or refused.

llama.cpp ignores `include_stop_str_in_output` and `stop_token_ids`, does not say which stop string
matched, gives token ids only among the log-probs, and its slots do not share a prefix.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from chaos_books import problems as draw

from anabranch.engines.abilities import examine
from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine
from anabranch.errors import ContextWindowError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.evaluate import FIRST_SUCCESS, solve_all
from anabranch.lab.families import draw_distinct
from anabranch.lab.sizes import PUZZLE_SIZE

pytestmark = pytest.mark.timeout(300)


def with_engine(server, work, **options):
    async def main():
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer, **options) as engine:
            return await work(engine)

    return asyncio.run(main())


async def collect(engine, call):
    chunks = [chunk async for chunk in engine.generate(call)]
    ids = tuple(token for chunk in chunks for token in chunk.ids)
    return ids, "".join(chunk.text for chunk in chunks), chunks[-1]


def prompt(server):
    problem = draw_distinct(31, "chains", (3, 5), 1)[0]
    return tuple(server.tokenizer.encode(f"<bos>{problem.text}[par]"))


def test_what_it_can_do_is_discovered(llama_server):
    async def work(engine):
        return engine.capabilities, {one.name: one for one in await examine(engine)}

    found, tried = with_engine(llama_server, work)
    assert found.ids_out and found.logprobs and not found.include_stop and found.window == 1024
    assert "token ids come only with log-probs" in found.notes[0]
    assert tried["stop ids"].seen is False
    # Whether siblings find their prefix depends on what its slots hold by chance.
    assert "tokens" in tried["siblings share a prefix"].detail
    assert tried["grammar"].detail == "gbnf"
    assert "with content" in tried["tokenise endpoint"].detail
    for name in ("seeds honoured", "aborts honoured", "load metrics", "tokenise endpoint"):
        assert tried[name].seen, tried[name]


def test_ids_come_also_where_no_log_probs_are_wanted(llama_server):
    async def work(engine):
        return await collect(engine, Call(prompt(llama_server), (), 20, logprobs=False))

    ids, text, last = with_engine(llama_server, work)
    assert len(ids) == 20 and last.finish == "length"
    assert text == llama_server.tokenizer.decode(ids)


def test_a_stop_string_that_it_cuts_off_is_put_back_once(llama_server):
    async def work(engine):
        free = await collect(engine, Call(prompt(llama_server), (), 60))
        stops = ("</Outlines>", "</Outlines><Thread>")
        return free, await collect(engine, Call(prompt(llama_server), stops, 60))

    free, (ids, text, last) = with_engine(llama_server, work)
    assert text == free[1][: free[1].index("</Outlines>") + len("</Outlines>")]
    assert ids == free[0][: len(ids)] and (last.finish, last.stop) == ("stop", "</Outlines>")


@pytest.mark.parametrize("form", ["sequential", "parallel"])
def test_both_families_are_solved(llama_server, form):
    chosen = [p for k in (2, 4, 6) for p in draw_distinct(31, "chains", (k, 5), 4)]
    chosen += draw_distinct(31, "puzzle", PUZZLE_SIZE, 6)
    solved = with_engine(llama_server, lambda e: solve_all(e, chosen, form, concurrency=4))
    assert sum(one.correct for one in solved) >= 0.95 * len(solved)
    assert all(one.forked == (form == "parallel") and one.well_formed for one in solved)
    assert not any(one.trajectory.retokenized for one in solved)


def test_losers_of_a_race_are_dropped(llama_server):
    chosen = draw_distinct(33, "puzzle", PUZZLE_SIZE, 8)
    solved = with_engine(
        llama_server,
        lambda e: solve_all(e, chosen, "parallel", policy=FIRST_SUCCESS, concurrency=1),
    )
    assert sum(one.correct for one in solved) >= 7
    assert any(b.outcome == "cancelled" for s in solved for b in s.trajectory.blocks[0].branches)

    async def idle():
        for _ in range(20):
            if llama_server.metric("llamacpp:requests_processing") == 0:
                return True
            await asyncio.sleep(0.05)
        return False

    assert asyncio.run(idle())


def test_the_window_is_kept(llama_server):
    async def work(engine):
        long = Call((5,) * 1020, (), 300)
        ids, _, last = await collect(engine, long)
        with pytest.raises(ContextWindowError, match="leaves no room"):
            await collect(engine, Call((5,) * 1024, (), 3))
        return ids, last.finish

    ids, finish = with_engine(llama_server, work)
    assert len(ids) <= 4 and finish in ("length", "eos")


def test_doctor_says_all_of_it_and_that_it_is_exact(llama_server, cli):
    engine = ("--engine", llama_server.url, "--tokenizer", bundled_model())
    found = json.loads(cli("doctor", *engine, "--exactness", "--dtype", "float32", "--json").stdout)
    assert found["exactness"]["exact"] and found["exactness"]["tokens"] > 200
    assert found["fork"]["outcome"] == "answered" and found["fork"]["blocks"] == 1


def test_a_hundred_branches_wait_for_four_slots(llama_server):
    chosen = draw(12, seed=51)
    solved = with_engine(llama_server, lambda e: solve_all(e, chosen, "parallel", concurrency=12))
    assert all(one.trajectory.outcome == "answered" for one in solved)
