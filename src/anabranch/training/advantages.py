"""From a group's rewards to one number per rollout, which all its sampled tokens share.

Rollouts without a reward (not graded, failed, masked) or without a trainable token are None here:
they leave the group's statistics and get 0. A group that does not vary gives exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from anabranch.training.rewards.shapes import deviation_of, is_flat, mean_of

#: ``mean``: r − mean (P-GRPO). ``mean_std``: divided by the sample's standard deviation (GRPO);
#: this cancels any factor of the rewards. ``leave_one_out``: r − mean of the others (RLOO).
Mode = Literal["mean", "mean_std", "leave_one_out"]


def advantages(rewards: Sequence[float | None], mode: Mode = "mean") -> list[float]:
    """The advantages of one group, in order; 0 for rollouts without a reward."""
    known = [reward for reward in rewards if reward is not None]
    if is_flat(known):
        return [0.0] * len(rewards)
    middle = mean_of(known)
    scale = 1.0
    if mode == "mean_std":
        scale = 1 / deviation_of(known, sample=True)
    elif mode == "leave_one_out":
        scale = len(known) / (len(known) - 1)
    return [0.0 if reward is None else (reward - middle) * scale for reward in rewards]
