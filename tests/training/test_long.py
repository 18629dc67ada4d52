"""Samples that are too long: requests stay whole, targets stay single, losses are listed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tree_cases import groups, make_trajectory

from anabranch.records import Trajectory
from anabranch.training.batches import Batches, BatchPlan
from anabranch.training.layout import LayoutError, TreeLayout, build_layout
from anabranch.training.long import Limits, Policy, fit

POLICIES: tuple[Policy, ...] = ("drop", "split")


def targets(layouts: tuple[TreeLayout, ...]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for layout in layouts:
        found.update(zip(layout.trajectory.tolist(), layout.request.tolist(), strict=True))
    return found


def contexts(layouts: tuple[TreeLayout, ...]) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Of each request, the tokens that its targets see, target by target."""
    seen: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for layout in layouts:
        index = np.arange(len(layout))
        for row, token, who, request in zip(
            layout.rows, layout.tokens, layout.trajectory, layout.request, strict=True
        ):
            ancestors = (index <= row) & (row < layout.subtree_end)
            line = (*layout.ids[ancestors].tolist(), int(token))
            seen.setdefault((int(who), int(request)), []).append(line)
    return seen


@given(group=groups(), share=st.floats(0.2, 1.1), policy=st.sampled_from(POLICIES))
def test_what_is_kept_is_whole_and_fits(
    group: list[Trajectory], share: float, policy: Policy
) -> None:
    layout = build_layout(group)
    limit = max(2, int(len(layout) * share))
    fitted = fit(layout, group, Limits(row=limit), policy)
    assert all(len(tree) <= limit for tree in fitted.layouts)
    assert (fitted.lost is None) == (len(layout) <= limit)
    whole, kept = targets((layout,)), targets(fitted.layouts)
    assert all(kept[key] == whole[key] for key in kept), "a request is there as a whole, once"
    expected, found = contexts((layout,)), contexts(fitted.layouts)
    assert all(found[key] == expected[key] for key in found), "its context is kept"
    lost = whole.keys() - kept.keys()
    if fitted.layouts and lost:
        assert fitted.lost is not None and "left out" in fitted.lost
        assert all(f"request {request}" in fitted.lost for _, request in lost)


@given(seed=st.integers(0, 1000))
def test_splitting_loses_nothing_that_fits_by_itself(seed: int) -> None:
    trajectory = make_trajectory(seed, [[3, 2], [4, 1, 2], [2, 2]])
    layout = build_layout(trajectory)
    longest = int(layout.positions.max()) + 1
    assume(longest < len(layout))
    fitted = fit(layout, [trajectory], Limits(row=longest), "split")
    assert targets(fitted.layouts) == targets((layout,))
    assert f"split into {len(fitted.layouts)} trees" in (fitted.lost or "")


def test_branches_are_dropped_last() -> None:
    trajectory = make_trajectory(0, [[4, 4, 4]])
    layout = build_layout(trajectory)
    kinds = [request.kind for request in trajectory.requests]
    fitted = fit(layout, [trajectory], Limits(row=len(layout) - 1), "drop")
    lost = set(range(len(kinds))) - {r for _, r in targets(fitted.layouts)}
    assert [kinds[n] for n in lost] == ["main"] and lost == {len(kinds) - 1}
    # The join's copies went with it; a tighter row takes the last branch next.
    fewer = fit(layout, [trajectory], Limits(row=len(fitted.layouts[0]) - 1), "drop")
    more = set(range(len(kinds))) - {r for _, r in targets(fewer.layouts)}
    assert more == lost | {len(kinds) - 2} and kinds[len(kinds) - 2] == "branch"


def test_requests_beyond_the_window_are_left_out() -> None:
    trajectory = make_trajectory(1, [[4, 3], [5, 2]])
    layout = build_layout(trajectory)
    window = int(layout.positions.max())
    with pytest.raises(LayoutError, match=f"the model's window only {window}"):
        fit(layout, [trajectory], Limits(window=window), "error")
    assert fit(layout, [trajectory], Limits(window=window), "skip").layouts == ()
    for policy in POLICIES:
        fitted = fit(layout, [trajectory], Limits(window=window), policy)
        assert all(int(tree.positions.max()) < window for tree in fitted.layouts)
        last = len(trajectory.requests) - 1
        assert f"left out main request {last}" in (fitted.lost or "")


def test_ready_layouts_are_used_whole_or_not_at_all() -> None:
    layout = build_layout(make_trajectory(2, [[4, 3]]))
    assert fit(layout, None, Limits(row=len(layout) - 1), "split").layouts == ()


def test_batches_count_and_tell_what_was_shortened_once() -> None:
    data = [make_trajectory(n, [[4, 4, 4], [5, 5]]) for n in range(4)]
    limit = max(int(build_layout(t).positions.max()) for t in data) + 1
    told: list[int] = []
    plan = BatchPlan(samples=2, row_tokens=limit, too_long="split")
    batches = Batches(data, plan, on_shorten=lambda index, why: told.append(index))
    steps = [batches.next_step() for _ in range(4)]
    assert sorted(told) == sorted(batches.shortened) == [0, 1, 2, 3]
    assert batches.skipped == {}
    weight = sum(step.total_weight for step in steps[:2] if step is not None)
    assert weight == sum(build_layout(t).weight for t in data)


def test_samples_per_step_packing_and_buckets() -> None:
    data = [make_trajectory(n, [[1 + n % 9, 2]] * (1 + n % 3)) for n in range(24)]
    lengths = [len(build_layout(t)) for t in data]
    plain = Batches(data, BatchPlan(samples=4, packing=False))
    sorted_ = Batches(data, BatchPlan(samples=4, packing=False, bucket=12))
    padding = []
    for batches in (plain, sorted_):
        steps = [batches.next_step() for _ in range(6)]
        assert batches.place.epoch == 1 and batches.place.cursor == 0
        assert sum(step.tokens for step in steps if step) == sum(lengths)
        assert {len(step.micro[0].ids) for step in steps if step} == {4}
        padding.append(sum(step.micro[0].ids.size for step in steps if step) - sum(lengths))
    assert padding[1] < padding[0] / 2
    again = Batches(data, BatchPlan(samples=4, packing=False, bucket=12))
    again.place = sorted_.place
    one, other = again.next_step(), sorted_.next_step()
    assert one is not None and other is not None
    assert np.array_equal(one.micro[0].ids, other.micro[0].ids)
