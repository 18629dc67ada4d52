"""Rows: deterministic, isolated, and never longer than asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import groups, make_trajectory

from anabranch.records import Trajectory
from anabranch.training.layout import LayoutError, build_layout
from anabranch.training.packing import collate, join, pack, plan_rows


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 120))
def test_rows_hold_every_tree_once_within_their_length(lengths: list[int], width: int) -> None:
    rows = plan_rows(lengths, width)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= width for row in rows)
    assert rows == plan_rows(list(lengths), width)


def test_a_tree_longer_than_a_row_is_named_with_both_lengths() -> None:
    layout = build_layout(make_trajectory(1, [[3, 3]]), name="gsm8k-475")
    with pytest.raises(LayoutError, match=rf"gsm8k-475: the tree has {len(layout)} tokens, .* 5"):
        pack([layout], 5)


@settings(max_examples=40, deadline=None)
@given(groups(), groups())
def test_trees_of_one_row_do_not_see_each_other(
    first: list[Trajectory], second: list[Trajectory]
) -> None:
    a, b = build_layout(first), build_layout(second)
    both = join([a, b])
    assert (both.subtree_end[: len(a)] <= len(a)).all()
    assert both.ids[both.rows].tolist() == [*a.ids[a.rows], *b.ids[b.rows]]
    assert both.weight == pytest.approx(a.weight + b.weight)
    assert set(both.trajectory[len(a.rows) :]) == {
        t + len(first) for t in np.unique(b.trajectory)
    } or set(np.unique(a.trajectory)) != set(range(len(first)))


def test_padding_sees_itself_alone_and_is_seen_by_nobody() -> None:
    """Restates pytorch/pytorch#103749: no query without a key, so no NaN."""
    rows = [build_layout(make_trajectory(s, [[2, 3]] * n)) for s, n in ((1, 1), (2, 2))]
    batch = collate(rows, pad_id=3, multiple=8)
    assert batch.ids.shape[1] % 8 == 0
    index = np.arange(batch.ids.shape[1])
    allowed = (index[None, None, :] <= index[None, :, None]) & (
        index[None, :, None] < batch.subtree_end[:, None, :]
    )
    assert allowed.any(-1).all()
    for number, row in enumerate(rows):
        pad = slice(len(row), None)
        assert (allowed[number, pad].sum(-1) == 1).all()
        assert not allowed[number, : len(row), pad].any()
    flat = batch.ids.reshape(-1)
    assert flat[batch.rows].tolist() == [t for row in rows for t in row.ids[row.rows]]


def test_no_rows_give_one_row_without_targets() -> None:
    batch = collate([])
    assert batch.ids.shape == (1, 1) and len(batch.rows) == 0 and batch.real_tokens == 0
