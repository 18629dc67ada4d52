"""The chat engine against a small server: one form of reasoning, caps that hold, tools, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.engines.base import Call
from anabranch.engines.chat import ChatEngine, Retries
from anabranch.engines.chat_call import ChatCall, ChatChunk
from anabranch.engines.chat_continue import chat_prompt, read_chat_prompt
from anabranch.engines.chat_reader import ChatReader, split_reasoning
from anabranch.engines.estimates import EstimatedTokens
from anabranch.engines.loopback import ChatReply, ChatServer, Fault, Manners, Reply
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import EngineError, UsageError

USER = ({"role": "user", "content": "2 + 3?"},)
Ask = Callable[..., tuple[str, ChatChunk]]


def server(reply: Any, **options: Any) -> ChatServer:
    return ChatServer(CharTokenizer(), lambda served: reply, **options)


async def answer(engine: ChatEngine, call: ChatCall) -> tuple[str, ChatChunk]:
    text, last = "", ChatChunk()
    async for chunk in engine.chat(call):
        text += chunk.text
        last = chunk
    return text, last


def ask(
    reply: Any, call: ChatCall | None = None, changes: dict[str, Any] | None = None, **options: Any
) -> tuple[str, ChatChunk, ChatServer]:
    async def main() -> tuple[str, ChatChunk, ChatServer]:
        async with server(reply) as running:
            for name, value in (changes or {}).items():
                setattr(running, name, value)
            options.setdefault("cap_field", "max_tokens")
            async with ChatEngine(running.url, tokenizer=CharTokenizer(), **options) as engine:
                text, last = await answer(engine, call or ChatCall(USER, 100))
                return text, last, running

    return asyncio.run(main())


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", ""])
def test_reasoning_comes_in_one_form(field: str) -> None:
    """vllm#28266, lmstudio#1602: three places for the same thing."""
    reply = ChatReply("It is 5.", "2 and 3")
    text, last, _ = ask(reply, changes={"reasoning_field": field})
    assert text == "<think>2 and 3</think>It is 5."
    assert (last.reasoning, last.content, last.finish) == ("2 and 3", "It is 5.", "eos")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", ""])
def test_a_cap_inside_the_reasoning_leaves_no_answer(field: str) -> None:
    text, last, _ = ask(
        ChatReply("It is 5.", "2 and 3 and so on"),
        ChatCall(USER, 10),
        changes={"reasoning_field": field},
    )
    assert text.startswith("<think>2 ") or text == "<think>2 a"
    assert last.content == "" and last.reasoning
    assert last.finish == "length"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("<think>a", ("a", "")),
        ("b", ("", "b")),
        ("", ("", "")),
    ],
)
def test_reasoning_is_split_from_content(text: str, parts: tuple[str, str]) -> None:
    assert split_reasoning(text) == parts


