"""The step loop under random arrivals and departures: every answer is the model's own."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

from anabranch.engines import local_batch
from anabranch.engines.base import Call
from anabranch.engines.local_audit import choose_forward
from anabranch.engines.local_batch import Batch
from anabranch.engines.local_forward import CachedForward, PlainForward
from anabranch.engines.local_job import Job
from anabranch.engines.tokenizers import HFTokenizer

VOCABULARY = 32


@cache
def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "initializer_range": 0.4,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    config = {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "mistral_sliding": lambda: transformers.MistralConfig(**sizes, sliding_window=9),
    }[kind]()
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def letters() -> HFTokenizer:
    raw = Tokenizer(models.WordLevel({chr(65 + at): at for at in range(VOCABULARY)}, "A"))
    raw.decoder = decoders.Fuse()
    return HFTokenizer(raw)


def greedy(kind: str, job: Job) -> bool:
    """Whether every token of an answer is the one that a plain full forward puts first."""
    start = len(job.call.ids)
    with torch.inference_mode():
        logits = model_of(kind)(input_ids=torch.tensor([job.tokens]), use_cache=False).logits
    best = logits[0, start - 1 : -1].argmax(-1).tolist()
    return best == job.tokens[start:] and len(best) == job.call.max_tokens


def arrivals(chooser: random.Random, done: list[Job]) -> list[tuple[int, ...]]:
    """Prompts of one instant: fresh ones, equal ones, and forks of what has been answered."""
    fresh = tuple(chooser.choices(range(VOCABULARY), k=chooser.choice([1, 2, 5, 12, 40, 90])))
    kind = chooser.randrange(4)
    if kind == 0:
        return [fresh]
    if kind == 1:
        return [fresh] * chooser.randint(2, 4)
    if kind == 2 and done:
        parent = tuple(chooser.choice(done).tokens)
        return [(*parent, branch, *fresh[:branch]) for branch in range(chooser.randint(2, 5))]
    cut = len(fresh) // 2 + 1
    return [(*fresh[:cut], branch) for branch in range(3)]


@pytest.mark.parametrize("kind", ["llama", "mistral_sliding"])
@pytest.mark.parametrize("seed", range(4))
def test_random_lives(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small bounds, so that short prompts meet every path.
    monkeypatch.setattr(local_batch, "SHORT", 8)
    monkeypatch.setattr(local_batch, "CHUNK", 11)
    monkeypatch.setattr(local_batch, "CHEAP", 24)
    monkeypatch.setattr(local_batch, "WORTH_WAITING", 4)
    chooser = random.Random(seed)
    forward = choose_forward(model_of(kind)).forward
    assert isinstance(forward, CachedForward)
    forward.cache.grow(2, 16, [])
    batch = Batch(forward, max_rows=5, max_cached_tokens=chooser.choice([0, 150, 10_000]))
    tokenizer = letters()
    live: list[Job] = []
    done: list[Job] = []
    with torch.inference_mode():
        for turn in range(200):
            if turn < 150 and chooser.random() < 0.25 and len(live) < 12:
                for prompt in arrivals(chooser, done):
                    call = Call(ids=prompt, stop=(), max_tokens=chooser.randint(1, 12))
                    live.append(Job(call, tokenizer, frozenset()))
                    batch.add(live[-1])
            if live and chooser.random() < 0.05:
                chooser.choice(live).cancelled = True
            batch.step()
            done += [job for job in live if job.finish is not None]
            live = [job for job in live if not job.done]
        while not batch.idle:
            batch.step()
    done += [job for job in live if job.finish is not None]
    assert all(job.done for job in live)
    assert len(done) > 20
    for job in done:
        assert greedy(kind, job)


def test_a_padded_step_is_avoided_when_padding_would_cost_much() -> None:
    forward = choose_forward(model_of("llama")).forward
    batch = Batch(forward, max_rows=64, max_cached_tokens=0)
    first = [Job(Call((at,), (), 50), letters(), frozenset()) for at in range(20)]
    with torch.inference_mode():
        for job in first:
            batch.add(job)
        batch.step()
        assert [job.sampled for job in first] == [1] * 20
        late = Job(Call(tuple(range(1, 31)), (), 50), letters(), frozenset())
        batch.add(late)
        assert batch.step() == [late]
        assert len(batch.step()) == 21


def test_rows_and_capacity_grow_without_losing_anything() -> None:
    forward = choose_forward(model_of("llama")).forward
    assert isinstance(forward, CachedForward)
    rows, capacity = forward.cache.rows, forward.cache.capacity
    batch = Batch(forward, max_rows=64, max_cached_tokens=0)
    prompts = [tuple(range(at, at + 3)) for at in range(rows + 3)]
    jobs = [Job(Call(prompt, (), capacity + 10), letters(), frozenset()) for prompt in prompts]
    for job in jobs[:2]:
        batch.add(job)
    with torch.inference_mode():
        batch.step()
        for job in jobs[2:]:
            batch.add(job)
        while not batch.idle:
            batch.step()
    assert forward.cache.rows >= rows + 3
    assert forward.cache.capacity >= capacity + 12
    assert all(greedy("llama", job) for job in jobs)


def test_whole_sequences_one_by_one_or_together_give_the_same_tokens() -> None:
    for padded in (False, True):
        batch = Batch(PlainForward(model_of("llama"), padded=padded), 4, 0)
        prompts = [(1, 2, 3), (4,), (5, 6, 7, 8, 9)]
        jobs = [Job(Call(prompt, (), 6), letters(), frozenset()) for prompt in prompts]
        with torch.inference_mode():
            for job in jobs:
                batch.add(job)
            while not batch.idle:
                batch.step()
        for job in jobs:
            assert greedy("llama", job)
            assert job.cached == 0
