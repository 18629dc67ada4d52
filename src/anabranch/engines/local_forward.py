"""One forward of a causal language model over rows of different lengths: cached, or plain.

:class:`CachedForward` feeds only tokens whose keys and values are not stored yet, for several rows
at once. :class:`PlainForward` feeds whole sequences every time: slow, and right for every causal
model. Both give the logits of each row's last token. Which of the two a model gets is decided in
:mod:`anabranch.engines.local_audit`; which rows run when, in :mod:`anabranch.engines.local_batch`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from anabranch.engines.local_cache import Kept, Shape, SlotCache


class Row(Protocol):
    """A sequence as a forward sees it.

    ``tokens`` are all of its tokens, ``length`` counts those whose keys and values are stored.
    """

    tokens: list[int]
    length: int


class Forward(Protocol):
    """What the step loop needs of a forward."""

    @property
    def caches(self) -> bool: ...

    def step(self, rows: Sequence[Row], first: int, limit: int | None = None) -> Tensor:
        """Feeds what is missing of each row.

        Args:
            rows: neighbouring rows, in order.
            first: slot of the first one.
            limit: feed at most so many tokens of each row.

        Returns:
            float32 logits [rows, vocabulary] after the last token fed.
        """
        ...


@dataclass(frozen=True)
class MaskPlan:
    """How a model wants its attention mask.

    Attributes:
        window: tokens that sliding layers see, None if there are no such layers.
        by_type: whether the model takes one mask per layer type, by name.
    """

    window: int | None = None
    by_type: bool = False


def accepted(model: Any) -> set[str]:
    """Names of the arguments of a model's forward; they differ between models and versions."""
    return set(inspect.signature(model.forward).parameters)