def test_both_parts_missing_is_an_empty_answer() -> None:
    reader = ChatReader("server", 10)
    event = {"choices": [{"delta": {"content": None}, "finish_reason": "length"}]}
    reader.feed(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
    last = reader.last()
    assert (last.text, last.content, last.reasoning, last.finish) == ("", "", "", "length")


def test_tool_calls_are_put_together_from_their_pieces() -> None:
    arguments = {"kind": "trials", "branches": ["a", "b"]}
    reply = ChatReply("Well.", calls=(("fork", arguments), ("fork", '{"kind": ')))
    text, last, running = ask(reply, ChatCall(USER, 400, tools=({"type": "function"},)))
    assert text == "Well."
    assert [(one.id, one.name) for one in last.tool_calls] == [
        ("call_0", "fork"),
        ("call_1", "fork"),
    ]
    assert json.loads(last.tool_calls[0].arguments) == arguments
    assert last.tool_calls[1].arguments == '{"kind": '
    assert running.served[-1].body["tool_choice"] == "auto"


def test_usage_is_asked_for_and_kept() -> None:
    """Streams carry no usage unless it is asked for."""
    _, last, running = ask("five")
    assert running.served[-1].body["stream_options"] == {"include_usage": True}
    assert last.counted_tokens == 4
    _, last, _ = ask("five", changes={"manners": Manners(usage=False)})
    assert last.counted_tokens is None and last.finish == "eos"


@pytest.mark.parametrize(
    ("caps", "refused", "found"),
    [
        (("max_completion_tokens", "max_tokens"), (), "max_completion_tokens"),
        (("max_tokens",), (), "max_tokens"),  # ray#53922: silently dropped
        (("max_tokens",), ("max_completion_tokens",), "max_tokens"),
        (("max_completion_tokens",), ("max_tokens",), "max_completion_tokens"),
    ],
)
def test_the_field_that_caps_is_found(
    caps: tuple[str, ...], refused: tuple[str, ...], found: str
) -> None:
    changes = {"caps": caps, "refused": refused}
    _, last, running = ask("1, 2, 3, 4, 5, 6", ChatCall(USER, 7), changes, cap_field=None)
    assert running.served[-1].body[found] == 7
    assert last.finish == "length" and last.counted_tokens == 7


def test_a_server_without_any_cap_is_refused() -> None:
    with pytest.raises(EngineError, match="keeps to neither max_completion_tokens nor max_tokens"):
        ask("1, 2, 3, 4, 5, 6", changes={"caps": ()}, cap_field=None)


def test_a_cap_that_is_not_kept_is_noted_and_one_that_is_denied_is_seen() -> None:
    _, last, _ = ask("123456", ChatCall(USER, 3), {"caps": ()})
    assert last.finish == "length" and "counts 6 tokens where the cap was 3" in last.notes[0]
    _, last, _ = ask("123456", ChatCall(USER, 3), {"manners": Manners(honest=False)})
    assert last.finish == "length"


def test_the_key_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANABRANCH_API_KEY", "sk-secret")

    async def main() -> str:
        async with server("x", api_key="sk-other") as running:
            with pytest.raises(EngineError) as caught:
                async with ChatEngine(running.url):
                    pass
            assert "401" in str(caught.value)
            running.api_key = "sk-secret"
            async with ChatEngine(running.url + "/v1/chat/completions") as engine:
                await answer(engine, ChatCall(USER, 5))
                return f"{caught.value}{engine!r}{engine.__dict__}"

    assert "sk-" not in asyncio.run(main())


def test_fork_join_by_raw_text_is_refused_where_messages_are_not_continued() -> None:
    async def main() -> None:
        async with server("x") as running, ChatEngine(running.url) as engine:
            assert not engine.continues
            with pytest.raises(UsageError, match="mode tools only"):
                await anext(engine.generate(Call((1,), (), 5)))

    asyncio.run(main())


def test_a_message_is_continued_where_the_server_shows_that_it_does() -> None:
    async def main() -> None:
        async with server("B</Outlines>C") as running:
            running.continues = True
            async with ChatEngine(running.url, tokenizer=CharTokenizer(["</Outlines>"])) as engine:
                assert engine.continues
                prompt = chat_prompt(USER)
                ids = tuple(engine.tokenizer.encode(prompt + "A"))
                chunks = [c async for c in engine.generate(Call(ids, ("</Outlines>",), 20))]
        assert "".join(chunk.text for chunk in chunks) == "B</Outlines>"
        assert chunks[-1].stop == "</Outlines>"
        body = running.served[-1].body
        assert body["messages"][-1] == {"role": "assistant", "content": "A"}
        assert body["continue_final_message"] and not body["add_generation_prompt"]

    asyncio.run(main())


def test_a_chat_prompt_reads_back() -> None:
    messages = [{"role": "user", "content": "line\nline “x” \\n"}]
    assert read_chat_prompt(chat_prompt(messages) + "a\nb") == (messages, "a\nb")
    with pytest.raises(UsageError, match="chat_prompt"):
        read_chat_prompt("plain text")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (({"error": {"message": "no", "code": 500}},), "broke off"),
        (("{not json",), "not JSON"),
        (({"choices": [{"delta": {}, "finish_reason": "content_filter"}]},), "content_filter"),
        (({"choices": [{"delta": {"content": "a"}}]},), "before the answer was finished"),
    ],
)
def test_what_is_no_answer_is_one_error(raw: tuple[Any, ...], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ask(Reply(raw=raw))


def test_a_busy_server_is_asked_again() -> None:
    async def main() -> None:
        async with server("five") as running:
            retries = Retries(attempts=1, backoff=0.001)
            engine = ChatEngine(running.url, cap_field="max_tokens", retries=retries)
            async with engine:
                running.faults.append(Fault("status", status=429, headers={"Retry-After": "0"}))
                text, _ = await answer(engine, ChatCall(USER, 9))
            assert text == "five" and len(running.served) == 3

    asyncio.run(main())


def test_leaving_aborts_the_request() -> None:
    async def main() -> bool:
        async with server("1" * 5000) as running:
            running.manners = Manners(pace=0.001)
            async with ChatEngine(running.url, cap_field="max_tokens") as engine:
                stream = engine.chat(ChatCall(USER, 5000))
                await anext(stream)
                await stream.aclose()
                return await running.settled()

    assert asyncio.run(main())


def test_estimated_tokens_round_trip_and_are_about_as_many_as_tokens() -> None:
    tokenizer = EstimatedTokens()
    text = "The quick brown fox jumps over 1,234 lazy dogs.\n\n<Thread>\n1: ü – 漢字 \ud800"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(text) / 4.5 < len(ids) < len(text) / 1.5
