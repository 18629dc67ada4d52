"""Whether an engine computes what training computes: log-probs of sampled tokens, side by side.

The engine's log-prob of every token that a trajectory sampled is compared with that of the same
weights in transformers on the tree layout. A large difference means another model, another
tokenizer, positions or a cache that went wrong, or kernels that are not exact enough to train on
what the engine sampled. Running the trajectories is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from anabranch.checkpoint import require_checkpoint
from anabranch.engines.local_load import quiet_loading
from anabranch.errors import ModelError, UsageError
from anabranch.records import Trajectory
from anabranch.training.audit import use_tree_attention
from anabranch.training.layout import Floats, TreeLayout, build_layout
from anabranch.training.loss import edge_logits, edge_logprobs, to_tensors
from anabranch.training.packing import collate

__all__ = ["TOLERANCES", "Exactness", "Worst", "check_exactness"]

#: Largest difference of two log-probs, by the type that the engine computes in.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
#: Characters of output shown in front of the token that differs most.
_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Worst:
    """The token whose log-probs differ most.

    Attributes:
        difference: absolute, in nats.
        engine, reference: both log-probs.
        trajectory: which of those given, by its place; ``request`` which of its requests.
        kind, block, branch: of that request.
        place: number of the token within the request's output, from 0.
        token, text: its id and its text; ``before`` is the output in front of it.
    """

    difference: float
    engine: float
    reference: float
    trajectory: int
    request: int
    kind: str
    block: tuple[int, ...]
    branch: int | None
    place: int
    token: int
    text: str
    before: str


@dataclass(frozen=True, slots=True)
class Exactness:
    """What was found.

    Attributes:
        tokens: sampled tokens that were compared; ``unscored`` those without a log-prob.
        mean: mean absolute difference.
        surprise: mean of minus the engine's log-prob, in nats: where it is near 0 the model was
            sure of every token, and a difference in its logits hardly shows. Sample hotter then.
        worst: the largest.
        dtype: what the engine is held to; ``tolerance`` the largest difference allowed.
        rounding: the largest difference of transformers itself in that type: what the type costs
            with these tokens. Twice that is allowed where it is more than the tolerance: a logit
            of 16 in bfloat16 is rounded by up to 0.06, which shows wherever the model is unsure.
    """

    tokens: int
    unscored: int
    mean: float
    surprise: float
    worst: Worst
    dtype: str
    tolerance: float
    rounding: float

    @property
    def exact(self) -> bool:
        """Whether every log-prob is within the tolerance."""
        return self.worst.difference <= self.allowed

    @property
    def allowed(self) -> float:
        """The tolerance, or twice the type's own rounding."""
        return max(self.tolerance, 2 * self.rounding)


def check_exactness(
    trajectories: Sequence[Trajectory],
    folder: Path | str,
    decode: Callable[[Sequence[int]], str],
    *,
    dtype: str | None = None,
    tolerance: float | None = None,
) -> Exactness:
    """Compares the log-probs of trajectories with those of a checkpoint, computed in float32.

    Args:
        trajectories: from the engine, with log-probs, in the engine's own token ids.
        folder: the checkpoint that the engine serves.
        decode: text of token ids, for the report.
        dtype: what the engine computes in; None: the type of the weights.
        tolerance: None: of that type, see :data:`TOLERANCES`.

    Raises:
        ModelError: the checkpoint cannot be loaded, or cannot follow a tree.
        UsageError: there is nothing to compare, or the type is not known.
    """
    if any(one.retokenized for one in trajectories):
        raise UsageError("the engine gives text only: there are no log-probs of its tokens")
    model, stored = _load(folder)
    dtype = dtype or stored
    if dtype not in TOLERANCES:
        raise UsageError(f"no tolerance for {dtype!r}: use {', '.join(TOLERANCES)}")
    if tolerance is None:
        tolerance = TOLERANCES[dtype]
    worst: Worst | None = None
    tokens = unscored = 0
    total = surprise = rounding = 0.0
    layouts = [build_layout(trajectory) for trajectory in trajectories]
    references = [_reference(model, layout) for layout in layouts]
    if dtype != "float32":
        model = model.to(getattr(torch, dtype))
        for layout, reference in zip(layouts, references, strict=True):
            off = np.abs(_reference(model, layout) - reference)
            rounding = max(rounding, float(off.max()))
    for number, trajectory in enumerate(trajectories):
        layout, reference = layouts[number], references[number]
        difference = np.abs(layout.logprobs.astype(np.float64) - reference)
        known = ~np.isnan(difference)
        tokens += int(known.sum())
        unscored += int((~known).sum())
        if not known.any():
            continue
        total += float(difference[known].sum())
        surprise -= float(layout.logprobs[known].sum(dtype=np.float64))
        edge = int(np.nanargmax(difference))
        if worst is None or difference[edge] > worst.difference:
            request = int(layout.request[edge])
            place = int((layout.request[:edge] == request).sum())
            scores = float(layout.logprobs[edge]), float(reference[edge])
            worst = _worst(number, trajectory, request, place, scores, decode)
    if worst is None:
        raise UsageError("the engine gave no log-probs: its exactness cannot be checked")
    return Exactness(
        tokens, unscored, total / tokens, surprise / tokens, worst, dtype, tolerance, rounding
    )


def _reference(model: Any, layout: TreeLayout) -> Floats:
    """Log-probs of a layout's targets, in their order."""
    batch = to_tensors(collate([layout]))
    with torch.inference_mode():
        scores: Floats = edge_logprobs(edge_logits(model, batch), batch.tokens).numpy()
    return scores


def _worst(
    number: int,
    trajectory: Trajectory,
    request: int,
    place: int,
    scores: tuple[float, float],
    decode: Callable[[Sequence[int]], str],
) -> Worst:
    about = trajectory.requests[request]
    ids = trajectory.segments[about.output].ids
    return Worst(
        difference=abs(scores[0] - scores[1]),
        engine=scores[0],
        reference=scores[1],
        trajectory=number,
        request=request,
        kind=about.kind,
        block=about.block,
        branch=about.branch,
        place=place,
        token=ids[place],
        text=decode([ids[place]]),
        before=decode(list(ids[:place]))[-_SHOWN:],
    )


def _load(folder: Path | str) -> tuple[Any, str]:
    """The model in float32 with tree attention, and the type of its weights as stored."""
    require_checkpoint(folder)
    try:
        with quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype="auto", local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{folder}: cannot be loaded: {first}") from error
    stored = str(model.dtype).removeprefix("torch.")
    model = model.float().eval()
    use_tree_attention(model)
    return model, stored
