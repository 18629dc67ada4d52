"""SGLang's native protocol, against a small server that speaks it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.decoding import Token, decode, make_setup, run
from anabranch.engines.base import Call, Engine
from anabranch.engines.loopback import Fault, LoopbackServer, Manners, Reply
from anabranch.engines.loopback.sglang import SGLangServer
from anabranch.engines.sglang import Retries, SGLangEngine
from anabranch.engines.sglang_reader import Deltas
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import ContextWindowError, EngineError, UsageError

TOKENIZER = CharTokenizer(["</", "Out", "lines", ">", "<think>"])
EOS = min(TOKENIZER.eos_ids)
STOP = "</Outlines>"
CALL = Call(ids=tuple(TOKENIZER.encode("<bos>prompt")), stop=(STOP,), max_tokens=50)

both = pytest.mark.parametrize("incremental", [False, True])


def ask(script, call=CALL, *, incremental=False, late=False, manners=None, **options):
    """The whole output of one call, and the server that gave it."""

    async def main():
        server = SGLangServer(TOKENIZER, "probe", manners=manners)
        server.incremental, server.late_scores = incremental, late
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER, **options) as engine:
            server.script = script if callable(script) else lambda _: script
            chunks = [chunk async for chunk in engine.generate(call)]
            assert await server.settled()
        scores = [chunk.logprobs for chunk in chunks if chunk.ids]
        whole = replace(
            chunks[-1],
            ids=sum((chunk.ids for chunk in chunks), ()),
            text="".join(chunk.text for chunk in chunks),
            logprobs=None if None in scores else sum(scores, ()),
        )
        assert [c.finish is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
        return whole, server

    return asyncio.run(main())


def event(ids, text="", total=None, finish=None, **meta):
    meta = {"completion_tokens": len(ids) if total is None else total, **meta}
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": finish, **meta}}


@both
def test_ids_text_logprobs_and_counts_come_back(incremental):
    call = replace(CALL, temperature=0.5, top_k=3, seed=7)
    output, server = ask("a plan</Outlines> never", call, incremental=incremental)
    assert output.text == "a plan</Outlines>"
    assert output.ids == tuple(TOKENIZER.encode("a plan</Outlines>"))
    assert output.logprobs == (-0.5,) * len(output.ids)
    assert (output.finish, output.stop) == ("stop", STOP)
    assert (output.prompt_tokens, output.cached_tokens) == (len(CALL.ids), 0)
    body = server.served[-1].body
    sampling = body["sampling_params"]
    assert body["input_ids"] == list(CALL.ids) and body["stream"] is True
    assert body["return_logprob"] is True
    assert (sampling["max_new_tokens"], sampling["sampling_seed"]) == (50, 7)
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.5, 1.0, 3)
    assert sampling["stop"] == [STOP]
    assert sampling["no_stop_trim"] is True and sampling["skip_special_tokens"] is False
    assert (sampling["repetition_penalty"], sampling["min_p"]) == (1.0, 0.0)
    assert server.aborts == []


@both
@pytest.mark.parametrize("per_event", [1, 3])
def test_the_end_the_cap_and_special_tokens(incremental, per_event):
    manners = Manners(tokens_per_event=per_event)
    output, _ = ask("done", incremental=incremental, manners=manners)
    assert (output.ids, output.finish) == ((*TOKENIZER.encode("done"), EOS), "eos")
    output, _ = ask("abcdef", replace(CALL, max_tokens=4), incremental=incremental, manners=manners)
    assert (output.text, output.finish) == ("abcd", "length")
    call = replace(CALL, stop=("<think>",))
    output, _ = ask("a<think>b", call, incremental=incremental, manners=manners)
    assert (output.text, output.stop) == ("a<think>", "<think>")


def test_logprobs_that_are_all_so_far_beside_ids_that_are_new():
    """Restates sglang#21583."""
    output, _ = ask("abcdef", incremental=True, late=True)
    assert output.logprobs == (-0.5,) * 7


def test_logprobs_only_when_wanted():
    output, server = ask("abc", replace(CALL, logprobs=False))
    assert output.logprobs is None
    assert server.served[-1].body["return_logprob"] is False


def test_what_the_server_can_do_is_found_out():
    async def main(renamed):
        server = SGLangServer(TOKENIZER, "probe", models=["folder/model"])
        server.renamed = renamed
        server.manners = Manners(window=1000)
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
            assert isinstance(engine, Engine)
            await engine.check()
            return engine.model, engine.capabilities

    for renamed in (True, False):
        model, found = asyncio.run(main(renamed))
        assert model == "folder/model"
        assert (found.ids_out, found.logprobs, found.include_stop) == (True, True, True)
        assert (found.prefix_cache, found.window, found.notes) == (True, 999, ())


