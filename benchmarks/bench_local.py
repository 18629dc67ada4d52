"""Tokens per second of the in-process engine, side by side with transformers' `generate`.

Both decode the same prompts greedily with the same model, thread count and number of tokens, in
turns, so that what else the machine does hits both. Reported are tokens per second (best and median
of the repeats), CPU milliseconds per step (the least; all threads), the ratio of the rates,
what a step costs with more rows than one, and what a fork costs. Prints one JSON object.

    python benchmarks/bench_local.py [--model DIR] [--batches 1,2,4,8,32] [--tokens 128]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models

from anabranch.engines.base import Call
from anabranch.engines.local import LocalEngine
from anabranch.engines.tokenizers import HFTokenizer
from reporting import add_option, report

PROMPT = 48
BRANCHES = 6


def tiny() -> Any:
    """A random model of the size that the lab bundles."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def symbols() -> HFTokenizer:
    raw = Tokenizer(models.WordLevel({chr(256 + at): at for at in range(128)}, chr(256)))
    raw.decoder = decoders.Fuse()
    return HFTokenizer(raw)


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    chooser = torch.Generator().manual_seed(count)
    return torch.randint(3, vocabulary, (count, PROMPT), generator=chooser).tolist()


async def answer(engine: LocalEngine, prompt: Sequence[int], tokens: int) -> list[int]:
    call = Call(ids=tuple(prompt), stop=("never said",), max_tokens=tokens)
    return [token async for chunk in engine.generate(call) for token in chunk.ids]


@dataclass
class Run:
    """One batch decoded: sequences × tokens, in seconds of the wall clock and of the CPU."""

    rows: int
    tokens: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.rows * self.tokens / self.wall

    @property
    def step_cpu(self) -> float:
        return self.cpu / self.tokens


async def by_engine(engine: LocalEngine, batch: Sequence[Sequence[int]], tokens: int) -> Run:
    wall, cpu = time.perf_counter(), time.process_time()
    answers = await asyncio.gather(*(answer(engine, prompt, tokens) for prompt in batch))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert all(len(ids) == tokens for ids in answers)
    return Run(len(batch), tokens, wall, cpu)


def by_generate(model: Any, batch: Sequence[Sequence[int]], tokens: int) -> Run:
    ids = torch.tensor(batch, device=model.device)
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
        )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert out.shape[1] - ids.shape[1] == tokens
    return Run(len(batch), tokens, wall, cpu)


async def fork(engine: LocalEngine, prefix: int, vocabulary: int) -> dict[str, float]:
    """Seconds for the first token of all branches of a fork, prefix kept or not."""
    base = prompts(1, vocabulary)[0] * (prefix // PROMPT)
    seconds = {}
    for name in ("cold", "kept"):
        if name == "cold":
            await engine.update_weights(None)
        calls = [[*base, 3 + branch] for branch in range(BRANCHES)]
        started = time.perf_counter()
        await asyncio.gather(*(answer(engine, prompt, 1) for prompt in calls))
        seconds[name] = time.perf_counter() - started
    return seconds


def summary(runs: Sequence[Run]) -> dict[str, float]:
    return {
        "tokens_per_s_best": round(max(run.rate for run in runs), 1),
        "tokens_per_s_median": round(statistics.median(run.rate for run in runs), 1),
        "cpu_ms_per_step": round(min(run.step_cpu for run in runs) * 1e3, 3),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    if options.model is None:
        model, tokenizer = tiny(), symbols()
        engine = LocalEngine(model, tokenizer, threads=options.threads, max_cached_tokens=1 << 16)
    else:
        engine = LocalEngine(options.model, threads=options.threads)
        model = engine._module
    engine._eos_ids = frozenset()  # every answer has the same number of tokens
    vocabulary = int(model.config.get_text_config().vocab_size)
    result: dict[str, Any] = {"batches": {}}
    for size in options.batches:
        batch = prompts(size, vocabulary)
        await by_engine(engine, batch, 8)
        by_generate(model, batch, 8)
        ours, theirs = [], []
        for _ in range(options.repeats):
            await engine.update_weights(None)
            ours.append(await by_engine(engine, batch, options.tokens))
            theirs.append(by_generate(model, batch, options.tokens))
        result["batches"][str(size)] = {
            "engine": summary(ours),
            "generate": summary(theirs),
            "rate_ratio": round(
                statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True)), 2
            ),
        }
    result["step_cost"] = _step_cost(result["batches"])
    forks = [await fork(engine, 768, vocabulary) for _ in range(options.repeats)]
    result["fork_of_6_from_768_tokens_ms"] = {
        name: round(min(one[name] for one in forks) * 1e3, 2) for name in ("cold", "kept")
    }
    await engine.close()
    return result


def _step_cost(batches: dict[str, Any]) -> dict[str, float]:
    """CPU time of a step with so many rows, in steps with one row."""
    if "1" not in batches:
        return {}
    one = batches["1"]["engine"]["cpu_ms_per_step"]
    return {
        size: round(found["engine"]["cpu_ms_per_step"] / one, 2) for size, found in batches.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: a tiny random one")
    parser.add_argument(
        "--batches",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[1, 2, 4, 6, 8, 32],
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    add_option(parser)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    result = {
        "model": str(options.model or "tiny random Llama, width 64, 4 layers, float32"),
        "tokens": options.tokens,
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **asyncio.run(measure(options)),
    }
    report(result, options.json)


if __name__ == "__main__":
    main()
