"""The tree computes what every request computes alone: logits, gradients, isolation."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tree_cases import groups, make_trajectory, tiny_model

from anabranch.records import Trajectory
from anabranch.training.attention import dense_allowed, tree_mask
from anabranch.training.audit import use_tree_attention
from anabranch.training.layout import build_layout
from anabranch.training.loss import edge_logits, edge_loss, to_tensors
from anabranch.training.packing import collate, pack

FAMILIES = ("Llama", "Qwen3")


@pytest.fixture(scope="module", params=FAMILIES)
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same weights twice: with tree attention, and as transformers would run them."""
    plain, tree = tiny_model(request.param), tiny_model(request.param)
    plain.set_attn_implementation("eager")
    use_tree_attention(tree)
    return plain, tree


def alone(model: Any, group: list[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of all targets, request by request, and the mean loss over them."""
    logits, losses = [], []
    for trajectory in group:
        for unit in trajectory.units():
            ids = torch.tensor([unit.context + unit.completion])
            found = model(input_ids=ids, use_cache=False).logits[0, len(unit.context) - 1 : -1]
            logits.append(found)
            losses.append(
                torch.nn.functional.cross_entropy(
                    found, torch.tensor(unit.completion), reduction="sum"
                )
            )
    joined = torch.cat(logits)
    return joined, torch.stack(losses).sum() / len(joined)


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def compare(models: tuple[Any, Any], group: list[Trajectory], width: int | None = None) -> None:
    plain, tree = models
    layouts = [build_layout(group)] if width is None else [build_layout(t) for t in group]
    rows = pack(layouts, width or len(layouts[0]))
    batch = to_tensors(collate(rows))
    expected, loss = alone(plain, group)
    logits = edge_logits(tree, batch)
    if width is None:
        assert torch.allclose(logits, expected, atol=1e-5, rtol=1e-5)
    found = edge_loss(logits, batch, float(batch.weights.sum()))
    assert torch.allclose(found, loss, atol=1e-5)
    for one, other in zip(gradients(tree, found), gradients(plain, loss), strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(group=groups())
def test_logits_and_gradients_equal_every_request_alone(
    models: tuple[Any, Any], group: list[Trajectory]
) -> None:
    compare(models, group)


@settings(max_examples=20, deadline=None)
@given(group=groups())
def test_packed_and_padded_rows_change_nothing(
    models: tuple[Any, Any], group: list[Trajectory]
) -> None:
    longest = max(len(build_layout(t)) for t in group)
    compare(models, group, width=longest + 7)


def test_gradient_checkpointing_changes_nothing(models: tuple[Any, Any]) -> None:
    plain, tree = models
    group = [make_trajectory(2, [[3, 0, 2], [1, 4]], depth=2)]
    tree.activation_checkpointing_enable()
    tree.train()
    try:
        compare((plain, tree), group)
    finally:
        tree.activation_checkpointing_disable()
        tree.eval()


def test_a_changed_token_leaves_siblings_bit_identical_and_changes_the_join(
    models: tuple[Any, Any],
) -> None:
    """Restates huggingface/transformers#46634 for branches: isolation may not be off silently."""
    _, tree = models
    layout = build_layout(make_trajectory(4, [[4, 3, 4]]))
    batch = to_tensors(collate([layout]))
    mask = tree_mask(batch.subtree_end, torch.float32)
    changed = batch.ids.clone()
    first = int(layout.rows[layout.request == 1][1])  # a token inside branch 1
    changed[0, first] = (changed[0, first] + 1) % 61
    with torch.no_grad():
        before, after = (
            tree(
                input_ids=ids, position_ids=batch.positions, attention_mask=mask, use_cache=False
            ).logits[0]
            for ids in (batch.ids, changed)
        )
    sees = dense_allowed(batch.subtree_end)[0, :, first]
    assert torch.equal(before[~sees], after[~sees])
    assert (before[sees] != after[sees]).any(-1).all()
    siblings = torch.from_numpy(layout.rows[(layout.request == 2) | (layout.request == 3)])
    join = torch.from_numpy(layout.rows[layout.request == 4])
    assert not sees[siblings].any() and sees[join].all()
