"""The in-process engine: exact tokens, shared prefixes, cancelling, and every way it can refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

from anabranch.engines.base import Call, Chunk, Engine
from anabranch.engines.local import LocalEngine
from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer
from anabranch.errors import ContextWindowError, EngineError, ModelError
from anabranch.lab.tokenizer import save_tokenizer

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
