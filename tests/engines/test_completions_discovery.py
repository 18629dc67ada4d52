"""What is found out about a server, and what is refused for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from anabranch.engines.base import Call, Capabilities, Engine
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import Fault, LoopbackServer, Manners, Reply
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import AnabranchError, EngineError, UsageError

TOKENIZER = CharTokenizer()


def discover(manners: Manners | None = None, script: Any = "some text", **options: Any) -> Any:
    models = options.pop("models", ("loopback",))
    key = options.pop("server_key", None)

    async def main() -> Any:
        server = LoopbackServer(TOKENIZER, script, models=models, manners=manners, api_key=key)
        options.setdefault("tokenizer", TOKENIZER)
        async with server, CompletionsEngine(server.url, **options) as engine:
            assert isinstance(engine, Engine)
            return engine.model, engine.capabilities, engine._found.server_stops, server.served

    return asyncio.run(main())


def test_a_full_server_needs_no_notes() -> None:
    model, capabilities, stops, served = discover()
    assert model == "loopback"
    assert capabilities == Capabilities(prefix_cache=True, window=32_768)
    assert stops
    assert [request.body["max_tokens"] for request in served] == [4, 4]


@pytest.mark.parametrize(
    ("change", "found", "stops"),
    [
        ({"include_stop": False}, {"include_stop": False}, True),
        ({"include_stop": False, "ids_out": False}, {"include_stop": False}, True),
        ({"include_stop": False, "ids_out": False, "names_stop": False}, {}, False),
        ({"stops": False}, {"include_stop": False}, False),
        ({"logprobs": False}, {"logprobs": False}, True),
        ({"usage": False}, {"prefix_cache": False}, True),
        ({"window": None}, {"window": None}, True),
        ({"window": 20}, {"window": 20}, True),
    ],
)
def test_what_a_server_lacks_is_found(
    change: dict[str, Any], found: dict[str, Any], stops: bool
) -> None:
    _, capabilities, server_stops, _ = discover(replace(Manners(), **change), ids="retokenize")
    for name, value in found.items():
        assert getattr(capabilities, name) == value, name
    assert capabilities.ids_out == change.get("ids_out", True)
    assert server_stops is stops
    assert any("stop strings" in note for note in capabilities.notes) == (not stops)


def test_text_only_is_noted() -> None:
    _, capabilities, _, _ = discover(Manners(ids_out=False), ids="retokenize")
    assert not capabilities.ids_out
    assert not capabilities.logprobs
    assert "no token ids: its text is encoded with the local tokenizer" in capabilities.notes


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(AnabranchError) as caught:
        discover(*arguments, **options)
    assert isinstance(caught.value, EngineError | UsageError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_model_must_be_served() -> None:
    assert "does not serve 'other', only loopback" in refusal(model="other")
    assert "(a, b): name one" in refusal(models=("a", "b"))
    assert discover(models=("a", "b"), model="b")[0] == "b"


def test_the_key_must_be_right() -> None:
    text = refusal(server_key="secret", api_key="wrong")
    assert "answered 401: Unauthorized (is the API key right?)" in text
    assert discover(server_key="secret", api_key="secret")[0] == "loopback"


def test_another_tokenizer_is_noticed() -> None:
    class Shifted(CharTokenizer):
        def decode(self, ids: Any) -> str:
            return super().decode([token + 1 for token in ids])

    assert "has another tokenizer" in refusal(tokenizer=Shifted())


def test_a_server_that_adds_to_the_prompt_is_noticed() -> None:
    """Restates vllm#2012: a second start token, visible only in the count."""

    def script(request: Any) -> Reply:
        usage = {"prompt_tokens": len(request.prompt) + 1, "completion_tokens": 1}
        choice = {"text": "a", "token_ids": [97], "finish_reason": "length"}
        return Reply(raw=({"choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]"))

    assert "prompt tokens where 192 were sent: it changes the prompt" in refusal(script=script)


def test_a_broken_probe_is_an_error_and_leaves_nothing_open() -> None:
    assert "broke off the stream" in refusal(script=lambda _: Reply(raw=({"error": "no"},)))
    assert "sent a broken stream" in refusal(script=lambda _: Reply(raw=("{nonsense",)))


def test_an_engine_opens_once_for_many_first_calls() -> None:
    async def main() -> int:
        async with LoopbackServer(TOKENIZER, "x") as server:
            engine = CompletionsEngine(server.url, tokenizer=TOKENIZER)

            async def one() -> None:
                async for _ in engine.generate(Call((97,), (), 5)):
                    pass

            await asyncio.gather(*(one() for _ in range(5)))
            await engine.close()
            return len(server.served)

    assert asyncio.run(main()) == 7


def test_opening_can_be_tried_again() -> None:
    async def main() -> str:
        async with LoopbackServer(TOKENIZER, "x") as server:
            server.faults.append(Fault("status", status=500))
            engine = CompletionsEngine(server.url, tokenizer=TOKENIZER)
            with pytest.raises(EngineError):
                await engine.open()
            async with engine:
                return engine.model

    assert asyncio.run(main()) == "loopback"


def test_the_server_runs_in_a_thread_of_its_own() -> None:
    async def main(url: str) -> str:
        async with CompletionsEngine(url, tokenizer=TOKENIZER) as engine:
            return "".join([chunk.text async for chunk in engine.generate(Call((97,), (), 5))])

    with LoopbackServer(TOKENIZER, "hello") as server:
        assert asyncio.run(main(server.url)) == "hello"
