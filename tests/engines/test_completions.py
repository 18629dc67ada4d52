"""Streamed completions against a server that speaks the protocol, well-behaved or less able."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engines.base import Call, Chunk, Engine
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners, Reply
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import ContextWindowError, EngineError, UsageError

TOKENIZER = CharTokenizer(["</", "Out", "lines", ">", "<think>"])
EOS = min(TOKENIZER.eos_ids)
STOP = "</Outlines>"
CALL = Call(ids=tuple(TOKENIZER.encode("<bos>prompt")), stop=(STOP,), max_tokens=50)


async def collect(engine: Engine, call: Call = CALL) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(call)]


def join(chunks: list[Chunk]) -> Chunk:
    """The whole output as one chunk."""
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    scores = [chunk.logprobs for chunk in chunks if chunk.ids]
    known = [score for score in scores if score is not None]
    return replace(
        chunks[-1],
        ids=tuple(token for chunk in chunks for token in chunk.ids),
        text="".join(chunk.text for chunk in chunks),
        logprobs=sum(known, ()) if len(known) == len(scores) else None,
    )


def ask(
    script: Callable[..., Reply | str] | Reply | str,
    call: Call = CALL,
    manners: Manners | None = None,
    **options: object,
) -> tuple[Chunk, LoopbackServer]:
    """One call to a fresh server whose probes are answered with a plain text."""

    async def main() -> tuple[Chunk, LoopbackServer]:
        server = LoopbackServer(TOKENIZER, "probe", manners=manners)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER, **options) as engine:
            server.script = script if callable(script) else lambda _: script
            output = join(await collect(engine, call))
            assert await server.settled()
            return output, server

    return asyncio.run(main())


def test_ids_text_logprobs_and_counts_come_back() -> None:
    output, server = ask("a plan</Outlines>", replace(CALL, temperature=0.5, top_k=3, seed=7))
    assert output.text == "a plan</Outlines>"
    assert output.ids == tuple(TOKENIZER.encode("a plan</Outlines>"))
    assert output.logprobs == (-0.5,) * len(output.ids)
    assert (output.finish, output.stop) == ("stop", STOP)
    assert output.prompt_tokens == len(CALL.ids)
    body = server.served[-1].body
    assert body["prompt"] == list(CALL.ids)
    assert body["max_tokens"] == 50
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"]) == (0.5, 1.0, 3, 7)
    assert body["skip_special_tokens"] is False
    assert body["return_token_ids"] is True
    assert body["stream_options"] == {"include_usage": True}
    # What a server would otherwise take from the model's generation config.
    assert (body["repetition_penalty"], body["min_p"]) == (1.0, 0.0)


def test_a_prompt_is_sent_as_it_is_with_one_start_token() -> None:
    """Restates vllm#27486: nobody adds a second start token."""
    _, server = ask("x")
    assert server.served[-1].prompt == CALL.ids
    assert server.served[-1].prompt.count(TOKENIZER.bos_id) == 1


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("per_event", [1, 2, 7])
def test_the_pieces_of_a_stop_string_never_leak(include: bool, per_event: int) -> None:
    """Restates vllm#3574: `</`, `Out`, `lines`, `>` come as one tag, exactly once."""
    manners = Manners(include_stop=include, tokens_per_event=per_event)
    output, _ = ask("do </Outer now </Outlines> never", manners=manners)
    assert output.text == "do </Outer now </Outlines>"
    assert output.text.count(STOP) == 1
    assert output.ids == tuple(TOKENIZER.encode(output.text))


def test_no_chunk_ends_inside_a_stop_string() -> None:
    async def main() -> list[Chunk]:
        server = LoopbackServer(TOKENIZER, "ab</Outlines>")
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            return await collect(engine)

    texts = [chunk.text for chunk in asyncio.run(main())]
    assert not any(text.endswith(("</", "</Out", "</Outlines")) for text in texts)


def test_text_behind_the_stop_string_is_dropped_and_not_counted() -> None:
    """Restates sglang#25980: several tokens in one step, some of them behind the stop string."""
    ids = tuple(TOKENIZER.encode("go</Outlines> extra"))
    event = {"index": 0, "text": "go</Outlines> extra", "token_ids": ids, "finish_reason": "stop"}
    output, _ = ask(Reply(raw=({"choices": [event]}, "[DONE]")))
    assert output.text == "go</Outlines>"
    assert output.ids == tuple(TOKENIZER.encode("go</Outlines>"))


