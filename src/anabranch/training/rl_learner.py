"""One optimizer step on a global batch of scored groups, measured, and its checkpoints.

The learner owns model, optimizer and reference; it knows nothing of problems, engines or rewards.
No step is taken on a loss or gradient that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anabranch.engines.local_load import load_weights, quiet_loading
from anabranch.errors import ModelError
from anabranch.training.audit import audit, use_tree_attention
from anabranch.training.loss import edge_logits, edge_logprobs
from anabranch.training.policy_loss import engine_gap, policy_loss
from anabranch.training.rl_batch import MicroBatch, PolicyBatch, ScoredGroup, policy_batch
from anabranch.training.rl_config import RLConfig


class NotFiniteError(ModelError):
    """The loss or the gradient is not a number; the weights are as before the step."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What a step did.

    Attributes:
        loss: of the global batch; NaN-free by construction.
        grad_norm: before clipping.
        gap, gap_max: mean and largest ``|log π_trainer − log π_engine|`` of the trained tokens,
            before the step; None without any that both know.
        clipped: share of tokens whose ratio was clipped; kl: mean per token.
        entropy: mean of the trained tokens' distributions, before the step.
        tokens: divisor; tree_tokens: computed; trained: rollouts with a part in the gradient.
        stepped: False where nothing had an advantage, and the weights were left alone.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    gap: float | None = None
    gap_max: float | None = None
    clipped: float = 0.0
    kl: float = 0.0
    entropy: float | None = None
    tokens: int = 0
    tree_tokens: int = 0
    trained: int = 0
    stepped: bool = False


class Learner:
    """Model and optimizer.

    Args:
        model: a transformers causal LM, trained in place.
        config: of the run.

    Raises:
        ModelError: the model cannot be trained on trees.
    """

    def __init__(self, model: Any, config: RLConfig) -> None:
        use_tree_attention(model)
        self.gather = audit(model, backend=config.attention).gather
        self.model, self.config, self.loss = model, config, config.loss
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
        )
        self.reference: Any = deepcopy(model).eval() if config.loss.kl > 0 else None

    def update(
        self, groups: Sequence[ScoredGroup], step: int, *, clip_high: float | None = None
    ) -> UpdateReport:
        """Train on a global batch, ``config.epochs`` optimizer steps.

        Args:
            groups: the batch.
            step: counted from 1; decides the learning rate.
            clip_high: instead of the configured one.

        Raises:
            NotFiniteError: see there.
        """
        config = self.config
        self.loss = config.loss
        if clip_high is not None:
            self.loss = config.loss.model_copy(update={"clip_high": clip_high})
        device = next(self.model.parameters()).device
        batch = policy_batch(
            groups,
            config.loss,
            micro_tokens=config.micro_tokens,
            pad_id=_pad(self.model),
            multiple=128 if device.type == "cuda" else 1,
            device=device,
        )
        if not batch.micro:
            return UpdateReport(tokens=batch.tokens)
        # With dropout it would be another policy than the engine's.
        self.model.eval()
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step)
        totals = _Totals()
        if config.epochs > 1 or self.reference is not None:
            self._prepare(batch)
        for epoch in range(config.epochs):
            self._epoch(batch, totals, first=epoch == 0)
        return totals.report(batch)

    def _prepare(self, batch: PolicyBatch) -> None:
        """Log-probs under the weights of the step's beginning, and under the reference."""
        for micro in batch.micro:
            with torch.no_grad():
                old = self._logprobs(self.model, micro)[0]
                other = self._logprobs(self.reference, micro)[0] if self.reference else None
            micro.values = replace(micro.values, old=old, reference=other)

    def _epoch(self, batch: PolicyBatch, totals: _Totals, *, first: bool) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for micro in batch.micro:
            logprobs, entropy = self._logprobs(self.model, micro, entropy=first)
            loss, sums = policy_loss(logprobs, micro.values, self.loss)
            if not bool(torch.isfinite(loss)):
                raise NotFiniteError(f"the loss is {float(loss.detach())}")
            torch.autograd.backward(loss)
            loss_sum += float(loss.detach())
            if first:
                totals.add(logprobs.detach(), micro, entropy)
            totals.sums(sums, len(logprobs))
        limit = self.config.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not math.isfinite(norm):
            raise NotFiniteError(f"the gradient's norm is {norm}")
        self.optimizer.step()
        totals.loss, totals.norm = loss_sum, norm

    def _logprobs(
        self, model: Any, micro: MicroBatch, *, entropy: bool = False
    ) -> tuple[torch.Tensor, float]:
        dtype = torch.bfloat16 if self.config.precision == "bf16" else None
        with torch.autocast(micro.tensors.ids.device.type, dtype, enabled=dtype is not None):
            logits = edge_logits(
                model,
                micro.tensors,
                dtype=dtype,
                backend=self.config.attention,
                gather=self.gather,
            )
        found = 0.0
        if entropy:
            with torch.no_grad():
                shifted = torch.log_softmax(logits.detach().float(), -1)
                found = float(-(shifted.exp() * shifted).sum())
        return edge_logprobs(logits, micro.tensors.tokens), found

    def save(self, folder: Path) -> None:
        """Weights (as a loadable model), optimizer and reference's weights."""
        with quiet_loading():
            self.model.save_pretrained(folder)
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        if self.reference is not None:
            torch.save(self.reference.state_dict(), folder / "reference.pt")

    def load(self, folder: Path) -> None:
        """The inverse of :meth:`save`."""
        load_weights(self.model, folder)
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        if self.reference is not None:
            self.reference.load_state_dict(torch.load(folder / "reference.pt", weights_only=True))


@dataclass(slots=True)
class _Totals:
    loss: float = 0.0
    norm: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0
    known: int = 0
    entropy: float = 0.0
    edges: int = 0
    clipped: float = 0.0
    kl: float = 0.0
    seen: int = 0

    def add(self, logprobs: torch.Tensor, micro: MicroBatch, entropy: float) -> None:
        total, most, known = engine_gap(logprobs, micro.values.behaviour)
        self.gap += total
        self.gap_max = max(self.gap_max, most)
        self.known += known
        self.entropy += entropy
        self.edges += len(logprobs)

    def sums(self, sums: dict[str, float], edges: int) -> None:
        self.clipped += sums["clipped"]
        self.kl += sums["kl"]
        self.seen += edges

    def report(self, batch: PolicyBatch) -> UpdateReport:
        return UpdateReport(
            loss=self.loss,
            grad_norm=self.norm,
            gap=self.gap / self.known if self.known else None,
            gap_max=self.gap_max if self.known else None,
            clipped=self.clipped / max(self.seen, 1),
            kl=self.kl / max(self.seen, 1),
            entropy=self.entropy / max(self.edges, 1),
            tokens=batch.tokens,
            tree_tokens=batch.tree_tokens,
            trained=batch.trained,
            stepped=True,
        )


def _pad(model: Any) -> int:
    pad = getattr(model.config, "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else 0
