"""Drawing tokens from logits, for many sequences at once, each with its own settings and seed.

A token depends on the sequence's logits, its seed and its step alone, never on what else is in
the batch: the only randomness is one number per sequence and step, a hash of the two, looked up in
the cumulative distribution. Penalties are not here; a grammar comes as a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


class Settings(Protocol):
    """What one sequence wants; :class:`anabranch.engines.base.Call` has these."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_p(self) -> float: ...

    @property
    def top_k(self) -> int: ...


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) that looks random and depends on ``seed`` and ``step`` alone.

    It is the SplitMix64 mixing function (Steele, Lea and Flood, 2014) applied to both; 53 bits.
    """
    return (_mix(_mix(seed & _MASK) + step) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample(
    logits: Tensor,
    settings: Sequence[Settings],
    numbers: Sequence[float],
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draws one token per row.

    Args:
        logits: float32, [rows, vocabulary].
        settings: one per row. Temperature 0 is greedy; otherwise temperature is applied first,
            then ``top_k`` (0: off), then ``top_p`` on what is left.
        numbers: one number in [0, 1) per row, see :func:`uniform`; unused where greedy.
        allowed: the logits with what may not be drawn at minus infinity; None: all may.

    Returns:
        token ids [rows], and their log-probs [rows] under the raw logits: log-softmax at
        temperature 1 with nothing cut off, whatever the settings and ``allowed``.
    """
    allowed = logits if allowed is None else allowed
    tokens = allowed.argmax(-1)
    drawn = [row for row, wanted in enumerate(settings) if wanted.temperature > 0]
    if drawn:
        every = len(drawn) == len(settings)
        chosen = _draw(
            allowed if every else allowed[drawn],
            [settings[row] for row in drawn],
            [numbers[row] for row in drawn],
        )
        if every:
            tokens = chosen
        else:
            tokens[drawn] = chosen
    logprobs = logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    return tokens, logprobs


def _draw(logits: Tensor, settings: Sequence[Settings], numbers: Sequence[float]) -> Tensor:
    device = logits.device
    size = logits.shape[-1]
    temperature = torch.tensor([[wanted.temperature] for wanted in settings], device=device)
    # The shift keeps the quotient finite at temperatures near 0.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    point = torch.tensor([[number] for number in numbers], dtype=torch.float64, device=device)
    if all(wanted.top_p >= 1 and not 0 < wanted.top_k < size for wanted in settings):
        return _look_up(scaled.softmax(-1), point)[:, 0]
    # What is cut is decided in order of size, but the draw is made in order of the vocabulary, so
    # that a row with nothing to cut draws the same token with and without such company.
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([[wanted.top_k or size] for wanted in settings], device=device)
    top_p = torch.tensor([[wanted.top_p] for wanted in settings], device=device)
    ranks = torch.arange(size, device=device)
    cut = ranks >= top_k
    probabilities = ordered.masked_fill(cut, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    # The first token stays whatever rounding does; a top_p of 1 cuts nothing.
    cut |= (before >= top_p) & (ranks > 0) & (top_p < 1)
    cut = torch.zeros_like(cut).scatter_(-1, order, cut)
    return _look_up(scaled.masked_fill(cut, float("-inf")).softmax(-1), point)[:, 0]


def _look_up(weights: Tensor, point: Tensor) -> Tensor:
    """Index [rows, 1] of the first entry at which the running sum exceeds its share ``point``."""
    total = weights.double().cumsum(-1)
    place = torch.searchsorted(total, point * total[:, -1:], right=True)
    return place.clamp_(max=weights.shape[-1] - 1)
