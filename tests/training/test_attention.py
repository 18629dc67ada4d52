"""Masks of trees: closed form, block form, types, padding, and positions without a mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from tree_cases import make_trajectory, tiny_model

from anabranch.errors import ModelError
from anabranch.training.attention import block_mask, dense_allowed, dense_mask, tree_attention
from anabranch.training.audit import use_tree_attention
from anabranch.training.layout import TreeLayout, build_layout
from anabranch.training.loss import edge_logits, edge_loss, to_tensors
from anabranch.training.packing import collate, pack


def layouts(seed: int, count: int = 3) -> list[TreeLayout]:
    return [
        build_layout(make_trajectory(seed + n, [[4, n % 3, 2], [3, 1]], depth=1 + n % 3))
        for n in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), block=st.sampled_from([4, 8, 16]), width=st.integers(0, 60))
def test_block_mask_equals_the_dense_definition(seed: int, block: int, width: int) -> None:
    trees = layouts(seed)
    rows = pack(trees, max(len(tree) for tree in trees) + width)
    ends = torch.from_numpy(collate(rows).subtree_end)
    batch, length = ends.shape
    blocks = -(-length // block)
    dense = torch.zeros(batch, blocks * block, blocks * block, dtype=torch.bool)
    dense[:, :length, :length] = dense_allowed(ends)
    tiles = dense.view(batch, blocks, block, blocks, block).transpose(2, 3).flatten(3)
    mask = block_mask(ends, block)
    assert torch.equal(mask.to_dense()[:, 0].bool(), tiles.any(-1))
    # Blocks that are computed without a look at the mask must be allowed throughout.
    for b in range(batch):
        for q in range(blocks):
            count = int(mask.full_kv_num_blocks[b, 0, q])
            for k in mask.full_kv_indices[b, 0, q, :count].tolist():
                assert tiles[b, q, k].all()
    index = torch.arange(length)
    for b in range(batch):
        closed = mask.mask_mod(torch.tensor(b), torch.tensor(0), index[:, None], index[None, :])
        assert torch.equal(closed, dense_allowed(ends)[b])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_and_sdpa_agree() -> None:
    """Forward on CPU; the backward pass of flex_attention exists on CUDA only."""
    ends = torch.from_numpy(collate(layouts(3)).subtree_end)
    batch, length = ends.shape
    torch.manual_seed(0)
    query, key, value = (torch.randn(batch, 4, length, 8) for _ in range(3))
    flexed = flex_attention(query, key, value, block_mask=block_mask(ends))
    plain = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense_mask(ends, torch.float32)
    )
    assert torch.allclose(flexed, plain, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_flex_training_equals_sdpa_on_cuda() -> None:
    batch = to_tensors(collate(layouts(3), multiple=128), "cuda")
    gradients = []
    for backend in ("flex", "sdpa"):
        model = tiny_model("Llama", head_dim=16).cuda()
        use_tree_attention(model)
        edge_loss(edge_logits(model, batch, backend=backend), batch, 1.0).backward()  # type: ignore[arg-type]
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-3, rtol=1e-3)


def test_block_mask_of_a_long_row_is_small_and_quick() -> None:
    length = 32_768
    ends = torch.arange(1, length + 1).clamp_min(length // 2)[None]
    ends[0, length // 2 :] = length
    mask = block_mask(ends)
    tensors = [getattr(mask, name) for name in ("kv_indices", "full_kv_indices", "q_indices")]
    assert sum(t.numel() * t.element_size() for t in tensors) <= 10 * 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bool_minimum_and_infinite_masks_agree_and_whole_rows_stay_finite(
    dtype: torch.dtype,
) -> None:
    """Restates huggingface/transformers#39608 and unslothai/unsloth#9848."""
    model = tiny_model("Llama").to(dtype)
    use_tree_attention(model)
    batch = to_tensors(collate(layouts(5), multiple=16))
    allowed = dense_allowed(batch.subtree_end)[:, None]
    infinite = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, float("-inf"))
    with torch.no_grad():
        logits = [
            model(
                input_ids=batch.ids,
                position_ids=batch.positions,
                attention_mask=mask,
                use_cache=False,
            ).logits
            for mask in (allowed, dense_mask(batch.subtree_end, dtype), infinite)
        ]
    assert all(torch.isfinite(found).all() for found in logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.allclose(logits[0], logits[2], atol=1e-5)


def test_masks_of_integers_are_refused() -> None:
    module = torch.nn.Identity()
    state = torch.zeros(1, 2, 3, 4)
    for mask in (torch.ones(1, 1, 3, 3, dtype=torch.long), torch.ones(1, 3)):
        with pytest.raises(ModelError, match="4-D boolean or additive"):
            tree_attention(module, state, state, state, mask)


@pytest.mark.parametrize("mask", [None, "ones"])
def test_positions_that_fork_without_the_mask_are_refused(mask: str | None) -> None:
    model = tiny_model("Qwen3")
    use_tree_attention(model)
    batch = to_tensors(collate(layouts(1, count=1)))
    given_mask = torch.ones_like(batch.ids) if mask else None
    with pytest.raises(ModelError, match="without the tree's attention mask"):
        model(input_ids=batch.ids, position_ids=batch.positions, attention_mask=given_mask)


def test_the_model_still_decodes_and_takes_left_padding() -> None:
    plain, tree = tiny_model("Llama"), tiny_model("Llama")
    use_tree_attention(tree)
    ids = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    out = [
        m.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
        for m in (plain, tree)
    ]
    assert torch.equal(*out)
