"""Which forward a model can be trusted with, found by trying: never a wrong token.

Many models need something that a shared cache with explicit masks does not give them (recurrent
state, chunked attention, positions computed from a padding mask), and say nothing when it is
missing. So before an engine serves a model, cached, batched, padded forwards are compared with a
plain full forward on small random sequences, and the engine falls back to the plain one if they
disagree. Loading is in :mod:`anabranch.engines.local_load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anabranch.engines.local_cache import Shape, ShapeProbe
from anabranch.engines.local_forward import (
    CachedForward,
    Forward,
    MaskPlan,
    PlainForward,
    accepted,
)
from anabranch.errors import ModelError

#: Largest difference allowed, as a share of the range of the logits.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_TOLERANCE_HALF = 0.05
#: Sliding windows are shrunk to this many tokens for the comparison, so that it is short.
_SMALL_WINDOW = 4


@dataclass
class _Sequence:
    tokens: list[int]
    length: int = 0


@dataclass(frozen=True)
class Finding:
    """The forward chosen, and what a user should know about the choice (empty: nothing)."""

    forward: Forward
    note: str = ""


def choose_forward(model: Any) -> Finding:
    """Tries the cached forward in the ways a model may want it, then the plain one.

    Raises:
        ModelError: not even the plain forward gives finite logits.
    """
    config = model.config.get_text_config()
    rows = _sequences(int(config.vocab_size))
    try:
        with torch.inference_mode():
            expected = _expected(model, rows)
    except Exception as error:  # anything a foreign model raises: it cannot be used at all
        raise ModelError(f"{_name(model)} cannot run a forward: {_line(error)}") from None
    if not all(bool(torch.isfinite(logits).all()) for logits in expected):
        raise ModelError(f"{_name(model)} gives logits that are not finite")
    problem = _obstacle(model, config)
    if not problem:
        chosen, problem = _try_cached(model, config, rows)
        if chosen is not None:
            return Finding(chosen)
    padded = _agrees(model, PlainForward(model), rows, expected)
    how = "batched" if padded else "one by one"
    note = (
        f"{_name(model)} cannot be decoded with a shared cache ({problem}): every step runs the "
        f"whole sequences, {how}; right but slow"
    )
    return Finding(PlainForward(model, padded=padded), note)


def _obstacle(model: Any, config: Any) -> str:
    """A reason not to try the cached forward, known from the configuration; empty if none."""
    kinds = set(getattr(config, "layer_types", None) or ())
    other = sorted(kinds - {"full_attention", "sliding_attention"})
    if other:
        return f"it has {other[0]} layers"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "it has chunked attention"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    return ""


def _window(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    used = getattr(config, "use_sliding_window", True)
    return int(window) if window and used else None


def _plans(config: Any) -> list[MaskPlan]:
    kinds = getattr(config, "layer_types", None) or ()
    window = _window(config)
    if "sliding_attention" in kinds:
        return [MaskPlan(window, by_type=True), MaskPlan(window)]
    if kinds:
        return [MaskPlan()]
    return [MaskPlan(window)] if window else [MaskPlan()]


def _try_cached(model: Any, config: Any, rows: list[list[int]]) -> tuple[CachedForward | None, str]:
    problem, own = "", _attentions(model)[0]
    for attention in _attentions(model):
        try:
            _use_attention(model, attention)
            shapes = _shapes(model, config)
        except Exception as error:  # a foreign model may refuse in any way
            problem = _line(error)
            continue
        for plan in _plans(config):
            small = MaskPlan(min(plan.window, _SMALL_WINDOW) if plan.window else None, plan.by_type)
            with _shrunk_window(config, small.window), torch.inference_mode():
                expected = _expected(model, rows)
                problem = _disagreement(CachedForward(model, shapes, small), rows, expected)
            if not problem:
                return CachedForward(model, shapes, plan), ""
    _use_attention(model, own)
    return None, problem


def _attentions(model: Any) -> list[str]:
    """Back ends worth trying: the model's own first, if it takes masks."""
    current = str(getattr(model.config, "_attn_implementation", None) or "eager")
    return [current, *(name for name in ("sdpa", "eager") if name != current)]


