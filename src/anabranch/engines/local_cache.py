"""Keys and values of many sequences in preallocated slots, behind a transformers `Cache`.

Each sequence is one row of a buffer [rows, capacity, heads, width] per layer; a forward writes the
new keys and values of each row at that row's own length and reads views, so nothing is
concatenated. Buffers of one shape lie in one tensor: copying a prefix is one operation per shape,
not per layer. Which row belongs to whom is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

#: A prefix taken out of its row: one tensor [buffers, tokens, heads, width] per shape.
Kept = list[Tensor]


@dataclass(frozen=True)
class Shape:
    """Heads and width of the keys or values of one layer."""

    heads: int
    width: int


class ShapeProbe(DynamicCache):  # type: ignore[misc]  # transformers is not typed for us
    """A growing cache that notes the shapes of each layer's keys and values."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.shapes: dict[int, tuple[Shape, Shape]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = (
            Shape(key_states.shape[1], key_states.shape[3]),
            Shape(value_states.shape[1], value_states.shape[3]),
        )
        updated: tuple[Tensor, Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


@dataclass(slots=True)
class _Layer:
    """One layer's buffers, flat over (row, position) for writing."""

    flat_keys: Tensor
    flat_values: Tensor


class SlotCache(Cache):  # type: ignore[misc]
    """The buffers, and the window on them that the next forward sees.

    Two rows more than asked for exist: :attr:`stage`, where a long prompt is prepared, and a last
    one that takes what padding writes.

    Args:
        shapes: of keys and values, layer by layer.
        rows, capacity: sequences and tokens per sequence to begin with.
        dtype, device: of keys and values.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[Shape, Shape]],
        *,
        rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, capacity
        self._dtype, self._device = dtype, device
        self._places: list[tuple[tuple[int, int], tuple[int, int]]] = []
        order: dict[Shape, int] = {}
        self._counts: list[int] = []
        for pair in shapes:
            places = []
            for shape in pair:
                store = order.setdefault(shape, len(order))
                if store == len(self._counts):
                    self._counts.append(0)
                places.append((store, self._counts[store]))
                self._counts[store] += 1
            self._places.append((places[0], places[1]))
        self._shapes = list(order)
        self._stores: list[Tensor] = self._allocate()
        self._link()
        self._past = 0

    @property
    def stage(self) -> int:
        """The row where a long prompt is prepared."""
        return self.rows

    @property
    def scratch(self) -> int:
        """Flat position that takes what padding writes; never read."""
        return (self.rows + 1) * self.capacity

    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values."""
        per_shape = zip(self._shapes, self._counts, strict=True)
        return sum(s.heads * s.width * n for s, n in per_shape) * self._dtype.itemsize

    def _allocate(self) -> list[Tensor]:
        # Zeros, not empty: a masked key still takes part in the product, and 0 × NaN is NaN.
        return [
            torch.zeros(
                (count, self.rows + 2, self.capacity, shape.heads, shape.width),
                dtype=self._dtype,
                device=self._device,
            )
            for shape, count in zip(self._shapes, self._counts, strict=True)
        ]

    def _link(self) -> None:
        def flat(place: tuple[int, int]) -> Tensor:
            return self._stores[place[0]][place[1]].flatten(0, 1)

        self._flat = [_Layer(flat(keys), flat(values)) for keys, values in self._places]

    def grow(self, rows: int, capacity: int, used: Sequence[tuple[int, int]]) -> None:
        """Makes room for at least ``rows`` × ``capacity``, by doubling.

        Args:
            used: (row, tokens) of every row whose content must survive; rows stay, and what is
                at the old :attr:`stage` moves to the new one.
        """
        old_stage, old = self.stage, self._stores
        while self.rows < rows:
            self.rows *= 2
        while self.capacity < capacity:
            self.capacity *= 2
        self._stores = self._allocate()
        for row, tokens in used:
            target = self.stage if row == old_stage else row
            for new_store, old_store in zip(self._stores, old, strict=True):
                new_store[:, target, :tokens] = old_store[:, row, :tokens]
        self._link()

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first ``tokens`` of one row to another."""
        for store in self._stores:
            store[:, target, :tokens] = store[:, source, :tokens]

    def take(self, row: int, tokens: int) -> Kept:
        """The first ``tokens`` of a row as tensors of their own."""
        return [store[:, row, :tokens].clone() for store in self._stores]

    def put(self, row: int, kept: Kept, tokens: int) -> None:
        """Writes the first ``tokens`` of a kept prefix into a row."""
        for store, content in zip(self._stores, kept, strict=True):
            store[:, row, :tokens] = content[:, :tokens]

    def aim(self, first: int, rows: int, length: int, places: Tensor, past: int) -> None:
        """Sets what the next forward reads and writes.

        Args:
            first, rows: the rows read, in order.
            length: positions read of each row.
            places: flat positions [rows × new tokens] that the new keys and values go to.
            past: tokens before the new ones, for models that ask.
        """
        self._first, self._count, self._length = first, rows, length
        self._write, self._past = places, past

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values [rows, heads, new, width]; gives all of these rows'."""
        layer = self._flat[layer_idx]
        return (
            self._exchange(layer.flat_keys, key_states),
            self._exchange(layer.flat_values, value_states),
        )

    def _exchange(self, flat: Tensor, new: Tensor) -> Tensor:
        heads, width = flat.shape[1], flat.shape[2]
        one = new.shape[2] == 1
        rows = new.squeeze(2) if one else new.transpose(1, 2).reshape(-1, heads, width)
        flat.index_copy_(0, self._write, rows)
        step, token = self.capacity * heads * width, heads * width
        return flat.as_strided(
            (self._count, heads, self._length, width),
            (step, width, token, 1),
            flat.storage_offset() + self._first * step,
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._past

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._past

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._length, 0
