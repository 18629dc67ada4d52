"""Rewards of fork-join rollouts: small named terms, composed by configuration.

``group`` is what a term sees, ``shapes`` bounds and standardises numbers, ``terms`` are the terms,
``compose`` adds them up, ``presets`` has the formulas of the published systems. Who is right is a
grader's business; what becomes of the rewards is :mod:`anabranch.training.advantages`.
"""

from anabranch.training.rewards.compose import Reward, RewardConfig, score_group
from anabranch.training.rewards.group import Group, Rollout
from anabranch.training.rewards.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "Group",
    "Reward",
    "RewardConfig",
    "Rollout",
    "preset",
    "score_group",
]
