"""Where training samples come from: files, lists, functions of an index, generators.

A source gives the item with a number: a trajectory, a group of them, or a ready layout. Finite
sources have a length and are shuffled by :mod:`anabranch.training.batches`; endless ones do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import record_error, sha256_of
from anabranch.records import Trajectory
from anabranch.training.layout import TreeLayout, Weight, build_layout

Item = Trajectory | Sequence[Trajectory] | TreeLayout


@runtime_checkable
class Source(Protocol):
    """Item number ``index``; IndexError past the end. An error of anabranch skips the item."""

    def __getitem__(self, index: int, /) -> Item: ...


class TrajectoryFile:
    """The trajectories of JSON Lines files, read when they are asked for.

    Only the places of the lines are held in memory. A bad line raises when it is read, so it is
    reported and skipped like any other bad sample.

    Raises:
        RecordError: a file cannot be opened, or there is no line at all.
    """

    def __init__(self, *paths: Path | str) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self._lines: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.paths):
            self._lines += ((number, line, offset) for line, offset in _offsets(path))
        if not self._lines:
            raise RecordError("no trajectories", path=", ".join(map(str, self.paths)))

    def __len__(self) -> int:
        return len(self._lines)

    def identity(self) -> dict[str, str]:
        """Name and SHA-256 of each file: a resumed run must read the same ones."""
        return {path.name: sha256_of(path) for path in self.paths}

    def __getitem__(self, index: int) -> Trajectory:
        number, line, offset = self._lines[index]
        path = self.paths[number]
        with path.open("rb") as handle:
            handle.seek(offset)
            raw = handle.readline()
        try:
            return Trajectory.model_validate(json.loads(raw.decode("utf-8")))
        except ValidationError as error:
            raise record_error(error, path, line) from None
        except (ValueError, RecursionError) as error:
            raise RecordError(f"not JSON: {error}", path=path, line=line) from None


class Endless:
    """An endless source: ``make(index)`` for every index from 0. Must depend on nothing else."""

    def __init__(self, make: Callable[[int], Item]) -> None:
        self._make = make

    def __getitem__(self, index: int) -> Item:
        return self._make(index)


class Stream:
    """An iterator as a source, read forwards only; resuming reads over what was used.

    Args:
        make: called with no argument; must give the same items every time.
    """

    def __init__(self, make: Callable[[], Iterable[Item]]) -> None:
        self._iterator: Iterator[Item] = iter(make())
        self._next = 0
        self._last: Item | None = None

    def __getitem__(self, index: int) -> Item:
        if index == self._next - 1 and self._last is not None:
            return self._last
        if index < self._next:
            raise UsageError("a stream cannot go back: use a list, or a function of the index")
        for item in islice(self._iterator, index - self._next, None):
            self._next, self._last = index + 1, item
            return item
        raise IndexError(index)


def identity(source: Source) -> Any:
    """What of a source can be compared when a run is resumed: its files, or its length."""
    if isinstance(source, TrajectoryFile):
        return source.identity()
    return {"items": len(source)} if isinstance(source, Sized) else "endless"


def group_of(item: Item) -> list[Trajectory] | None:
    """The trajectories of an item; None for a ready layout."""
    if isinstance(item, TreeLayout):
        return None
    return [item] if isinstance(item, Trajectory) else list(item)


def to_layout(item: Item, *, weight: Weight | None = None, name: str = "") -> TreeLayout:
    """The layout of an item; ready ones are passed through."""
    if isinstance(item, TreeLayout):
        return item
    group = group_of(item) or []
    known = group[0].id if group else ""
    return build_layout(group, weight=weight, name=known or name)


def _offsets(path: Path) -> Iterator[tuple[int, int]]:
    try:
        handle = path.open("rb")
    except OSError as error:
        raise RecordError(error.strerror or "cannot be opened", path=path) from None
    with handle:
        offset = 0
        for line, raw in enumerate(handle, start=1):
            # A byte order mark is not part of the first record.
            mark = 3 if line == 1 and raw.startswith(b"\xef\xbb\xbf") else 0
            if raw[mark:].strip():
                yield line, offset + mark
            offset += len(raw)
