"""Drawing tokens: the right distribution, and nothing but logits, seed and step decide."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engines.base import Call
from anabranch.engines.sampling import sample, uniform


def wanted(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Call:
    return Call(ids=(), stop=(), max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k)


def logits(rows: int, size: int = 20) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(1)) * 3


def drawn(row: torch.Tensor, settings: Call, count: int) -> torch.Tensor:
    """Shares of each token among ``count`` draws from one row."""
    numbers = [uniform(7, step) for step in range(count)]
    tokens, _ = sample(row.expand(count, -1), [settings] * count, numbers)
    return tokens.bincount(minlength=row.shape[-1]) / count


@given(seed=st.integers(-(2**63), 2**64), step=st.integers(0, 2**31))
def test_numbers_lie_in_the_unit_interval(seed: int, step: int) -> None:
    assert 0 <= uniform(seed, step) < 1


def test_numbers_of_neighbouring_seeds_and_steps_are_unrelated() -> None:
    numbers = torch.tensor([[uniform(seed, step) for step in range(64)] for seed in range(64)])
    assert abs(float(numbers.mean()) - 0.5) < 0.02
    centred = numbers - 0.5
    for other in (centred.roll(1, 0), centred.roll(1, 1), centred.T):
        assert abs(float((centred * other).mean())) < 0.006


def test_greedy_takes_the_largest() -> None:
    scores = logits(5)
    tokens, logprobs = sample(scores, [wanted(temperature=0)] * 5, [0.9] * 5)
    assert tokens.tolist() == scores.argmax(-1).tolist()
    assert torch.allclose(logprobs, scores.log_softmax(-1).amax(-1), atol=1e-6)


def test_shares_follow_the_tempered_distribution() -> None:
    row = logits(1)[0]
    for temperature in (0.5, 1.0, 2.0):
        shares = drawn(row, wanted(temperature), 20_000)
        assert float((shares - (row / temperature).softmax(-1)).abs().max()) < 0.015


def test_top_k_and_top_p_cut_the_rest() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert drawn(row, wanted(top_k=2), 5_000).tolist() == pytest.approx(
        [0, 4 / 7, 0, 3 / 7], abs=0.02
    )
    # The smallest set with at least 0.6: 0.4 and 0.3.
    assert drawn(row, wanted(top_p=0.6), 5_000).tolist() == pytest.approx(
        [0, 4 / 7, 0, 3 / 7], abs=0.02
    )
    # Of the three best, renormalised, 0.4/0.9 alone is below one half.
    both = drawn(row, wanted(top_p=0.5, top_k=3), 5_000)
    assert both.tolist() == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=0.02)
    assert drawn(row, wanted(top_p=1e-9), 100).tolist() == [0, 1, 0, 0]
    assert drawn(row, wanted(top_k=99), 5_000).tolist() == pytest.approx(
        [0.1, 0.4, 0.2, 0.3], abs=0.02
    )


def test_logprobs_ignore_the_settings() -> None:
    scores = logits(3)
    settings = [wanted(0.3), wanted(2.0, top_k=3), wanted(1.0, top_p=0.5)]
    tokens, logprobs = sample(scores, settings, [0.5, 0.6, 0.7])
    expected = scores.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, expected, atol=1e-6)


@given(
    temperatures=st.lists(st.sampled_from([0.0, 1e-3, 0.7, 1.5]), min_size=1, max_size=6),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 4]),
)
def test_a_row_does_not_depend_on_the_others(
    temperatures: list[float], top_p: float, top_k: int
) -> None:
    scores = logits(len(temperatures))
    settings = [
        wanted(temperature, top_p if at % 2 else 1.0, top_k if at % 3 else 0)
        for at, temperature in enumerate(temperatures)
    ]
    numbers = [uniform(at, 3) for at in range(len(temperatures))]
    tokens, logprobs = sample(scores, settings, numbers)
    for at in range(len(temperatures)):
        alone, value = sample(scores[at : at + 1], settings[at : at + 1], numbers[at : at + 1])
        assert alone.tolist() == [tokens[at]]
        assert math.isclose(float(value), float(logprobs[at]), abs_tol=1e-6)


def test_impossible_tokens_are_never_drawn() -> None:
    row = torch.full((50,), float("-inf"))
    row[[3, 40]] = 0.0
    for number in (0.0, 0.4999, 0.5, 1 - 2**-53):
        tokens, _ = sample(row[None], [wanted()], [number])
        assert int(tokens) in (3, 40)
