"""Scored groups as packed rows of trees, with advantage and divisor per sampled token.

The rollouts of a group share their prompt in one tree. What cannot change the gradient is not
computed: without a KL term, rollouts with advantage 0 are counted in the divisor and then left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from anabranch.records import Trajectory
from anabranch.training.layout import Floats, TreeLayout, build_layout
from anabranch.training.loss import BatchTensors, to_tensors
from anabranch.training.packing import collate, join, plan_rows
from anabranch.training.policy_loss import EdgeValues, PolicyLossConfig


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The rollouts of one problem with reward (None: takes no part) and advantage of each."""

    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float | None, ...]
    advantages: tuple[float, ...]


@dataclass(slots=True)
class MicroBatch:
    """One forward: tensors of the model, and what the loss knows of each edge."""

    tensors: BatchTensors
    values: EdgeValues


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """One global batch.

    Attributes:
        micro: its forwards.
        tokens: sampled tokens of all rollouts with a reward: the divisor of ``tokens``.
        trained: rollouts that are in ``micro``.
        tree_tokens: tokens in ``micro`` without padding.
    """

    micro: tuple[MicroBatch, ...] = ()
    tokens: int = 0
    trained: int = 0
    tree_tokens: int = 0


@dataclass(slots=True)
class _Trees:
    layouts: list[TreeLayout] = field(default_factory=list)
    advantages: list[Floats] = field(default_factory=list)
    shares: list[Floats] = field(default_factory=list)


def policy_batch(
    groups: Sequence[ScoredGroup],
    config: PolicyLossConfig,
    *,
    micro_tokens: int = 16384,
    row_tokens: int | None = None,
    pad_id: int = 0,
    multiple: int = 1,
    device: torch.device | str = "cpu",
) -> PolicyBatch:
    """Lay out, pack and split a global batch.

    Args:
        groups: with their advantages.
        config: of the loss.
        micro_tokens: padded tokens of one forward, at least one row; memory, not the result.
        row_tokens: length of a packed row; None: the longest tree's. A longer tree is a row alone.
        pad_id, multiple, device: as in :func:`anabranch.training.packing.collate`.
    """
    counted = [
        (t.sampled_tokens, reward)
        for group in groups
        for t, reward in zip(group.trajectories, group.rewards, strict=True)
    ]
    sizes = [size for size, reward in counted if reward is not None and size > 0]
    trees = _Trees()
    trained = 0
    for group in groups:
        trained += _add(trees, group, config, sum(sizes), len(sizes))
    micro = _split(trees, micro_tokens, row_tokens, pad_id, multiple, device)
    return PolicyBatch(
        micro=tuple(micro),
        tokens=sum(sizes),
        trained=trained,
        tree_tokens=sum(map(len, trees.layouts)),
    )


def _add(
    trees: _Trees, group: ScoredGroup, config: PolicyLossConfig, tokens: int, trajectories: int
) -> int:
    """The group's tree, of the rollouts that have a part in the gradient; returns their number."""
    chosen = [
        (trajectory, advantage)
        for trajectory, reward, advantage in zip(
            group.trajectories, group.rewards, group.advantages, strict=True
        )
        if reward is not None
        and trajectory.sampled_tokens > 0
        and (advantage != 0 or config.kl > 0)
    ]
    if not chosen:
        return 0
    layout = build_layout([trajectory for trajectory, _ in chosen])
    each = [config.share(t.sampled_tokens, tokens, trajectories) for t, _ in chosen]
    trees.layouts.append(layout)
    trees.advantages.append(np.array([a for _, a in chosen], np.float32)[layout.trajectory])
    trees.shares.append(np.array(each, np.float32)[layout.trajectory])
    return len(chosen)


def _split(
    trees: _Trees,
    micro_tokens: int,
    row_tokens: int | None,
    pad_id: int,
    multiple: int,
    device: torch.device | str,
) -> list[MicroBatch]:
    if not trees.layouts:
        return []
    lengths = [len(layout) for layout in trees.layouts]
    width = max(row_tokens or 0, *lengths)
    rows = plan_rows(lengths, width)
    per = max(1, micro_tokens // width)
    return [
        _micro(trees, rows[at : at + per], pad_id, multiple, device)
        for at in range(0, len(rows), per)
    ]


def _micro(
    trees: _Trees, rows: list[list[int]], pad_id: int, multiple: int, device: torch.device | str
) -> MicroBatch:
    joined = [join([trees.layouts[index] for index in row]) for row in rows]
    batch = collate(joined, pad_id=pad_id, multiple=multiple)
    # Edges of a batch come row by row, and in a row tree by tree.
    order = [index for row in rows for index in row]

    def edges(parts: list[Floats]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([parts[index] for index in order])).to(device)

    return MicroBatch(
        tensors=to_tensors(batch, device),
        values=EdgeValues(
            advantages=edges(trees.advantages),
            shares=edges(trees.shares),
            behaviour=torch.from_numpy(batch.logprobs).to(device),
        ),
    )
