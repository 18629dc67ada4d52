"""The loss of a batch of trees equals a naive one, request by request, however it is split."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tree_cases import Writer, make_trajectory, tiny_model

from anabranch.records import Request, Segment, Trajectory
from anabranch.training.audit import use_tree_attention
from anabranch.training.loss import edge_logits, edge_logprobs
from anabranch.training.policy_loss import EdgeValues, PolicyLossConfig, engine_gap, policy_loss
from anabranch.training.rl_batch import ScoredGroup, policy_batch

PROMPT = (1, 2, 3)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """The same weights twice: as transformers would run them, and with tree attention."""
    plain, tree = tiny_model("Llama"), tiny_model("Llama")
    plain.set_attn_implementation("eager")
    use_tree_attention(tree)
    return plain, tree


def scored(trajectories: Sequence[Trajectory], values: Sequence[float | None]) -> ScoredGroup:
    given = tuple(0.0 if value is None else value for value in values)
    return ScoredGroup(tuple(trajectories), tuple(values), given)


def batch_of_groups() -> list[ScoredGroup]:
    shapes: list[list[list[int]]] = [[[3, 2]], [], [[1, 4, 2], [2, 2]], [[5, 0, 1]]]
    one = [make_trajectory(n, rounds, prompt=PROMPT) for n, rounds in enumerate(shapes)]
    two = [make_trajectory(9 + n, rounds, prompt=(4, 5)) for n, rounds in enumerate(shapes[:3])]
    return [scored(one, (0.75, -0.25, -0.6, 0.1)), scored(two, (0.5, 0.0, -0.5))]


def sequence(length: int, seed: int = 0) -> Trajectory:
    """A trajectory of one request that sampled so many tokens."""
    torch.manual_seed(seed + length)
    ids = tuple(torch.randint(0, 61, (length,)).tolist())
    return Trajectory(
        id=str(length),
        segments=[
            Segment(origin="prompt", ids=PROMPT),
            Segment(origin="sampled", ids=ids, logprobs=(-1.0,) * length if length else None),
        ],
        requests=[Request(kind="main", context=(0,), output=1)],
    )


def loss_of(
    model: Any, groups: list[ScoredGroup], config: PolicyLossConfig, **split: Any
) -> tuple[float, list[torch.Tensor], int]:
    """Value, gradients and number of forwards of the loop's loss."""
    model.zero_grad()
    batch = policy_batch(groups, config, **split)
    value = 0.0
    for micro in batch.micro:
        logprobs = edge_logprobs(edge_logits(model, micro.tensors), micro.tensors.tokens)
        loss, _ = policy_loss(logprobs, micro.values, config)
        loss.backward()
        value += float(loss.detach())
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return value, found, len(batch.micro)