def test_a_quoted_stop_string_ends_the_output_where_it_fired() -> None:
    """Restates sglang#33151: the first match is the end; the caller sees that nothing opened."""
    output, _ = ask("I will close with </Outlines> later <Outlines>")
    assert (output.text, output.finish) == ("I will close with </Outlines>", "stop")


def test_a_server_that_ignores_stop_strings_is_cut_off() -> None:
    output, server = ask("ab</Outlines>" + "x" * 30, manners=Manners(stops=False, pace=0.001))
    assert (output.text, output.finish, output.stop) == ("ab</Outlines>", "stop", STOP)
    assert server.served[-1].outcome == "left"
    assert "stop" not in server.served[-1].body


def test_the_end_token_is_kept_and_has_no_text() -> None:
    output, _ = ask("done")
    assert output.ids == (*TOKENIZER.encode("done"), EOS)
    assert (output.text, output.finish, output.stop) == ("done", "eos", None)


def test_the_cap_ends_the_output() -> None:
    output, server = ask("abcdef", replace(CALL, max_tokens=4))
    assert (output.text, output.finish) == ("abcd", "length")
    assert server.served[-1].body["max_tokens"] == 4


def test_stop_at_the_cap_without_a_stop_string_is_length() -> None:
    """Restates text-generation-inference#2925 and others: "stop" although the cap was hit."""
    output, _ = ask("abcdef", replace(CALL, max_tokens=4), Manners(honest=False))
    assert output.finish == "length"


def test_a_server_that_ignores_the_cap_is_cut_off() -> None:
    """Restates ray#53922: the cap is dropped and the output goes on."""
    output, server = ask("x" * 40, replace(CALL, max_tokens=4), Manners(cap=False, pace=0.001))
    assert (output.text, output.finish) == ("xxxx", "length")
    assert server.served[-1].outcome == "left"


def test_counts_without_usage_come_from_the_ids() -> None:
    output, _ = ask("abc", manners=Manners(usage=False))
    assert output.prompt_tokens == len(CALL.ids)
    assert output.cached_tokens is None
    assert len(output.ids) == 4


def test_cached_tokens_are_reported() -> None:
    call = replace(CALL, ids=tuple(TOKENIZER.encode("x" * 100)))

    async def main() -> list[int | None]:
        server = LoopbackServer(TOKENIZER, "y")
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            return [join(await collect(engine, call)).cached_tokens for _ in range(2)]

    assert asyncio.run(main()) == [None, 96]


def test_logprobs_only_when_wanted() -> None:
    output, server = ask("abc", replace(CALL, logprobs=False))
    assert output.logprobs is None
    assert "logprobs" not in server.served[-1].body


def test_the_cap_is_clamped_to_the_window() -> None:
    """Restates vllm#42474: no 400 where a smaller cap would do."""
    room = 7
    manners = Manners(window=len(CALL.ids) + room)
    output, server = ask("abcdefghijkl", manners=manners)
    assert server.served[-1].body["max_tokens"] == room
    assert (output.text, output.finish) == ("abcdefg", "length")


def test_a_prompt_that_fills_the_window_is_not_sent() -> None:
    with pytest.raises(ContextWindowError) as caught:
        ask("x", replace(CALL, ids=(65,) * 64), Manners(window=64))
    assert (caught.value.window, caught.value.prompt_tokens) == (64, 64)


def test_a_window_smaller_than_promised_is_learnt() -> None:
    async def main() -> tuple[ContextWindowError, Chunk]:
        manners = Manners(window=400, told_window=1000)
        server = LoopbackServer(TOKENIZER, "x" * 300, manners=manners)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            call = replace(CALL, ids=(65,) * 300, max_tokens=200)
            with pytest.raises(ContextWindowError) as caught:
                await collect(engine, call)
            assert engine.capabilities.window == 400
            return caught.value, join(await collect(engine, call))

    error, output = asyncio.run(main())
    assert (error.window, error.prompt_tokens, error.retryable) == (400, 300, False)
    assert (len(output.ids), output.finish) == (100, "length")


