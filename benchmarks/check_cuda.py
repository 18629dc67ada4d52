"""Tree training on a CUDA device: equal to the CPU, and how fast; says so where there is none.

Compares loss and gradients of flex_attention on the device with SDPA there and on the CPU, in fp32
and bf16, on packed random trees; then times a step of a small model on a row of 16,384 tokens,
with the peak of device memory.

    python benchmarks/check_cuda.py [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anabranch.training.audit import audit, use_tree_attention
from anabranch.training.layout import TreeLayout, build_layout
from anabranch.training.loss import BatchTensors, edge_logits, edge_loss, to_tensors
from anabranch.training.packing import collate, join
from bench_layout import trajectory
from reporting import add_option, report

VOCABULARY = 30_000


def model(width: int, layers: int, device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            max_position_embeddings=65_536,
        )
    )
    use_tree_attention(network)
    return network.to(device=device, dtype=dtype)


def trees(seed: int, tokens: int) -> list[TreeLayout]:
    rng = random.Random(seed)
    found: list[TreeLayout] = []
    while sum(map(len, found)) < tokens:
        found.append(build_layout(trajectory(rng, rng.choice((2, 4, 8)), 60, rng.choice((1, 2)))))
    return found[:-1]


def gradients(network: Any, batch: BatchTensors, backend: Any) -> list[torch.Tensor]:
    network.zero_grad()
    loss = edge_loss(edge_logits(network, batch, backend=backend), batch, float(len(batch.rows)))
    loss.backward()
    return [loss.detach().float().cpu(), *(p.grad.float().cpu() for p in network.parameters())]


def deviation(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Largest difference of a tensor, relative to its largest value."""
    pairs = zip(one, other, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in pairs)


def agreement(dtype: torch.dtype) -> dict[str, float]:
    collated = collate([join(trees(0, 3000))], multiple=128)
    here = gradients(model(128, 2, "cpu", torch.float32), to_tensors(collated), "sdpa")
    network, batch = model(128, 2, "cuda", dtype), to_tensors(collated, "cuda")
    flex, sdpa = (gradients(network, batch, backend) for backend in ("flex", "sdpa"))
    return {
        "audit": audit(network, backend="flex").deviation,
        "flex_against_sdpa": deviation(flex, sdpa),
        "flex_against_cpu": deviation(flex, here),
    }


def step_seconds(network: Any, batches: list[BatchTensors], repeats: int = 5) -> tuple[float, int]:
    def step() -> None:
        network.zero_grad()
        for batch in batches:
            edge_loss(edge_logits(network, batch), batch, float(len(batch.rows))).backward()
        torch.cuda.synchronize()

    step()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - begin) / repeats, torch.cuda.max_memory_allocated() >> 20


def speed() -> dict[str, float]:
    network = model(1024, 8, "cuda", torch.bfloat16)
    made = trees(1, 16_384)
    seconds, megabytes = step_seconds(
        network, [to_tensors(collate([join(made)], multiple=128), "cuda")]
    )
    tokens = sum(map(len, made))
    raw = sum(tree.raw_tokens for tree in made)
    return {
        "tree_tokens": tokens,
        "raw_tokens": raw,
        "step_seconds": round(seconds, 4),
        "tokens_per_second": round(tokens / seconds),
        "peak_mib": megabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_option(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing checked")
        return
    figures: dict[str, Any] = {
        "check": "cuda",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "fp32": agreement(torch.float32),
        "bf16": agreement(torch.bfloat16),
        "step": speed(),
    }
    report(figures, options.json)
    worst = max(figures["fp32"].values())
    if worst > 1e-2:
        raise SystemExit(f"fp32 on the device differs by {worst:.2g}")


if __name__ == "__main__":
    main()
