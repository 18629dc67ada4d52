"""The loss: one divisor for the whole batch, zero with a graph where there is nothing."""

import pytest
import torch
from tree_cases import make_trajectory, tiny_model

from anabranch.training.audit import use_tree_attention
from anabranch.training.layout import build_layout
from anabranch.training.loss import edge_logits, edge_loss, to_tensors
from anabranch.training.packing import collate


def gradients(parts: int, weights: list[float]) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradient of eight trees computed in ``parts`` micro-batches."""
    model = tiny_model("Llama")
    use_tree_attention(model)
    layouts = [
        build_layout(make_trajectory(n, [[1 + n % 4, 2]] * (1 + n % 2)), weight=lambda t, r, w=w: w)
        for n, w in enumerate(weights)
    ]
    total, value = sum(layout.weight for layout in layouts), 0.0
    for part in range(parts):
        batch = to_tensors(collate(layouts[part::parts]))
        loss = edge_loss(edge_logits(model, batch), batch, total)
        loss.backward()
        value += float(loss.detach())
    return value, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("weights", [[1.0] * 8, [1.0, 0.25, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0]])
def test_micro_batches_change_neither_loss_nor_gradient(weights: list[float]) -> None:
    """Restates huggingface/trl#3021."""
    value, expected = gradients(1, weights)
    for parts in (2, 4, 8):
        other, found = gradients(parts, weights)
        assert other == pytest.approx(value, abs=1e-6)
        for one, two in zip(found, expected, strict=True):
            assert torch.allclose(one, two, atol=1e-6)


def test_a_batch_without_targets_gives_zero_with_a_graph() -> None:
    """Restates huggingface/trl#3248: every completion of a micro-batch was masked."""
    model = tiny_model("Llama")
    use_tree_attention(model)
    batch = to_tensors(collate([]))
    loss = edge_loss(edge_logits(model, batch), batch, 0.0)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_masked_trajectories_leave_no_trace_in_the_divisor() -> None:
    group = [make_trajectory(n, [[2, 3]]) for n in range(2)]
    model = tiny_model("Llama")
    use_tree_attention(model)

    def loss(weight: dict[str, float]) -> float:
        layout = build_layout(group, weight=lambda t, r: weight[t.id])
        batch = to_tensors(collate([layout]))
        return float(edge_loss(edge_logits(model, batch), batch, layout.weight).detach())

    first, second = group[0].id, group[1].id
    assert first != second
    only = build_layout(group[0])
    batch = to_tensors(collate([only]))
    expected = float(edge_loss(edge_logits(model, batch), batch, only.weight).detach())
    assert loss({first: 1.0, second: 0.0}) == pytest.approx(expected, abs=1e-6)


def test_picking_rows_first_equals_all_logits() -> None:
    model = tiny_model("Granite", logits_scaling=3.0)
    use_tree_attention(model)
    batch = to_tensors(collate([build_layout(make_trajectory(1, [[3, 2], [2, 2]]))]))
    with torch.no_grad():
        picked, full = (edge_logits(model, batch, gather=g) for g in (True, False))
    assert torch.allclose(picked, full, atol=1e-6)
