"""The policy-gradient loss over edges: clipped ratio, optional KL and importance correction.

Each edge comes with its advantage and with its share of the divisor, which is known for the whole
global batch before the first forward, so value and gradient do not depend on micro-batches or
ranks. Where batches come from is :mod:`anabranch.training.rl_batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class PolicyLossConfig(BaseModel):
    """The loss as data.

    Attributes:
        clip_low, clip_high: the ratio π / π_old counts up to ``1 − low`` and ``1 + high``.
        kl: weight of the divergence from the reference model (estimator k3); 0 needs no reference.
        importance: factor π_old / π_engine per token, cut at this value, against a mismatch of
            engine and trainer; None leaves it out. The gap is measured in either case.
        normalise: what the sum over tokens is divided by: all sampled ``tokens`` of the batch;
            the tokens of its own ``trajectory``, then the number of trajectories; or ``constant``.
        constant: the divisor of ``constant``, times the number of trajectories.
    """

    model_config = ConfigDict(extra="forbid")

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.28, ge=0)
    kl: float = Field(default=0.0, ge=0)
    importance: float | None = Field(default=None, gt=0)
    normalise: Literal["tokens", "trajectory", "constant"] = "tokens"
    constant: float = Field(default=1000.0, gt=0)

    def share(self, tokens: int, batch_tokens: int, trajectories: int) -> float:
        """What one token of a trajectory counts: one over its divisor.

        Args:
            tokens: sampled tokens of the trajectory.
            batch_tokens, trajectories: of the global batch; rollouts without a reward not counted.
        """
        if self.normalise == "tokens":
            return 1 / batch_tokens
        if self.normalise == "trajectory":
            return 1 / (tokens * trajectories)
        return 1 / (self.constant * trajectories)


@dataclass(frozen=True, slots=True)
class EdgeValues:
    """What the loss knows of each of ``E`` sampled tokens, all ``[E]`` in fp32.

    Attributes:
        advantages: of the token's trajectory.
        shares: one over the divisor, see :meth:`PolicyLossConfig.share`.
        behaviour: log-prob that the engine reported; NaN where it did not.
        old: log-prob under the policy at the beginning of the step; None: the current one.
        reference: log-prob under the reference model, for the KL term.
    """

    advantages: Tensor
    shares: Tensor
    behaviour: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None


def policy_loss(
    logprobs: Tensor, values: EdgeValues, config: PolicyLossConfig
) -> tuple[Tensor, dict[str, float]]:
    """This micro-batch's part of the loss; the parts of a global batch add up.

    ``−Σ share · w · min(ρ A, clip(ρ) A) + kl · Σ share · k3``, with ``ρ = π / π_old`` and
    ``w = min(π_old / π_engine, importance)``. Without any edge it is 0 with a graph.

    Args:
        logprobs: ``[E]`` under the current weights, with a graph.
        values: the rest.
        config: the loss.

    Returns:
        the loss, and sums over edges for the log: ``clipped`` tokens, ``kl``.
    """
    old = logprobs.detach() if values.old is None else values.old
    ratio = torch.exp(logprobs - old)
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain = torch.minimum(ratio * values.advantages, bounded * values.advantages)
    if config.importance is not None:
        gap = (old - values.behaviour).nan_to_num(0.0)
        gain = gain * gap.exp().clamp(max=config.importance)
    loss = -(gain * values.shares).sum()
    sums = {"clipped": float((ratio != bounded).sum()), "kl": 0.0}
    if config.kl > 0 and values.reference is not None:
        away = values.reference - logprobs
        divergence = torch.exp(away) - away - 1
        loss = loss + config.kl * (divergence * values.shares).sum()
        sums["kl"] = float(divergence.detach().sum())
    return loss, sums


def engine_gap(trainer: Tensor, behaviour: Tensor) -> tuple[float, float, int]:
    """Sum and largest of ``|log π_trainer − log π_engine|``, and over how many tokens."""
    gaps = (trainer - behaviour).abs()
    known = gaps[~torch.isnan(gaps)]
    if len(known) == 0:
        return 0.0, 0.0, 0
    return float(known.sum()), float(known.max()), len(known)