def test_a_cap_below_one_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="max_tokens is 0"):
        ask("x", replace(CALL, max_tokens=0))


def test_special_tokens_stop_like_any_other_text() -> None:
    """Restates vllm#2123: a tag that is a special token must match as a stop string."""
    output, _ = ask("a<think>b", replace(CALL, stop=("<think>",)))
    assert (output.text, output.stop) == ("a<think>", "<think>")


TEXT_ONLY = Manners(ids_out=False, include_stop=False, names_stop=False, logprobs=False)


def test_no_ids_is_refused_with_the_way_out() -> None:
    with pytest.raises(EngineError, match=r'returns no token ids.*use ids="retokenize"'):
        ask("x", manners=TEXT_ONLY)


@pytest.mark.parametrize("manners", [TEXT_ONLY, replace(TEXT_ONLY, names_stop=True)])
def test_text_only_servers_are_retokenized(manners: Manners) -> None:
    output, _ = ask("do </Outer now </Outlines> never", manners=manners, ids="retokenize")
    assert (output.text, output.finish) == ("do </Outer now </Outlines>", "stop")
    assert output.stop == STOP
    assert TOKENIZER.decode(output.ids) == output.text
    assert output.logprobs is None


def test_a_text_only_server_shows_its_own_end() -> None:
    output, _ = ask("no tag", manners=TEXT_ONLY, ids="retokenize")
    assert (output.text, output.finish) == ("no tag", "eos")


def test_ids_missing_in_the_middle_is_an_error() -> None:
    first = {"index": 0, "text": "a", "token_ids": [97], "finish_reason": None}
    second = {"index": 0, "text": "b", "finish_reason": None}
    with pytest.raises(EngineError, match="returns no token ids"):
        ask(Reply(raw=({"choices": [first]}, {"choices": [second]}, "[DONE]")))


def test_a_named_stop_that_was_cut_off_the_ids_is_put_back() -> None:
    ids = TOKENIZER.encode("plan</")
    event = {"text": "plan", "token_ids": ids, "finish_reason": "stop", "stop_reason": STOP}
    output, _ = ask(Reply(raw=({"choices": [event]}, "[DONE]")))
    assert output.text == "plan</Outlines>"
    assert TOKENIZER.decode(output.ids) == output.text
    assert (output.finish, output.stop) == ("stop", STOP)


def test_extra_fields_are_added_and_taken_away() -> None:
    _, server = ask("x", extra={"priority": 3, "min_p": None})
    body = server.served[-1].body
    assert body["priority"] == 3
    assert "min_p" not in body


@settings(max_examples=25, deadline=None)
@given(
    text=st.text(alphabet="ab</Outlines> \u2028\u00e9", max_size=30),
    per_event=st.integers(1, 5),
    include=st.booleans(),
    cap=st.integers(1, 40),
)
def test_any_output_is_the_text_of_its_ids(
    text: str, per_event: int, include: bool, cap: int
) -> None:
    manners = Manners(tokens_per_event=per_event, include_stop=include)
    output, _ = ask(text, replace(CALL, max_tokens=cap), manners)
    sampled = [*TOKENIZER.encode(text), EOS]
    assert list(output.ids) == sampled[: len(output.ids)]
    assert len(output.ids) <= cap
    assert output.text == TOKENIZER.decode([token for token in output.ids if token != EOS])
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.ids)
    assert (output.finish == "stop") == output.text.endswith(STOP)


def test_many_calls_at_once_share_connections_and_stay_apart() -> None:
    async def main() -> tuple[list[str], int]:
        def script(served: object) -> str:
            return served.text.upper()  # type: ignore[attr-defined]

        server = LoopbackServer(TOKENIZER, script)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            calls = [replace(CALL, ids=tuple(TOKENIZER.encode(f"branch {n}"))) for n in range(150)]
            outputs = await asyncio.gather(*(collect(engine, call) for call in calls))
            return [join(output).text for output in outputs], len(server.served)

    texts, count = asyncio.run(main())
    assert texts == [f"BRANCH {n}" for n in range(150)]
    assert count == 152
