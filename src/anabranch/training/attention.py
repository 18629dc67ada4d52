"""Attention over trees, registered with transformers under the name ``"tree"``.

A model whose implementation is ``"tree"`` takes the mask that :func:`tree_mask` makes as its
``attention_mask``: an additive 4-D tensor for SDPA; the intervals themselves for the blocks of
:mod:`anabranch.training.attention_blocks` on the CPU; or a BlockMask for flex_attention on CUDA,
whose memory is linear in the length but for one small matrix of blocks. Without such a mask the
model is an ordinary causal one, so a model under training can also be decoded.
Whether a model obeys the mask is tested in :mod:`anabranch.training.audit`.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from anabranch.errors import ModelError
from anabranch.training.attention_blocks import Plan, block_attention

NAME = "tree"
#: What this implementation computes with; named in every refusal.
BACKENDS = "sdpa (CPU, CUDA), blocks (CPU) and flex_attention (CUDA)"
Backend = Literal["auto", "sdpa", "blocks", "flex"]
BLOCK = 128
#: Rows up to this length are one dense mask on the CPU: there is little to leave out.
SHORT = 512


def dense_allowed(subtree_end: Tensor) -> Tensor:
    """The definition itself: ``[B, L]`` interval ends to ``[B, L, L]`` booleans (query, key)."""
    length = subtree_end.shape[-1]
    index = torch.arange(length, device=subtree_end.device)
    causal = index[:, None] >= index[None, :]
    return causal & (index[:, None] < subtree_end[:, None, :])


def dense_mask(subtree_end: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask ``[B, 1, L, L]`` for SDPA: 0 where allowed, the type's minimum elsewhere.

    The minimum, not minus infinity: a block of keys that is wholly masked would give NaN.
    """
    allowed = dense_allowed(subtree_end)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=subtree_end.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]


def block_mask(subtree_end: Tensor, block: int = BLOCK) -> BlockMask:
    """BlockMask of a batch of trees, from the intervals alone: no ``L × L`` tensor is made.

    A block of keys matters to a block of queries when the furthest subtree that starts in it
    reaches the queries' first row, and is fully visible when the nearest one covers their last.

    Args:
        subtree_end: ``[B, L]``, any L (the last block may be cut).
        block: edge of the square blocks.
    """
    batch, length = subtree_end.shape
    blocks = -(-length // block)
    device = subtree_end.device
    padded = torch.arange(1, blocks * block + 1, device=device).repeat(batch, 1)
    padded[:, :length] = subtree_end
    ends = padded.view(batch, blocks, block)
    furthest, nearest = ends.amax(-1), ends.amin(-1)
    start = torch.arange(blocks, device=device) * block
    earlier = start[:, None] > start[None, :]
    diagonal = torch.eye(blocks, dtype=torch.bool, device=device)
    touched = (earlier & (furthest[:, None, :] > start[:, None])) | diagonal
    full = earlier & (nearest[:, None, :] >= start[:, None] + block)

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < padded[b, k])

    partial_count, partial_index = _ordered(touched & ~full)
    full_count, full_index = _ordered(full)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_index,
        full_count,
        full_index,
        BLOCK_SIZE=block,
        mask_mod=allowed,
        seq_lengths=(length, length),
    )


def tree_mask(
    subtree_end: Tensor, dtype: torch.dtype, backend: Backend = "auto"
) -> Tensor | BlockMask:
    """The ``attention_mask`` to call a ``"tree"`` model with.

    Args:
        subtree_end: ``[B, L]`` on the model's device.
        dtype: of the activations.
        backend: ``auto`` is flex on CUDA, blocks for long rows on the CPU, and SDPA elsewhere.

    Raises:
        ModelError: blocks were asked for on another device than the CPU.
    """
    if backend == "flex" or (backend == "auto" and subtree_end.is_cuda):
        return block_mask(subtree_end)
    on_cpu = subtree_end.device.type == "cpu"
    if backend == "blocks" and not on_cpu:
        raise ModelError("attention in blocks is for the CPU: use flex or sdpa")
    if backend == "blocks" or (backend == "auto" and on_cpu and subtree_end.shape[-1] > SHORT):
        return subtree_end[:, None, None, :].clone()
    return dense_mask(subtree_end, dtype)