def test_another_server_is_refused():
    async def main():
        async with LoopbackServer(TOKENIZER, "x") as server:
            await SGLangEngine(server.url, tokenizer=TOKENIZER).open()

    with pytest.raises(EngineError, match="has no /model_info: is it an SGLang server"):
        asyncio.run(main())


def test_another_tokenizer_is_refused():
    async def main():
        async with SGLangServer(TOKENIZER, "x</Outlines>") as server:
            other = CharTokenizer(["other", "words", "here", "and", "there"])
            await SGLangEngine(server.url, tokenizer=other).open()

    with pytest.raises(EngineError, match="has another tokenizer"):
        asyncio.run(main())


def test_no_ids_is_an_error():
    with pytest.raises(EngineError, match="sends no output_ids"):
        ask("x", manners=Manners(ids_out=False))


def test_the_cap_is_clamped_below_the_window():
    room = 7
    manners = Manners(window=len(CALL.ids) + room + 1)
    output, server = ask("abcdefghijkl", manners=manners)
    assert server.served[-1].body["sampling_params"]["max_new_tokens"] == room
    assert (output.text, output.finish) == ("abcdefg", "length")


def test_a_window_smaller_than_promised_is_learnt():
    async def main():
        server = SGLangServer(TOKENIZER, "x" * 900, manners=Manners(window=1000))
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
            server.manners = replace(server.manners, window=100)
            call = replace(CALL, max_tokens=500)
            with pytest.raises(ContextWindowError) as caught:
                await anext(engine.generate(call))
            chunks = [chunk async for chunk in engine.generate(call)]
            return caught.value, sum(len(chunk.ids) for chunk in chunks), engine.capabilities

    error, count, found = asyncio.run(main())
    assert (error.window, error.prompt_tokens) == (100, len(CALL.ids))
    assert (count, found.window) == (99 - len(CALL.ids), 99)


def test_fields_are_added_and_taken_away():
    call = replace(CALL, temperature=1.0)
    options = {"extra": {"priority": 3}, "sampling": {"sampling_seed": None, "min_p": 0.1}}
    _, server = ask("x", call, **options)
    body = server.served[-1].body
    assert body["priority"] == 3 and body["sampling_params"]["min_p"] == 0.1
    assert "sampling_seed" not in body["sampling_params"]
    with pytest.raises(UsageError):
        ask("x", replace(CALL, max_tokens=0))


@both
def test_events_that_come_twice_are_not_counted_twice(incremental):
    async def main():
        server = SGLangServer(TOKENIZER, "abcdef")
        server.incremental = incremental
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
            server.faults.append(Fault("double", after=2))
            return [chunk async for chunk in engine.generate(CALL)]

    chunks = asyncio.run(main())
    assert "".join(chunk.text for chunk in chunks) == "abcdef"
    assert sum((chunk.ids for chunk in chunks), ()) == (*TOKENIZER.encode("abcdef"), EOS)


def test_ids_that_are_ahead_of_the_counts_come_with_the_next_event():
    scores = [[-1.0, 97, None], [-2.0, 98, None], [-3.0, 99, None]]
    raw = (
        event([97, 98], "a", total=1, output_token_logprobs=scores[:1]),
        event([97, 98, 99], "abc", output_token_logprobs=scores),
        event([97, 98, 99], "abc", finish={"type": "length", "length": 3}),
        "[DONE]",
    )
    output, _ = ask(Reply(raw=raw), replace(CALL, max_tokens=3))
    assert (output.ids, output.logprobs) == ((97, 98, 99), (-1.0, -2.0, -3.0))


def test_a_stop_string_that_the_server_cut_off_is_put_back():
    finish = {"type": "stop", "matched": STOP}
    raw = (event(TOKENIZER.encode("plan</"), "plan", finish=finish), "[DONE]")
    output, _ = ask(Reply(raw=raw))
    assert (output.text, output.finish, output.stop) == ("plan</Outlines>", "stop", STOP)
    assert TOKENIZER.decode(output.ids) == output.text


