"""Which trees make up each optimizer step, as a function of seed and place alone.

Steps are filled by a token budget and split into micro-batches over ranks; where the next step
begins is two numbers, so a run resumes exactly. Nothing here touches a model or a random state
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.errors import AnabranchError, UsageError
from anabranch.training.data import Source, group_of, to_layout
from anabranch.training.layout import LayoutError, TreeLayout, Weight
from anabranch.training.long import Limits, Policy, fit
from anabranch.training.packing import TreeBatch, by_length, collate, pack

#: An endless source that gives this many bad items in a row is given up.
PATIENCE = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next step begins: pass over the data, and how many items of it were used."""

    epoch: int = 0
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of one rank.

    Attributes:
        micro: the rank's micro-batches; some may be empty.
        total_weight: sum of the weights of the whole global batch.
        tokens: tree tokens of the global batch.
        after: where the next step begins.
    """

    micro: tuple[TreeBatch, ...]
    total_weight: float
    tokens: int
    after: Place


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How steps are formed; see :class:`anabranch.training.config.SFTConfig` for the fields."""

    seed: int = 0
    tokens: int = 8192
    samples: int | None = None
    row_tokens: int | None = None
    window: int | None = None
    packing: bool = True
    bucket: int = 0
    too_long: Policy = "skip"
    micro_batches: int = 1
    rank: int = 0
    world: int = 1
    pad_id: int = 0
    multiple: int = 1


class Batches:
    """An endless iterator of steps; ``place`` is where it stands and may be set.

    Args:
        source: where items come from.
        plan: how they are grouped.
        weight: weight of a request's edges, see :func:`build_layout`.
        on_skip: told of each item that is left out: its index and why.
        on_shorten: told of each item that was too long and is used in part or in parts.
    """

    def __init__(
        self,
        source: Source,
        plan: BatchPlan,
        *,
        weight: Weight | None = None,
        on_skip: Callable[[int, str], None] | None = None,
        on_shorten: Callable[[int, str], None] | None = None,
    ) -> None:
        self.source, self.plan, self.weight = source, plan, weight
        self.place = Place()
        self.skipped: dict[int, str] = {}
        self.shortened: dict[int, str] = {}
        self._on_skip, self._on_shorten = on_skip, on_shorten
        self._lengths: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._order: tuple[int, np.ndarray[Any, np.dtype[np.int64]]] | None = None
        self._size: int | None = len(source) if isinstance(source, Sized) else None
        if self._size == 0:
            raise UsageError("there is nothing to train on: the data is empty")

    def __iter__(self) -> Iterator[Step]:
        while True:
            step = self.next_step()
            if step is None:
                return
            yield step

    def next_step(self) -> Step | None:
        """The next step, or None at the end of a stream."""
        layouts: list[TreeLayout] = []
        total = bad = samples = 0
        place = self.place
        while not self._full(samples, total):
            try:
                trees = self._item(self._index(place))
            except IndexError:
                break
            size = sum(map(len, trees))
            if not trees:
                bad += 1
                self._give_up(bad, layouts)
            elif layouts and self._full(samples, total + size, begun=True):
                break
            else:
                layouts += trees
                total += size
                samples += 1
                bad = 0
            place = self._next(place)
        if not layouts:
            return None
        self.place = place
        return self._step(layouts, place)

    def steps_in(self, epochs: float) -> int:
        """How many steps a number of passes takes; reads all lengths once.

        Raises:
            UsageError: the source has no length.
        """
        if self._size is None:
            raise UsageError("the data has no length: give the number of steps")
        before, self.place = self.place, Place()
        count, target = 0, epochs * self._size
        while self.place.epoch * self._size + self.place.cursor < target:
            if self.next_step() is None:
                break
            count += 1
        self.place = before
        return max(count, 1)

    def _step(self, layouts: list[TreeLayout], place: Place) -> Step:
        plan = self.plan
        width = plan.row_tokens or max(len(layout) for layout in layouts)
        rows = pack(layouts, width) if plan.packing else by_length(layouts)
        parts = plan.micro_batches * plan.world
        # Rows come fullest first; dealing them out evens the parts.
        mine = [
            collate(rows[part::parts], pad_id=plan.pad_id, multiple=plan.multiple)
            for part in range(plan.rank, parts, plan.world)
        ]
        return Step(
            micro=tuple(mine),
            total_weight=sum(layout.weight for layout in layouts),
            tokens=sum(len(layout) for layout in layouts),
            after=place,
        )

    def _full(self, samples: int, tokens: int, *, begun: bool = False) -> bool:
        """Whether a step of so many samples, or of so many tokens, takes no further one."""
        if self.plan.samples is not None:
            return samples >= self.plan.samples
        return begun and tokens > self.plan.tokens

    def _item(self, index: int) -> tuple[TreeLayout, ...]:
        """The trees of an item; none if it is left out."""
        try:
            item = self.source[index]
            layout = to_layout(item, weight=self.weight, name=f"item {index}")
        except AnabranchError as error:
            self._skip(index, str(error))
            return ()
        limits = Limits(self.plan.row_tokens, self.plan.window)
        fitted = fit(layout, group_of(item), limits, self.plan.too_long, weight=self.weight)
        if not fitted.layouts:
            self._skip(index, fitted.lost or "")
        elif fitted.lost is not None and index not in self.shortened:
            self.shortened[index] = fitted.lost
            if self._on_shorten is not None:
                self._on_shorten(index, fitted.lost)
        return fitted.layouts

    def _skip(self, index: int, reason: str) -> None:
        if index in self.skipped:
            return
        self.skipped[index] = reason
        if self._on_skip is not None:
            self._on_skip(index, reason)

    def _give_up(self, bad: int, layouts: list[TreeLayout]) -> None:
        if layouts or bad < (PATIENCE if self._size is None else self._size):
            return
        last = next(reversed(self.skipped.values()), "")
        raise LayoutError(f"no usable sample among {bad}; the last: {last}")

    def _index(self, place: Place) -> int:
        if self._size is None:
            return place.cursor
        if self._order is None or self._order[0] != place.epoch:
            self._order = (place.epoch, self._shuffled(place.epoch))
        return int(self._order[1][place.cursor])

    def _shuffled(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The order of a pass; with buckets, sorted by length within each of them."""
        assert self._size is not None
        rng = np.random.default_rng((self.plan.seed, epoch))
        order = rng.permutation(self._size)
        if self.plan.bucket < 2:
            return order
        if self._lengths is None:
            found = [sum(map(len, self._item(n))) for n in range(self._size)]
            self._lengths = np.array(found, dtype=np.int64)
        for start in range(0, self._size, self.plan.bucket):
            part = order[start : start + self.plan.bucket]
            ranked = part[np.argsort(self._lengths[part], kind="stable")]
            # Up and down by turns, so that neighbours of two buckets are alike as well.
            order[start : start + self.plan.bucket] = (
                ranked if start // self.plan.bucket % 2 == 0 else ranked[::-1]
            )
        return order

    def _next(self, place: Place) -> Place:
        if self._size is not None and place.cursor + 1 >= self._size:
            return Place(place.epoch + 1, 0)
        return Place(place.epoch, place.cursor + 1)
