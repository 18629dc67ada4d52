"""Block mask of a row of 32,768 tokens: bytes, seconds, and whether it is the dense definition.

The row is packed with random trees. Its blocks are compared with the dense definition tile by
tile. With ``--compiled`` the forward pass of compiled flex_attention on the CPU is compared with
SDPA on a shorter row; its backward pass does not exist on the CPU in torch 2.13, so gradients are
compared on a device only (check_cuda.py).

    python benchmarks/bench_block_mask.py [--compiled]
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from anabranch.training.attention import block_mask, dense_mask
from anabranch.training.layout import build_layout
from anabranch.training.packing import collate, join
from bench_layout import trajectory
from reporting import add_option, report

LENGTH, BLOCK = 32_768, 128
PARTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


def packed_row(length: int) -> np.ndarray:
    """Interval ends ``[length]`` of random trees behind one another, and padding."""
    rng = random.Random(0)
    trees, total = [], 0
    while True:
        tree = build_layout(trajectory(rng, rng.choice((2, 4, 8)), 150, rng.choice((1, 2))))
        if total + len(tree) > length:
            break
        trees.append(tree)
        total += len(tree)
    ends = np.arange(1, length + 1)
    ends[:total] = collate([join(trees)]).subtree_end[0]
    return ends


def equal_to_definition(ends: np.ndarray, mask: BlockMask) -> bool:
    """Every tile: left out if empty, taken whole only if whole."""
    partial, full = (
        _matrix(getattr(mask, f"{kind}kv_num_blocks"), getattr(mask, f"{kind}kv_indices"))
        for kind in ("", "full_")
    )
    index = np.arange(len(ends))
    for row in range(len(ends) // BLOCK):
        query = index[row * BLOCK : (row + 1) * BLOCK, None]
        allowed = (index <= query) & (query < ends)
        tiles = allowed.reshape(BLOCK, -1, BLOCK)
        if not np.array_equal(tiles.any((0, 2)), partial[row] | full[row]):
            return False
        if not tiles.all((0, 2))[full[row]].all():
            return False
    return True


def _matrix(counts: torch.Tensor, indices: torch.Tensor) -> np.ndarray:
    blocks = counts.shape[-1]
    found = np.zeros((blocks, blocks), dtype=bool)
    for row in range(blocks):
        found[row, indices[0, 0, row, : counts[0, 0, row]].numpy()] = True
    return found


def compiled_deviation() -> float:
    """Largest difference of compiled flex_attention and SDPA, forward, on the CPU."""
    ends = torch.from_numpy(packed_row(2048))[None]
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 4, ends.shape[1], 32) for _ in range(3))
    with torch.no_grad():
        flexed = torch.compile(flex_attention)(query, key, value, block_mask=block_mask(ends))
        plain = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=dense_mask(ends, torch.float32)
        )
    return float((flexed - plain).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="also compile flex_attention")
    add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ends = packed_row(LENGTH)
    tensor = torch.from_numpy(ends)[None]
    times = []
    for _ in range(5):
        begin = time.process_time()
        mask = block_mask(tensor)
        times.append(time.process_time() - begin)
    tensors = [getattr(mask, name) for name in PARTS] + [tensor]
    figures = {
        "benchmark": "block_mask",
        "tokens": LENGTH,
        "mib": round(sum(t.numel() * t.element_size() for t in tensors) / 2**20, 2),
        "cpu_seconds": round(sorted(times)[2], 4),
        "cpu_seconds_first": round(times[0], 4),
        "equal_to_definition": equal_to_definition(ends, mask),
    }
    if options.compiled:
        figures["compiled_flex_deviation"] = compiled_deviation()
    report(figures, options.json)


if __name__ == "__main__":
    main()