def _use_attention(model: Any, name: str) -> None:
    if getattr(model.config, "_attn_implementation", None) != name:
        model.set_attn_implementation(name)


@contextmanager
def _shrunk_window(config: Any, window: int | None) -> Iterator[None]:
    if window is None:
        yield
        return
    before = config.sliding_window
    config.sliding_window = window
    try:
        yield
    finally:
        config.sliding_window = before


def _shapes(model: Any, config: Any) -> list[tuple[Shape, Shape]]:
    probe = ShapeProbe(config)
    name = "cache" if "cache" in accepted(model) else "past_key_values"
    with torch.inference_mode():
        ids = torch.tensor([[0, 1]], device=model.device)
        model(input_ids=ids, use_cache=True, **{name: probe})
    layers = int(config.num_hidden_layers)
    if sorted(probe.shapes) != list(range(layers)):
        raise ModelError("not every layer keeps keys and values of its own")
    return [probe.shapes[layer] for layer in range(layers)]


def _sequences(vocabulary: int) -> list[list[int]]:
    """Three short random sequences; the second begins like the first, as a branch does."""
    chooser = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, vocabulary, (30,), generator=chooser).tolist()
    return [drawn[:12], drawn[:7] + drawn[12:19], drawn[19:24]]


def _expected(model: Any, rows: Sequence[list[int]]) -> list[Tensor]:
    """Logits [tokens, vocabulary] of every sequence by a full forward of it alone."""
    extra = {"use_cache": False} if "use_cache" in accepted(model) else {}
    device = model.device
    return [
        model(input_ids=torch.tensor([row], device=device), **extra).logits[0].float()
        for row in rows
    ]


def _disagreement(forward: CachedForward, rows: list[list[int]], expected: list[Tensor]) -> str:
    """What is wrong with a cached forward, empty if nothing."""
    try:
        got = _rehearsal(forward, rows)
    except Exception as error:  # a foreign model may refuse in any way
        return _line(error)
    for row, size, logits in got:
        wrong = _distance(logits, expected[row][size - 1])
        if not wrong <= _TOLERANCE.get(forward.cache._dtype, _TOLERANCE_HALF):
            return f"logits of cached and plain forwards differ by {wrong:.1%} of their range"
    return ""


def _rehearsal(forward: CachedForward, rows: list[list[int]]) -> list[tuple[int, int, Tensor]]:
    """A small life of a batch: a prompt in chunks, a fork, a padded step, steps of one token.

    Gives (sequence, tokens of it seen, logits).
    """
    got: list[tuple[int, int, Tensor]] = []
    live = [_Sequence(row[:5]) for row in rows]

    def note(chosen: Sequence[int], logits: Tensor) -> None:
        got.extend((row, live[row].length, logits[at]) for at, row in enumerate(chosen))

    def grow(row: int, count: int) -> None:
        live[row].tokens = rows[row][: len(live[row].tokens) + count]

    note([0], forward.step(live[:1], forward.stage, limit=3))
    note([0], forward.step(live[:1], forward.stage))
    forward.copy(forward.stage, 0, 5)
    forward.put(1, forward.take(0, 4), 4)
    live[1].length = 4
    grow(1, 2)
    grow(0, 1)
    note([0, 1, 2], forward.step(live, 0))
    while len(live[0].tokens) < len(rows[0]):
        grow(0, 1)
        grow(1, 1)
        note([0, 1], forward.step(live[:2], 0))
    return got


def _agrees(
    model: Any, forward: PlainForward, rows: list[list[int]], expected: list[Tensor]
) -> bool:
    tolerance = _TOLERANCE.get(model.dtype, _TOLERANCE_HALF)
    with torch.inference_mode():
        logits = forward.step([_Sequence(row) for row in rows], 0)
    pairs: list[Any] = list(zip(logits, expected, strict=True))
    return all(_distance(one, row[-1]) <= tolerance for one, row in pairs)


def _distance(first: Tensor, second: Tensor) -> float:
    scale = max(float(second.max() - second.min()), 1e-9)
    return float((first - second).abs().max()) / scale


def _name(model: Any) -> str:
    return str(getattr(model.config, "_name_or_path", "") or type(model).__name__)


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