@pytest.mark.parametrize(
    ("raw", "says", "retryable"),
    [
        (event([97], "a", finish={"type": "abort", "message": "gone"}), "aborted.*gone", True),
        (
            event([97], finish={"type": "abort", "message": "bad", "status_code": 400}),
            "answered 400: bad",
            False,
        ),
        ({"error": {"message": "top_p must be in (0, 1]"}}, "answered 400: top_p", False),
        ({"error": {"message": "scheduler died", "code": 500}}, "broke off the stream", True),
    ],
)
def test_refusals_and_aborts_in_the_stream(raw, says, retryable):
    with pytest.raises(EngineError, match=says) as caught:
        ask(Reply(raw=(raw, "[DONE]")))
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("kind", ["reset", "end", "torn", "garbage"])
def test_a_stream_that_breaks_may_be_tried_again(kind):
    async def main():
        server = SGLangServer(TOKENIZER, "abcdefgh", manners=Manners(pace=0.002))
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
            server.faults.append(Fault(kind, after=3))
            pieces = []
            try:
                async for chunk in engine.generate(CALL):
                    pieces.append(chunk.text)
            except EngineError as error:
                return "".join(pieces), error
        raise AssertionError("no error")

    text, error = asyncio.run(main())
    assert text == "abc" and error.retryable


def test_a_busy_server_is_asked_again():
    async def main():
        async with SGLangServer(TOKENIZER, "abc") as server:
            retries = Retries(attempts=1, backoff=0.01)
            async with SGLangEngine(server.url, tokenizer=TOKENIZER, retries=retries) as engine:
                server.faults.append(Fault("status", status=503))
                return [chunk.text async for chunk in engine.generate(CALL)]

    assert "".join(asyncio.run(main())) == "abc"


PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {
    "Q": PLAN,
    "<Thread>1:": "A" * 30 + "</Thread>",
    "<Thread>2:": "B" * 10 + "</Thread>",
    "</Parallel>": "r</think>\\boxed{3}",
}


def setup(engine):
    made = make_setup("Q", engine, dialect="parason:compact", id="t")
    return replace(made, prompt="Q", prompt_ids=tuple(TOKENIZER.encode("Q")))


def fork_join(**changes):
    script = {**SCRIPT, **changes}
    server = SGLangServer(TOKENIZER)
    server.script = lambda request: next(
        (text for end, text in script.items() if request.text.endswith(end)), "hello there"
    )
    return server


@both
def test_a_fork_and_a_join(incremental):
    async def main():
        async with fork_join() as server:
            server.incremental = incremental
            async with SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
                done = await run(setup(engine), engine)
            assert await server.settled() and not server.aborts
            return done

    done = asyncio.run(main())
    assert done.outcome == "answered" and done.text.endswith("</Parallel>r</think>\\boxed{3}")
    assert all(request.cached_tokens for request in done.requests if request.kind == "branch")


def test_cancelling_closes_the_connection_and_tells_the_server():
    """Restates sglang#36333: a server decoded on after its client had gone."""
    endless = {"<Thread>1:": "A" * 20_000, "<Thread>2:": "B" * 20_000}

    async def main():
        async with fork_join(**endless) as server:
            async with SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
                async with aclosing(decode(setup(engine), engine)) as events:
                    async for one in events:
                        if isinstance(one, Token) and one.kind == "branch":
                            break
                assert await server.settled()
                assert await server.until(lambda: len(server.aborts) == 2)
            left = [one.body["rid"] for one in server.served if one.outcome == "left"]
            return sorted(left), sorted(server.aborts)

    left, aborted = asyncio.run(main())
    assert left == aborted and len(set(left)) == 2


def test_a_server_that_runs_on_is_told_too():
    async def main():
        server = SGLangServer(TOKENIZER, "x" * 400, manners=Manners(cap=False, pace=0.001))
        async with server, SGLangEngine(server.url, tokenizer=TOKENIZER) as engine:
            chunks = [chunk async for chunk in engine.generate(replace(CALL, max_tokens=4))]
            assert await server.until(lambda: bool(server.aborts))
            return chunks[-1].finish, server.aborts == [server.served[-1].body["rid"]]

    assert asyncio.run(main()) == ("length", True)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    incremental=st.booleans(),
    twice=st.booleans(),
)
def test_every_way_of_sending_gives_the_same_ids(ids, cuts, incremental, twice):
    deltas, got, text = Deltas("here"), [], ""
    before = 0
    for cut in [*sorted(min(cut, len(ids)) for cut in cuts), len(ids)]:
        part = ids[before:cut] if incremental else ids[:cut]
        scores = [[-0.5, token, None] for token in part]
        one = event(part, "".join(map(str, part)), total=cut, output_token_logprobs=scores)
        for _ in range(1 + twice):
            delta = deltas.push(json.loads(json.dumps(one)))
            got += delta.ids
            text += delta.text if delta.ids else ""
            assert delta.scores is None or len(delta.scores) == len(delta.ids)
            assert delta.scores or not delta.ids
        before = cut
    assert got == ids
    assert text == "".join(map(str, ids))
