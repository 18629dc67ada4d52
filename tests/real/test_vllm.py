"""The completions engine against a real vLLM server with a tiny random model.

Takes about a minute, most of it the server's start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from anabranch.engines.base import Call, Chunk
from anabranch.engines.completions import CompletionsEngine
from anabranch.errors import ContextWindowError, EngineError

if TYPE_CHECKING:
    from conftest import Serve, Server

WINDOW = 1024

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, serve: Serve, random_llama: Callable[..., None]
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    random_llama(folder, initializer_range=0.3)  # outputs wander over the whole vocabulary
    with serve(folder, folder) as running:
        yield running


def prompt(server: Server) -> tuple[int, ...]:
    return (1, *server.tokenizer.encode("12+34=?"))


def engine(server: Server, **options: object) -> CompletionsEngine:
    options.setdefault("extra", {"ignore_eos": True})
    return CompletionsEngine(server.url, tokenizer=server.tokenizer, **options)  # type: ignore[arg-type]


async def collect(source: CompletionsEngine, call: Call) -> Chunk:
    chunks = [chunk async for chunk in source.generate(call)]
    scores = [chunk.logprobs for chunk in chunks if chunk.ids]
    return replace(
        chunks[-1],
        ids=tuple(token for chunk in chunks for token in chunk.ids),
        text="".join(chunk.text for chunk in chunks),
        logprobs=tuple(score for part in scores for score in part or ()),
    )


def answer(server: Server, *calls: Call, **options: object) -> list[Chunk]:
    async def main() -> list[Chunk]:
        async with engine(server, **options) as source:
            return [await collect(source, call) for call in calls]

    return asyncio.run(main())


def test_everything_is_discovered(server: Server) -> None:
    async def main() -> None:
        async with engine(server) as source:
            found = source.capabilities
            assert source.model == str(server.model)
            assert found.window == WINDOW
            assert (found.ids_out, found.logprobs, found.include_stop) == (True, True, True)
            assert found.prefix_cache
            assert found.notes == ()

    asyncio.run(main())


def test_text_is_the_text_of_the_ids(server: Server) -> None:
    (output,) = answer(server, Call(prompt(server), (), 40))
    assert len(output.ids) == 40
    assert output.text == server.tokenizer.decode(output.ids)
    assert output.finish == "length"
    assert output.prompt_tokens == len(prompt(server))


def test_log_probs_are_those_of_the_model(server: Server) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (output,) = answer(server, Call(prompt(server), (), 40))
    model = transformers.LlamaForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    ids = torch.tensor([[*prompt(server), *output.ids]])
    with torch.no_grad():
        scores = model(ids).logits[0].log_softmax(-1)
    first = len(prompt(server)) - 1
    for place, token in enumerate(output.ids):
        assert output.logprobs is not None
        assert output.logprobs[place] == pytest.approx(
            float(scores[first + place, token]), abs=1e-4
        )


def test_a_stop_string_over_several_tokens_is_included_once(server: Server) -> None:
    (free,) = answer(server, Call(prompt(server), (), 40))
    tokens = [server.tokenizer.decode([token]) for token in free.ids]
    stop = "".join(tokens[10:13])[1:]  # begins inside a token
    (output,) = answer(server, Call(prompt(server), (stop,), 40))
    end = free.text.index(stop) + len(stop)
    assert output.text == free.text[:end]
    assert (output.finish, output.stop) == ("stop", stop)
    assert output.ids == free.ids[: len(output.ids)]
    assert len(server.tokenizer.decode(output.ids[:-1])) < end


def test_a_special_token_is_a_stop_string(server: Server) -> None:
    """Restates vllm#2123."""
    call = Call(prompt(server), (), 400, temperature=1.0, seed=3)
    (free,) = answer(server, call)
    special = next(tag for tag in ("<bos>", "<pad>", "<unk>") if tag in free.text)
    (output,) = answer(server, replace(call, stop=(special,)))
    assert output.text == free.text[: free.text.index(special) + len(special)]
    assert output.stop == special


def test_the_models_own_end_has_no_text(server: Server) -> None:
    call = Call(prompt(server), (), 900, temperature=1.0, seed=3)
    (output,) = answer(server, call, extra={"logit_bias": {"2": 4.0}})
    assert output.finish == "eos"
    assert output.ids[-1] == 2
    assert output.text == server.tokenizer.decode(output.ids[:-1])


def test_seeds_repeat_and_differ(server: Server) -> None:
    call = Call(prompt(server), (), 30, temperature=1.0, seed=11)
    first, second, third = answer(server, call, call, replace(call, seed=12))
    assert first.ids == second.ids
    assert first.ids != third.ids


def test_siblings_find_their_prefix_in_the_cache(server: Server) -> None:
    prefix = (1, *(server.tokenizer.encode("0123456789") * 32))
    branches = [Call((*prefix, n), (), 8) for n in range(40, 48)]

    async def main() -> list[Chunk]:
        async with engine(server) as source:
            await collect(source, Call(prefix, (), 1))
            return await asyncio.gather(*(collect(source, branch) for branch in branches))

    cached = [output.cached_tokens for output in asyncio.run(main())]
    assert all(count is not None and count >= 0.9 * len(prefix) for count in cached), cached


def test_leaving_frees_the_server(server: Server) -> None:
    """Restates vllm#24584."""

    async def main() -> float:
        async with engine(server) as source:
            call = Call(prompt(server), (), 900)
            outputs = [source.generate(replace(call, seed=n)) for n in range(8)]
            await asyncio.gather(*(anext(output) for output in outputs))
            for output in outputs:
                await output.aclose()
            await asyncio.sleep(1)
            return await asyncio.to_thread(server.running)

    assert asyncio.run(main()) == 0


def test_the_window_is_kept_and_named(server: Server) -> None:
    async def main() -> None:
        async with engine(server) as source:
            output = await collect(source, Call((5,) * (WINDOW - 4), (), 300))
            assert (len(output.ids), output.finish) == (4, "length")
            assert source._found is not None
            wide = replace(source.capabilities, window=None)
            source._found = replace(source._found, capabilities=wide)
            with pytest.raises(ContextWindowError) as caught:
                await collect(source, Call((5,) * 2000, (), 3))
            assert (caught.value.window, caught.value.prompt_tokens) == (WINDOW, 2000)

    asyncio.run(main())


def test_refusals_carry_the_servers_words(server: Server) -> None:
    with pytest.raises(EngineError, match="top_p must be in"):
        answer(server, Call(prompt(server), (), 3, top_p=3.0))
    with pytest.raises(EngineError, match="does not serve 'other'"):
        answer(server, model="other")