def _is_intervals(mask: Tensor, length: int) -> bool:
    """Whether a mask is what :func:`tree_mask` makes for blocks: ``[B, 1, 1, L]`` ends."""
    return mask.dtype == torch.int64 and mask.shape[1:] == (1, 1, length) and length > 1


def _plan_of(mask: Tensor, query: Tensor, key: Tensor) -> Plan:
    """The plan of a mask, which is the same object for every layer."""
    groups = query.shape[1] // key.shape[1]
    plan: Plan | None = getattr(mask, "anabranch_blocks", None)
    if plan is None or (plan.groups, plan.dtype) != (groups, query.dtype):
        plan = Plan(mask[:, 0, 0], groups, query.dtype)
        mask.anabranch_blocks = plan  # type: ignore[attr-defined]
    return plan


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: ``[B, H, L, D]`` in, ``([B, L, H, D], weights)`` out.

    Raises:
        ModelError: the model asks for something that this implementation does not do, or gives
            positions of a tree without the mask of one.
    """
    _refuse_extras(kwargs)
    if isinstance(attention_mask, BlockMask):
        if dropout > 0:
            raise ModelError("flex_attention has no attention dropout: set it to 0, or use sdpa")
        return cast(
            tuple[Tensor, Tensor | None],
            flex_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, **kwargs
            ),
        )
    if attention_mask is not None and _is_intervals(attention_mask, key.shape[2]):
        if dropout == 0:
            plan = _plan_of(attention_mask, query, key)
            found = block_attention(query, key, value, plan, scaling)
            return found.transpose(1, 2).contiguous(), None
        attention_mask = dense_mask(attention_mask[:, 0, 0], query.dtype)
    if attention_mask is None or getattr(attention_mask, "anabranch_plain", False):
        _refuse_tree_positions(kwargs.get("position_ids"))
    else:
        attention_mask = _checked(attention_mask, query.dtype)
    return cast(
        tuple[Tensor, Tensor | None],
        sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=kwargs.get("is_causal"),
        ),
    )


def plain_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask where no tree was given: that of SDPA, marked as such."""
    mask = sdpa_mask(*args, **kwargs)
    if mask is not None:
        mask.anabranch_plain = True
    return cast(Tensor | None, mask)


def register() -> None:
    """Make ``attn_implementation="tree"`` known to transformers. Harmless when repeated."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, plain_mask)


def _ordered(present: Tensor) -> tuple[Tensor, Tensor]:
    """Counts ``[B, 1, Q]`` and indices ``[B, 1, Q, K]`` (present ones first) of a block matrix."""
    count = present.sum(-1, dtype=torch.int32)
    index = torch.argsort(present.to(torch.int8), dim=-1, descending=True, stable=True)
    return count[:, None], index.to(torch.int32)[:, None].contiguous()


def _refuse_extras(kwargs: dict[str, Any]) -> None:
    for extra in ("softcap", "s_aux", "position_bias", "sliding_window"):
        if kwargs.get(extra) is not None:
            raise ModelError(
                f"tree attention does not support a model with {extra}; it computes plain "
                f"softmax attention on {BACKENDS}"
            )


def _checked(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.ndim != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ModelError(
            "tree attention takes a 4-D boolean or additive mask, not "
            f"{mask.ndim}-D of {str(mask.dtype).removeprefix('torch.')}"
        )
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


def _refuse_tree_positions(positions: Tensor | None) -> None:
    """A causal mask under positions that fork is silently wrong, so it is an error.

    Left padding (0 or 1 before the first real position) is ordinary and passes.
    """
    if positions is None or positions.shape[-1] < 2:
        return
    before, after = positions[..., :-1], positions[..., 1:]
    jumps = (after - before != 1) & (torch.maximum(before, after) > 1)
    if bool(jumps.any()):
        raise ModelError(
            "positions of a tree or of packed rows were given without the tree's attention mask"
        )


register()
