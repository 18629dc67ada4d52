"""Attention in blocks equals the dense mask: values, gradients, whole models."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tree_cases import make_trajectory, tiny_model

from anabranch.errors import ModelError
from anabranch.training.attention import dense_mask, tree_attention, tree_mask
from anabranch.training.attention_blocks import Plan, block_attention
from anabranch.training.audit import audit, use_tree_attention
from anabranch.training.layout import build_layout
from anabranch.training.loss import edge_logits, edge_loss, to_tensors
from anabranch.training.packing import collate, pack


def ends_of(seed: int, width: int = 0) -> torch.Tensor:
    trees = [build_layout(make_trajectory(seed + n, [[4, n, 2], [3, 1]], 1 + n)) for n in range(3)]
    rows = pack(trees, max(map(len, trees)) + width)
    return torch.from_numpy(collate(rows).subtree_end)


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(0, 60),
    queries=st.sampled_from([3, 16, 1000]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_values_and_gradients_equal_the_dense_mask(
    seed: int, width: int, queries: int, groups: int
) -> None:
    ends = ends_of(seed, width)
    batch, length = ends.shape
    torch.manual_seed(seed)
    shapes = ((batch, 4, length, 8), *((batch, 4 // groups, length, 8),) * 2)
    states = [torch.randn(shape, requires_grad=True) for shape in shapes]
    query, key, value = states
    plan = Plan(ends, groups, torch.float32, queries)
    found = block_attention(query, key, value, plan)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(groups, 1),
        value.repeat_interleave(groups, 1),
        attn_mask=dense_mask(ends, torch.float32),
    )
    assert torch.allclose(found, expected, atol=1e-5)
    weight = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad((out * weight).sum(), states) for out in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_model_learns_the_same_in_blocks(family: str) -> None:
    trees = [build_layout(make_trajectory(n, [[9, 7, 8], [6, 9]])) for n in range(4)]
    batch = to_tensors(collate([*trees[:2], *pack(trees[2:], 400)]))
    results: list[list[Any]] = []
    for backend in ("sdpa", "blocks"):
        model = tiny_model(family)
        use_tree_attention(model)
        assert audit(model, backend=backend).deviation < 1e-5  # type: ignore[arg-type]
        loss = edge_loss(edge_logits(model, batch, backend=backend), batch, 10.0)  # type: ignore[arg-type]
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)


def test_dropout_falls_back_to_the_dense_mask_and_short_rows_have_one() -> None:
    ends = ends_of(1)
    assert tree_mask(ends, torch.float32).dtype == torch.float32
    long = torch.arange(1, 2001)[None]
    mask = tree_mask(long, torch.float32)
    assert mask.shape == (1, 1, 1, 2000)
    state = torch.randn(1, 2, 2000, 4)
    module = torch.nn.Identity()
    module.num_key_value_groups = 1  # type: ignore[assignment]
    torch.manual_seed(0)
    dropped, _ = tree_attention(module, state, state, state, mask, dropout=0.5)
    # Each token of these rows sees itself alone: it is kept, doubled, or gone.
    whole = state.transpose(1, 2)
    kept = (dropped != 0).all(-1)
    assert 0 < kept.float().mean() < 1
    assert torch.allclose(dropped[kept], 2 * whole[kept], atol=1e-5)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ModelError, match="for the CPU"):
        tree_mask(torch.ones(1, 4, dtype=torch.long, device="meta"), torch.float32, "blocks")