def naive(
    model: Any, groups: list[ScoredGroup], config: PolicyLossConfig
) -> tuple[float, list[torch.Tensor]]:
    """The definition, every request of every rollout by itself, plainly causal."""
    model.zero_grad()
    members = [
        (t, a)
        for group in groups
        for t, a, r in zip(group.trajectories, group.advantages, group.rewards, strict=True)
        if r is not None and t.sampled_tokens
    ]
    tokens = sum(t.sampled_tokens for t, _ in members)
    total = torch.zeros(())
    for trajectory, advantage in members:
        own = torch.zeros(())
        for unit in trajectory.units():
            ids = torch.tensor([unit.context + unit.completion])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(unit.context) - 1 : -1]
            scores = torch.log_softmax(logits, -1)
            now = scores[torch.arange(len(unit.completion)), torch.tensor(unit.completion)]
            ratio = torch.exp(now - now.detach())
            weight = torch.ones_like(now)
            if config.importance is not None:
                assert unit.logprobs is not None
                mismatch = now.detach() - torch.tensor(unit.logprobs)
                weight = mismatch.exp().clamp(max=config.importance)
            own = own + (weight * ratio * advantage).sum()
        if config.normalise == "trajectory":
            own = own / trajectory.sampled_tokens
        total = total - own
    if config.normalise == "tokens":
        total = total / tokens
    elif config.normalise == "trajectory":
        total = total / len(members)
    else:
        total = total / (config.constant * len(members))
    total.backward()
    return float(total.detach()), [p.grad.clone() for p in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert float((a - b).abs().max()) <= tolerance


@pytest.mark.parametrize("normalise", ["tokens", "trajectory", "constant"])
@pytest.mark.parametrize("importance", [None, 1.5])
def test_gradient_equals_every_request_alone(
    models: tuple[Any, Any], normalise: Any, importance: float | None
) -> None:
    plain, tree = models
    config = PolicyLossConfig(normalise=normalise, importance=importance, constant=40.0)
    groups = batch_of_groups()
    value, found, _ = loss_of(tree, groups, config)
    expected, gradients = naive(plain, groups, config)
    assert max(float(g.abs().max()) for g in gradients) > 3e-4
    assert value == pytest.approx(expected, abs=1e-6)
    same(found, gradients, 1e-6)


@pytest.mark.parametrize("normalise", ["tokens", "trajectory", "constant"])
def test_independent_of_micro_batches(models: tuple[Any, Any], normalise: Any) -> None:
    """trl#3021, trl#3187: a mean per micro-batch, then a mean of means, depends on the split."""
    lengths, weights = (2, 8, 3, 7), (0.5, -1.0, 0.25, 0.75)
    groups = [scored([sequence(n)], [a]) for n, a in zip(lengths, weights, strict=True)]
    config = PolicyLossConfig(normalise=normalise, constant=10.0)
    whole, gradients, count = loss_of(models[1], groups, config)
    assert count == 1
    divisor = {"tokens": 20.0, "trajectory": 4.0, "constant": 40.0}[normalise]
    each = [
        a if normalise == "trajectory" else a * n for n, a in zip(lengths, weights, strict=True)
    ]
    assert whole == pytest.approx(-sum(each) / divisor, abs=1e-6)
    for micro_tokens, forwards in ((1, 3), (22, 2)):
        value, found, count = loss_of(models[1], groups, config, micro_tokens=micro_tokens)
        assert count == forwards
        assert value == pytest.approx(whole, abs=1e-6)
        same(found, gradients, 1e-6)


def test_a_group_in_one_tree_is_its_rollouts_apart(models: tuple[Any, Any]) -> None:
    config = PolicyLossConfig()
    group = batch_of_groups()[0]
    apart = [scored([t], [a]) for t, a in zip(group.trajectories, group.advantages, strict=True)]
    together, found, _ = loss_of(models[1], [group], config)
    split, gradients, _ = loss_of(models[1], apart, config)
    assert together == pytest.approx(split, abs=1e-6)
    same(found, gradients, 1e-6)


def test_on_policy_the_mean_over_trajectories_is_0(models: tuple[Any, Any]) -> None:
    groups = [scored([sequence(n) for n in (2, 8, 3, 7)], (0.75, -0.25, -0.25, -0.25))]
    value, _, _ = loss_of(models[1], groups, PolicyLossConfig(normalise="trajectory"))
    assert value == pytest.approx(0.0, abs=1e-7)


def test_masked_rollouts_leave_sum_and_divisor(models: tuple[Any, Any]) -> None:
    """trl#3248: truncated answers taken from the sum and left in the divisor."""
    config = PolicyLossConfig()
    kept = [sequence(3), sequence(5)]
    masked = [sequence(9), sequence(4)]
    value, found, _ = loss_of(
        models[1], [scored([*kept, *masked], (0.5, -0.5, None, None))], config
    )
    alone, gradients, _ = loss_of(models[1], [scored(kept, (0.5, -0.5))], config)
    assert value == pytest.approx(alone, abs=1e-7)
    same(found, gradients, 1e-7)
    everything = policy_batch([scored([*kept, *masked], [None] * 4)], config)
    assert everything.micro == () and everything.tokens == 0


def test_an_empty_answer_divides_nothing(models: tuple[Any, Any]) -> None:
    for normalise in ("tokens", "trajectory", "constant"):
        config = PolicyLossConfig(normalise=normalise)  # type: ignore[arg-type]
        group = scored([sequence(0), sequence(5)], (-0.5, 0.5))
        value, _, _ = loss_of(models[1], [group], config)
        alone, _, _ = loss_of(models[1], [scored([sequence(5)], [0.5])], config)
        assert math.isfinite(value)
        assert value == pytest.approx(alone, abs=1e-7)


def test_only_sampled_tokens_are_trained() -> None:
    """Parallel-R1-repro's audit: tags that the runtime had inserted carried loss."""
    import random

    writer = Writer(random.Random(3))
    trajectory = writer.trajectory(PROMPT, [[4, 6]], 1)
    batch = policy_batch([scored([trajectory], [1.0])], PolicyLossConfig())
    [micro] = batch.micro
    assert len(micro.tensors.tokens) == trajectory.sampled_tokens == batch.tokens
    forced = sum(len(s) for s in trajectory.segments if s.origin == "forced")
    assert forced > 0
    sampled = sorted(i for s in trajectory.segments if s.origin == "sampled" for i in s.ids)
    assert sorted(micro.tensors.tokens.tolist()) == sampled


def edges(advantages: list[float], old: list[float] | None = None, **more: Any) -> EdgeValues:
    count = len(advantages)
    return EdgeValues(
        advantages=torch.tensor(advantages),
        shares=torch.full((count,), 1 / count),
        behaviour=more.get("behaviour", torch.full((count,), math.nan)),
        old=None if old is None else torch.tensor(old),
        reference=more.get("reference"),
    )


def test_the_clip_is_asymmetric() -> None:
    config = PolicyLossConfig(clip_low=0.2, clip_high=0.28)
    logprobs = torch.log(torch.tensor([1.5, 0.5, 1.5, 0.5])).requires_grad_()
    loss, sums = policy_loss(logprobs, edges([1.0, 1.0, -1.0, -1.0], [0.0] * 4), config)
    # min(ρA, clip(ρ)A): 1.28, 0.5, −1.5, −0.8.
    assert float(loss.detach()) == pytest.approx(-(1.28 + 0.5 - 1.5 - 0.8) / 4)
    assert sums["clipped"] == 4
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.125, 0.375, 0.0])


def test_kl_and_importance_by_hand() -> None:
    logprobs = torch.tensor([-1.0, -2.0])
    config = PolicyLossConfig(kl=0.5)
    values = edges([0.0, 0.0], reference=torch.tensor([-1.0, -1.5]))
    loss, sums = policy_loss(logprobs, values, config)
    k3 = math.exp(0.5) - 0.5 - 1
    assert float(loss) == pytest.approx(0.5 * k3 / 2)
    assert sums["kl"] == pytest.approx(k3)
    config = PolicyLossConfig(importance=2.0)
    values = edges([1.0, 1.0, 1.0], behaviour=torch.tensor([-1.1, -4.0, math.nan]))
    loss, _ = policy_loss(torch.tensor([-1.0, -2.0, -1.0]), values, config)
    assert float(loss) == pytest.approx(-(math.exp(0.1) + 2.0 + 1.0) / 3)


def test_the_gap_is_of_known_tokens_only() -> None:
    total, most, known = engine_gap(
        torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, math.nan, -2.9])
    )
    assert (total, most, known) == (pytest.approx(0.6), pytest.approx(0.5), 2)
    assert engine_gap(torch.tensor([-1.0]), torch.tensor([math.nan])) == (0.0, 0.0, 0)