class CachedForward:
    """Forwards over the rows of a :class:`SlotCache`.

    Rows that get fewer new tokens than others are padded on the left, so every row's last token
    is the last column. What padding writes goes to a place that is never read.

    Args:
        model: a transformers causal language model with SDPA or eager attention.
        shapes: of its keys and values, layer by layer.
        plan: how it wants its masks.
        rows, capacity: sizes to begin with; they double as needed.
    """

    caches = True

    def __init__(
        self,
        model: Any,
        shapes: Sequence[tuple[Shape, Shape]],
        plan: MaskPlan,
        *,
        rows: int = 4,
        capacity: int = 256,
    ) -> None:
        self._model, self._plan = model, plan
        self._device, self._dtype = model.device, model.dtype
        self.cache = SlotCache(
            shapes, rows=rows, capacity=capacity, dtype=self._dtype, device=self._device
        )
        names = accepted(model)
        self._extra: dict[str, Any] = {"use_cache": True}
        self._extra["cache" if "cache" in names else "past_key_values"] = self.cache
        if "logits_to_keep" in names:
            self._extra["logits_to_keep"] = 1
        self._open = torch.zeros((), dtype=self._dtype, device=self._device)
        self._shut = torch.full_like(self._open, torch.finfo(self._dtype).min)
        self._size()

    def _size(self) -> None:
        cache = self.cache
        self._counting = torch.arange(cache.capacity, device=self._device)
        self._starts = torch.arange(cache.rows + 2, device=self._device)[:, None] * cache.capacity
        self._all_open = torch.zeros((1, 1, 1, cache.capacity), dtype=self._dtype).to(self._device)

    def reserve(self, rows: int, capacity: int, used: Sequence[tuple[int, int]]) -> None:
        """Makes room; see :meth:`SlotCache.grow`."""
        if rows > self.cache.rows or capacity > self.cache.capacity:
            self.cache.grow(rows, capacity, used)
            self._size()

    @property
    def stage(self) -> int:
        return self.cache.stage

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.cache.copy(source, target, tokens)

    def take(self, row: int, tokens: int) -> Kept:
        return self.cache.take(row, tokens)

    def put(self, row: int, kept: Kept, tokens: int) -> None:
        self.cache.put(row, kept, tokens)

    def step(self, rows: Sequence[Row], first: int, limit: int | None = None) -> Tensor:
        lengths = [row.length for row in rows]
        counts = [len(row.tokens) - row.length for row in rows]
        if limit is not None:
            counts = [min(count, limit) for count in counts]
        width = max(counts)
        if width == 1:
            ids = [[row.tokens[row.length]] for row in rows]
            logits = self._decode(ids, lengths, first)
        else:
            logits = self._fill(rows, lengths, counts, width, first)
        for row, count in zip(rows, counts, strict=True):
            row.length += count
        return logits

    def _decode(self, ids: list[list[int]], lengths: list[int], first: int) -> Tensor:
        """One new token for every row."""
        longest = max(lengths) + 1
        positions = torch.tensor([[length] for length in lengths], device=self._device)
        places = (positions + self._starts[first : first + len(ids)]).flatten()
        self.cache.aim(first, len(ids), longest, places, longest - 1)
        even = min(lengths) == longest - 1
        mask = self._all_open[..., :longest] if even else self._mask(positions, longest, None)
        return self._run(ids, positions, mask, longest, even)

    def _fill(
        self,
        rows: Sequence[Row],
        lengths: list[int],
        counts: list[int],
        width: int,
        first: int,
    ) -> Tensor:
        """Several new tokens for some rows; the others are padded on the left."""
        ids = [
            [0] * (width - count) + row.tokens[length : length + count]
            for row, length, count in zip(rows, lengths, counts, strict=True)
        ]
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        longest = max(ends)
        columns = torch.arange(width, device=self._device)
        positions = torch.tensor([[end - width] for end in ends], device=self._device) + columns
        places = positions + self._starts[first : first + len(rows)]
        if min(counts) < width:
            pads = torch.tensor([[width - count] for count in counts], device=self._device)
            places = torch.where(columns < pads, self.cache.scratch, places)
            positions = positions.clamp_(min=0)
        self.cache.aim(first, len(rows), longest, places.flatten(), longest - width)
        return self._run(ids, positions, self._mask(positions, longest, None), longest, False)

    def _mask(self, positions: Tensor, longest: int, window: int | None) -> Tensor:
        """Additive mask [rows, 1, new, longest]: what is not later, and not before the window."""
        keys, queries = self._counting[:longest], positions[:, None, :, None]
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        return torch.where(seen, self._open, self._shut)

    def _run(
        self, ids: list[list[int]], positions: Tensor, mask: Tensor, longest: int, even: bool
    ) -> Tensor:
        window = self._plan.window
        near = mask
        if window is not None and longest > window:
            near = self._mask(positions, longest, window)
        masks = {"full_attention": mask, "sliding_attention": near} if self._plan.by_type else near
        output = self._model(
            input_ids=torch.tensor(ids, device=self._device),
            position_ids=positions,
            attention_mask=masks,
            **self._extra,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits


class PlainForward:
    """Whole sequences through the model at every step, nothing kept.

    Args:
        model: any transformers causal language model.
        padded: whether rows of different lengths may share a forward, padded on the right, where
            a causal model cannot see the padding; otherwise one by one.
    """

    caches = False

    def __init__(self, model: Any, *, padded: bool = True) -> None:
        self._model, self._padded, self._device = model, padded, model.device
        names = accepted(model)
        self._extra = {"use_cache": False} if "use_cache" in names else {}

    def step(self, rows: Sequence[Row], first: int, limit: int | None = None) -> Tensor:
        for row in rows:
            row.length = len(row.tokens)
        if not self._padded:
            return torch.cat([self._whole([row]) for row in rows])
        return self._whole(rows)

    def _whole(self, rows: Sequence[Row]) -> Tensor:
        width = max(len(row.tokens) for row in rows)
        ids = [row.tokens + [row.tokens[-1]] * (width - len(row.tokens)) for row in rows]
        output = self._model(input_ids=torch.tensor(ids, device=self._device), **self._extra)
        last = torch.tensor([len(row.tokens) - 1 for row in rows], device=self._device)
        logits: Tensor = output.logits[torch.arange(len(rows), device=self._device), last]
        return logits.float()
