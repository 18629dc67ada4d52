"""The in-process engine: exact tokens, shared prefixes, cancelling, and every way it can refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

from anabranch.engines.base import Call, Chunk, Engine
from anabranch.engines.local import LocalEngine
from anabranch.engines.tokenizers import HFTokenizer
from anabranch.errors import ContextWindowError, EngineError

VOCABULARY = 64
LETTERS = [chr(65 + number) for number in range(VOCABULARY)]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
#: Wide initial weights, so that a random model has something to say and greedy ties are no issue.
WIDE = {"initializer_range": 0.3}


def letters(eos: Sequence[int] = ()) -> HFTokenizer:
    """One letter per id."""
    raw = Tokenizer(models.WordLevel({letter: at for at, letter in enumerate(LETTERS)}, "A"))
    raw.decoder = decoders.Fuse()
    return HFTokenizer(raw, eos_ids=eos)


@cache
def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    sizes = SIZES | WIDE
    made = {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "qwen3": lambda: transformers.Qwen3Config(**sizes),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=1024,
            bos_token_id=None,
            eos_token_id=None,
            **WIDE,
        ),
        "mistral_sliding": lambda: transformers.MistralConfig(**sizes, sliding_window=6),
        "gemma3_sliding": lambda: transformers.Gemma3TextConfig(
            **sizes | {"num_hidden_layers": 4},
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"] * 2,
            query_pre_attn_scalar=8,
        ),
        "mixtral": lambda: transformers.MixtralConfig(
            **sizes, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(
            **{key: sizes[key] for key in sizes if key not in ("num_key_value_heads", "head_dim")}
        ),
        "bloom": lambda: transformers.BloomConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            **WIDE,
        ),
        "mamba": lambda: transformers.MambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            state_size=8,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            **WIDE,
        ),
        "lfm2_hybrid": lambda: transformers.Lfm2Config(
            **sizes, layer_types=["conv", "full_attention"]
        ),
    }
    return transformers.AutoModelForCausalLM.from_config(made[kind](), dtype=torch.float32).eval()


CACHED = ("llama", "qwen3", "gpt2", "mistral_sliding", "gemma3_sliding", "mixtral", "gpt_neox")
PLAIN = ("bloom", "mamba", "lfm2_hybrid")


@asynccontextmanager
async def serving(kind: str = "llama", **options: Any) -> AsyncIterator[LocalEngine]:
    options.setdefault("tokenizer", letters())
    engine = LocalEngine(model_of(kind), threads=1, **options)
    try:
        yield engine
    finally:
        await engine.close()


def ids(size: int, seed: int = 0) -> tuple[int, ...]:
    chooser = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY, (size,), generator=chooser).tolist())


def call(prompt: Sequence[int], max_tokens: int = 12, **wanted: Any) -> Call:
    return Call(ids=tuple(prompt), stop=wanted.pop("stop", ()), max_tokens=max_tokens, **wanted)


class Answer:
    """All chunks of one call put together."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.ids = [token for chunk in chunks for token in chunk.ids]
        self.text = "".join(chunk.text for chunk in chunks)
        self.logprobs = [value for chunk in chunks for value in chunk.logprobs or ()]
        self.last = chunks[-1]
        self.finish, self.stop = self.last.finish, self.last.stop
        self.cached = self.last.cached_tokens
        assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def answer(engine: Engine, wanted: Call) -> Answer:
    return Answer([chunk async for chunk in engine.generate(wanted)])


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def is_greedy(kind: str, prompt: Sequence[int], output: Sequence[int]) -> bool:
    """Whether every token is the one that a plain full forward puts first."""
    tokens = torch.tensor([[*prompt, *output]])
    with torch.inference_mode():
        logits = model_of(kind)(input_ids=tokens, use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == list(output)


def greedy(kind: str, prompt: Sequence[int], size: int) -> list[int]:
    """What the model itself says, one full forward per token."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(size):
            output = model_of(kind)(input_ids=torch.tensor([tokens]), use_cache=False)
            tokens.append(int(output.logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kind", CACHED + PLAIN)
def test_greedy_tokens_are_the_models_own(kind: str) -> None:
    """Prompts of different lengths at once, forks of one of them afterwards, and `generate`."""

    async def work() -> None:
        async with serving(kind) as engine:
            assert isinstance(engine, Engine)
            assert engine.capabilities.prefix_cache is (kind in CACHED)
            assert bool(engine.capabilities.notes) is (kind in PLAIN)
            prompts = [ids(size, seed=size) for size in (3, 17, 9, 1)]
            answers = await asyncio.gather(*(answer(engine, call(p)) for p in prompts))
            for prompt, got in zip(prompts, answers, strict=True):
                assert got.ids == greedy(kind, prompt, 12)
                assert got.finish == "length"
            forks = [[*prompts[1], *answers[1].ids, branch] for branch in (1, 2, 3)]
            answers = await asyncio.gather(*(answer(engine, call(p)) for p in forks))
            for prompt, got in zip(forks, answers, strict=True):
                assert got.ids == greedy(kind, prompt, 12)
                assert got.cached == (17 + 11 if kind in CACHED else 0)

    run(work)
    own = model_of(kind).generate(
        torch.tensor([ids(17, seed=17)]), max_new_tokens=12, do_sample=False
    )
    assert own[0, 17:].tolist() == greedy(kind, ids(17, seed=17), 12)


def test_a_fork_and_its_join_compute_only_what_is_new() -> None:
    async def work() -> None:
        async with serving() as engine:
            main = await answer(engine, call(ids(40), 20))
            context = [*ids(40), *main.ids]
            headers = [[1, number] for number in range(2, 8)]
            prompts = [context + header for header in headers]
            before = engine.statistics.prefilled
            branches = await asyncio.gather(*(answer(engine, call(p, 9)) for p in prompts))
            # The last sampled token of the parent was never fed, so it is computed again.
            assert [got.cached for got in branches] == [59] * 6
            assert engine.statistics.prefilled - before == 6 * 3
            assert engine.statistics.rows == 6
            join = list(prompts[0])
            for header, got in zip(headers, branches, strict=True):
                join += [*(header if got is not branches[0] else []), *got.ids]
            joined = await answer(engine, call([*join, 5], 9))
            assert joined.cached == len(prompts[0]) + 8
            assert joined.ids == greedy("llama", [*join, 5], 9)
            for prompt, got in zip(prompts, branches, strict=True):
                assert got.ids == greedy("llama", prompt, 9)

    run(work)


def test_a_fork_from_a_parent_that_is_still_running() -> None:
    async def work() -> None:
        async with serving() as engine:
            parent = engine.generate(call(ids(40), 400))
            seen: list[int] = []
            async for chunk in parent:
                seen += chunk.ids
                if len(seen) >= 10:
                    break
            prompts = [[*ids(40), *seen, branch] for branch in (1, 2)]
            branches = await asyncio.gather(*(answer(engine, call(p)) for p in prompts))
            # The parent's newest token may not have been fed yet.
            assert {got.cached for got in branches} <= {39 + len(seen), 40 + len(seen)}
            for prompt, got in zip(prompts, branches, strict=True):
                assert got.ids == greedy("llama", prompt, 12)
            await parent.aclose()

    run(work)


@pytest.mark.parametrize("size", [40, 700])
def test_equal_prompts_of_one_instant_are_computed_once(size: int) -> None:
    """A group of rollouts: short prompts share a row's prefix, long ones the staged one's."""

    async def work() -> None:
        async with serving() as engine:
            answers = await asyncio.gather(*(answer(engine, call(ids(size))) for _ in range(5)))
            assert sorted(got.cached or 0 for got in answers) == [0] + [size - 1] * 4
            assert engine.statistics.prefilled == size + 4
            for got in answers:
                assert is_greedy("llama", ids(size), got.ids)

    run(work)


def test_long_and_short_prompts_together() -> None:
    """Long prompts are computed in chunks between the steps of the others."""

    async def work() -> None:
        async with serving() as engine:
            sizes = (900, 5, 600, 130, 128, 2)
            prompts = [ids(size, seed=size) for size in sizes]
            answers = await asyncio.gather(*(answer(engine, call(p, 30)) for p in prompts))
            for prompt, got in zip(prompts, answers, strict=True):
                assert len(got.ids) == 30
                assert is_greedy("llama", prompt, got.ids)
            assert engine.statistics.prefilled == sum(sizes)

    run(work)


def test_more_requests_than_rows_wait() -> None:
    async def work() -> None:
        async with serving(max_batch=3, max_cached_tokens=0) as engine:
            prompts = [ids(6 + seed % 3, seed=seed) for seed in range(10)]
            caps = [3 + seed for seed in range(10)]
            answers = await asyncio.gather(
                *(answer(engine, call(p, cap)) for p, cap in zip(prompts, caps, strict=True))
            )
            for prompt, cap, got in zip(prompts, caps, answers, strict=True):
                assert got.ids == greedy("llama", prompt, cap)
            assert engine.statistics.rows == 3

    run(work)


def test_kept_sequences_are_bounded() -> None:
    async def work() -> None:
        async with serving(max_cached_tokens=60) as engine:
            for seed in range(4):
                await answer(engine, call(ids(20, seed=seed), 6))
            assert engine._batch.store.tokens <= 60
            again = await answer(engine, call(ids(20, seed=3), 6))
            assert again.cached == 19
            first = await answer(engine, call(ids(20, seed=0), 6))
            assert first.cached is not None and first.cached < 5

    run(work)


def test_stop_strings_end_the_text_and_keep_the_ids() -> None:
    """Restates vllm#3574 for the in-process engine, with a stop that is several tokens long."""

    async def work() -> None:
        async with serving() as engine:
            expected = greedy("llama", ids(9), 40)
            text = "".join(LETTERS[token] for token in expected)
            stop = text[5:8]
            end = text.index(stop) + 3
            got = await answer(engine, call(ids(9), 40, stop=("never", stop)))
            assert (got.finish, got.stop) == ("stop", stop)
            assert got.text == text[:end]
            assert got.ids == expected[:end]
            assert len(got.logprobs) == len(got.ids)

    run(work)


def test_a_stop_inside_a_token_cuts_the_text_behind_it() -> None:
    raw = Tokenizer(models.WordLevel({f"<{at}>.": at for at in range(VOCABULARY)}, "<0>."))
    raw.decoder = decoders.Fuse()

    async def work() -> None:
        async with serving(tokenizer=HFTokenizer(raw)) as engine:
            expected = greedy("llama", ids(9), 40)
            got = await answer(engine, call(ids(9), 40, stop=(f"{expected[4]}>",)))
            end = expected.index(expected[4])
            assert got.ids == expected[: end + 1]
            assert got.text.endswith(f"<{expected[4]}>")
            assert got.text == raw.decode(got.ids)[:-1]

    run(work)


def test_the_end_token_is_an_id_without_text() -> None:
    async def work() -> None:
        expected = greedy("llama", ids(9), 40)
        eos = expected[6]
        end = expected.index(eos)
        async with serving(tokenizer=letters(eos=[eos])) as engine:
            got = await answer(engine, call(ids(9), 40, stop=(LETTERS[eos],)))
            assert got.finish == "eos"
            assert got.ids == expected[: end + 1]
            assert got.text == "".join(LETTERS[token] for token in expected[:end])
            assert got.stop is None

    run(work)


def test_text_held_back_is_delivered_at_the_cap() -> None:
    async def work() -> None:
        async with serving() as engine:
            expected = greedy("llama", ids(9), 5)
            text = "".join(LETTERS[token] for token in expected)
            got = await answer(engine, call(ids(9), 5, stop=(text[-2:] + "more",)))
            assert (got.finish, got.text, got.ids) == ("length", text, expected)

    run(work)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    async def work() -> None:
        async with serving() as engine:
            wanted = call(ids(9), 8, temperature=2.0, top_k=5, seed=3)
            got = await answer(engine, wanted)
            full = torch.tensor([[*ids(9), *got.ids]])
            with torch.inference_mode():
                scores = model_of("llama")(input_ids=full).logits.log_softmax(-1)
            expected = [float(scores[0, 8 + at, token]) for at, token in enumerate(got.ids)]
            assert got.logprobs == pytest.approx(expected, abs=1e-4)
            none = await answer(engine, call(ids(9), 3, logprobs=False))
            assert none.logprobs == []

    run(work)


def test_a_sampled_answer_does_not_depend_on_its_company() -> None:
    async def work() -> None:
        async with serving() as engine:
            wanted = [
                call(ids(7, seed=seed), 15, temperature=0.9, top_p=0.95, seed=seed)
                for seed in range(6)
            ]
            alone = [await answer(engine, one) for one in wanted]
            await engine.update_weights(None)
            together = await asyncio.gather(*(answer(engine, one) for one in wanted))
            assert [got.ids for got in together] == [got.ids for got in alone]
            same = [call(ids(7), 15, temperature=1.0, seed=seed) for seed in range(8)]
            answers = await asyncio.gather(*(answer(engine, one) for one in same))
            assert len({tuple(got.ids) for got in answers}) > 4

    run(work)


def test_prompt_and_cap_must_fit_the_window() -> None:
    async def work() -> None:
        async with serving() as engine:
            assert engine.capabilities.window == 1024
            with pytest.raises(ContextWindowError) as caught:
                await answer(engine, call(ids(1000), 25))
            assert (caught.value.window, caught.value.prompt_tokens) == (1024, 1000)
            assert engine.statistics.forwards == 0
            got = await answer(engine, call(ids(1020), 4))
            assert got.ids == greedy("llama", ids(1020), 4)

    run(work)


def test_odd_calls() -> None:
    async def work() -> None:
        async with serving() as engine:
            with pytest.raises(EngineError, match="prompt is empty"):
                await answer(engine, call(()))
            with pytest.raises(EngineError, match="outside the vocabulary of 64"):
                await answer(engine, call((3, 64)))
            nothing = await answer(engine, call(ids(3), 0))
            assert (nothing.finish, nothing.ids) == ("length", [])

    run(work)
