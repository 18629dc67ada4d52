"""Advantages: nothing explodes, and what does not vary gives nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.training.advantages import advantages

MODES = ("mean", "mean_std", "leave_one_out")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [0.1, 0.95, 1e6, -1.0, 0.0])
def test_equal_rewards_give_exactly_0(mode: str, value: float) -> None:
    """NeMo-RL#1518, trl#3991: rounding in equal rewards became advantages of a million."""
    assert advantages([value] * 8, mode) == [0.0] * 8  # type: ignore[arg-type]
    noisy = [value, math.nextafter(value, math.inf)] * 4
    assert advantages(noisy, mode) == [0.0] * 8  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_one_rare_reward_stays_small(mode: str) -> None:
    found = advantages([0.0] + [0.95] * 7, mode)  # type: ignore[arg-type]
    assert max(abs(value) for value in found) < 10
    assert math.fsum(found) == pytest.approx(0, abs=1e-9)
    assert max(abs(a) for a in advantages([1, 0, 0, 0], mode)) < 10  # type: ignore[arg-type]


def test_the_three_modes_by_hand() -> None:
    assert advantages([1, 0, 0, 0], "mean") == [0.75, -0.25, -0.25, -0.25]
    assert advantages([1, 0, 0, 0], "leave_one_out") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    # Standard deviation of a sample of four: 0.5.
    assert advantages([1, 0, 0, 0], "mean_std") == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_dividing_cancels_the_bonus() -> None:
    """All right: with ``mean`` the advantage is as large as the bonus, with ``mean_std`` not."""
    small, large = [1.0, 1.01] * 4, [1.0, 1.1] * 4
    assert max(advantages(small)) == pytest.approx(0.005)
    assert max(advantages(large)) == pytest.approx(0.05)
    assert max(advantages(small, "mean_std")) == pytest.approx(max(advantages(large, "mean_std")))


def test_rollouts_without_a_reward_leave_the_statistics() -> None:
    assert advantages([1.0, None, 0.0, None]) == [0.5, 0.0, -0.5, 0.0]
    assert advantages([None, None]) == [0.0, 0.0]
    assert advantages([1.0, None]) == [0.0, 0.0]
    assert advantages([]) == []


@given(st.lists(st.none() | st.floats(-100, 100), min_size=1, max_size=16), st.sampled_from(MODES))
def test_sums_to_0_and_stays_in_bounds(rewards: list[float | None], mode: str) -> None:
    found = advantages(rewards, mode)  # type: ignore[arg-type]
    assert math.fsum(found) == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) and abs(value) <= 400 for value in found)
    assert all(f == 0 for f, r in zip(found, rewards, strict=True) if r is None)
