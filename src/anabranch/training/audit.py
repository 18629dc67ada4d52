"""Before a step is taken: does this model, here, compute a tree as it would each request alone?

Known refusals name their reason; everything else is decided by numbers: two small trees in one
padded batch against every request by itself, with the model as it is, on its device. A model that
fails would train without any visible sign, on wrong contexts, so nothing is let through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import ModelError
from anabranch.training.attention import BACKENDS, NAME, Backend
from anabranch.training.layout import Path, TreeLayout, layout_paths
from anabranch.training.loss import edge_logits, to_tensors, unwrapped
from anabranch.training.packing import collate

#: Largest deviation of a logit, relative to the largest logit, by type of the parameters.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        deviation: largest difference of a logit, relative to the largest logit.
        gather: whether picking rows in front of the output layer gives the model's own logits;
            if not, the loss computes all of them.
    """

    deviation: float
    gather: bool


def use_tree_attention(model: Any) -> None:
    """Switch a loaded model to ``"tree"``, or say why that would be wrong.

    Raises:
        ModelError: naming the supported back ends and the reason.
    """
    refuse_implementation(getattr(model.config, "_attn_implementation", None))
    reason = _reason_against(model)
    if reason:
        raise _refusal(model, reason)
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)


def refuse_implementation(name: str | None) -> None:
    """Refuse attention implementations that ignore or replace a tree's mask.

    Raises:
        ModelError: for FlashAttention, paged attention and kernels from the hub.
    """
    if name is None or name in (NAME, "sdpa", "eager", "flex_attention"):
        return
    raise ModelError(
        f"attention implementation {name!r} does not take a tree's mask; "
        f"tree training supports {BACKENDS}"
    )


def audit(model: Any, *, backend: Backend = "auto", tolerance: float | None = None) -> Audit:
    """Compare two small trees with their requests alone.

    Args:
        model: a causal LM, possibly wrapped for several processes, all of which then call this;
            its mode and weights are left as they are.
        backend: as it will be used.
        tolerance: largest relative deviation; default by the parameters' type.

    Raises:
        ModelError: the implementation is not ``"tree"``, or the logits differ.
    """
    implementation = getattr(unwrapped(model).config, "_attn_implementation", None)
    if implementation != NAME:
        raise ModelError(
            f"the model's attention implementation is {implementation!r}: depth positions without "
            f"the tree's mask are wrong; call use_tree_attention first (back ends: {BACKENDS})"
        )
    if tolerance is None:
        tolerance = TOLERANCE.get(next(model.parameters()).dtype, 1e-4)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = _compare(model, backend)
    finally:
        model.train(was_training)
    if not found.deviation <= tolerance:
        raise _refusal(
            model,
            f"logits of a tree differ from those of its requests alone by {found.deviation:.2g} "
            f"of the largest logit (at most {tolerance:.2g}), so it ignores mask or positions",
        )
    return found


def _compare(model: Any, backend: Backend) -> Audit:
    vocabulary = int(unwrapped(model).get_input_embeddings().weight.shape[0])
    trees = [_tree(vocabulary, seed) for seed in (0, 1)]
    device = next(model.parameters()).device
    batch = to_tensors(collate([layout for layout, _ in trees]), device)
    try:
        full = edge_logits(model, batch, backend=backend, gather=False).float()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise _refusal(model, f"its forward pass refuses a tree ({first})") from error
    alone = torch.cat([_alone(model, path) for _, paths in trees for path in paths])
    scale = float(alone.abs().max().clamp_min(1e-6))
    deviation = float((full - alone).abs().max()) / scale
    return Audit(deviation=deviation, gather=_gathers(model, batch, backend, full, scale))


def _gathers(model: Any, batch: Any, backend: Backend, full: Tensor, scale: float) -> bool:
    try:
        picked = edge_logits(model, batch, backend=backend).float()
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    tolerance = TOLERANCE.get(next(model.parameters()).dtype, 1e-4)
    return picked.shape == full.shape and float((picked - full).abs().max()) <= tolerance * scale


def _alone(model: Any, path: Path) -> Tensor:
    """Logits ``[len(completion), vocab]`` of one request by itself, plainly causal."""
    context = [token for run in path.context for token in run]
    ids = torch.tensor([[*context, *path.completion]], device=next(model.parameters()).device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits[0, len(context) - 1 : -1].float()


def _tree(vocabulary: int, seed: int) -> tuple[TreeLayout, list[Path]]:
    """A plan, three branches of different lengths, their join and a continuation."""
    rng = np.random.default_rng(seed)

    def run(count: int) -> tuple[int, ...]:
        return tuple(int(token) for token in rng.integers(0, vocabulary, count))

    prompt, plan = run(5 + seed), run(4)
    headers = [run(2) for _ in range(3)]
    branches = [run(count) for count in (3, 6 - seed, 1)]
    main = (prompt, plan)
    joined = tuple(r for pair in zip(headers, branches, strict=True) for r in pair)
    paths = [Path((prompt,), plan)]
    paths += [Path((*main, h), b, request=1) for h, b in zip(headers, branches, strict=True)]
    paths.append(Path((*main, *joined), run(4), request=2))
    return layout_paths(paths, name="audit"), paths


def _reason_against(model: Any) -> str | None:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else None
    config = config or model.config
    other = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if other:
        return f"it has layers of type {', '.join(other)}"
    if getattr(config, "sliding_window", None) is not None and getattr(
        config, "use_sliding_window", True
    ):
        return f"it has sliding-window attention (window {config.sliding_window})"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "it has chunked attention"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "it caps attention scores"
    # By attribute, not by class: an adapter around a model passes these on.
    if not hasattr(model, "_supports_attention_backend"):
        return "it is not a transformers model"
    if not model._supports_attention_backend or not model._can_set_attn_implementation():
        return "it has its own attention instead of transformers' attention interface"
    return None


def _refusal(model: Any, reason: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__} cannot be trained on trees: {reason}; "
        f"supported are models with full attention through transformers' attention interface "
        f"on {BACKENDS}"
    )
