"""How far two annotators agree: hand labels and the classifier, or two judges.

Label files hold places and labels only, never the text: the traces themselves may not be passed on.
A label is of a paragraph; an annotator's answer for it is that of its step which covers most of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.analysis.structure import KINDS, Kind, Structure
from anabranch.errors import RecordError
from anabranch.jsonl import read_rows
from anabranch.metrics.intervals import wilson


@dataclass(frozen=True, slots=True)
class Label:
    """A label of one place.

    Attributes:
        file, id: the trace.
        start, end: offsets in its text.
        kind: what the place is.
        needs_previous: whether it uses what the labelled place before it found; None: not said.
        held_out: whether it was not looked at while the classifier was made.
    """

    file: str
    id: str
    start: int
    end: int
    kind: Kind
    needs_previous: bool | None = None
    held_out: bool = True


def read_labels(path: Path) -> list[Label]:
    """The labels of a JSON Lines file.

    Raises:
        RecordError: naming file, line and field.
    """
    found = []
    for number, row in read_rows(path):
        if row.get("kind") not in KINDS:
            what = f"one of {', '.join(KINDS)} is needed, not {row.get('kind')!r}"
            raise RecordError(what, path=path, line=number, field="kind")
        try:
            found.append(Label(**row))
        except TypeError as error:
            said = str(error).partition("__init__() ")[2] or str(error)
            raise RecordError(said, path=path, line=number) from None
    return found


def label_rows(name: str, row: str, structure: Structure) -> list[dict[str, Any]]:
    """The steps of a structure as rows of a label file."""
    return [
        {
            "file": name,
            "id": row,
            "start": step.start,
            "end": step.end,
            "kind": step.kind,
            "needs_previous": place - 1 in step.needs if place else None,
        }
        for place, step in enumerate(structure.steps)
    ]


@dataclass(frozen=True)
class Agreement:
    """Of pairs of labels, the first taken as right where a recall is given.

    Attributes:
        pairs: counts by (first, second).
        interval: 95 %, of the share that is equal.
        kappa: Cohen's, with its bootstrap interval over places.
    """

    pairs: Mapping[tuple[str, str], int]
    kappa: tuple[float, float, float]

    @property
    def total(self) -> int:
        return sum(self.pairs.values())

    @property
    def equal(self) -> int:
        """How many pairs are equal."""
        return sum(count for (one, other), count in self.pairs.items() if one == other)

    @property
    def accuracy(self) -> float:
        """The share of pairs that are equal."""
        return self.equal / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy."""
        return wilson(self.equal, self.total)

    def recall(self, kind: str) -> tuple[int, int]:
        """Of the first's labels of a kind, how many the second gave too, and how many there are."""
        of_kind = sum(count for (one, _), count in self.pairs.items() if one == kind)
        return self.pairs.get((kind, kind), 0), of_kind

    def precision(self, kind: str) -> tuple[int, int]:
        """Of the second's labels of a kind, how many the first gave too, and how many there are."""
        of_kind = sum(count for (_, other), count in self.pairs.items() if other == kind)
        return self.pairs.get((kind, kind), 0), of_kind


def agree(pairs: Sequence[tuple[str, str]], *, seed: int = 0, samples: int = 1000) -> Agreement:
    """The agreement of pairs of labels.

    Raises:
        ValueError: there are none.
    """
    if not pairs:
        raise ValueError("no pair of labels")
    rng = random.Random(seed)
    drawn = sorted(_kappa(rng.choices(pairs, k=len(pairs))) for _ in range(samples))
    low, high = drawn[int(0.025 * samples)], drawn[int(0.975 * samples) - 1]
    return Agreement(Counter(pairs), (_kappa(pairs), low, high))


def _kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Cohen's kappa (1960); 1 where both give one label throughout."""
    total = len(pairs)
    equal = sum(one == other for one, other in pairs) / total
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    chance = sum(first[kind] * second[kind] for kind in first) / total**2
    return 1.0 if chance == 1 else (equal - chance) / (1 - chance)


def compare_labels(
    labels: Sequence[Label], structure: Callable[[str, str], Structure]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs of kinds, and pairs of whether the place before is needed, for labelled places.

    Args:
        labels: of an annotator.
        structure: what another one says of the trace with a file and an id.
    """
    kinds: list[tuple[str, str]] = []
    needs: list[tuple[str, str]] = []
    seen: dict[tuple[str, str], Structure] = {}
    before: Label | None = None
    for label in sorted(labels, key=lambda one: (one.file, one.id, one.start)):
        key = (label.file, label.id)
        if key not in seen:
            seen[key] = structure(*key)
        place = _covering(seen[key], label)
        kinds.append((label.kind, seen[key].steps[place].kind if place is not None else "none"))
        if before is not None and (before.file, before.id) == key and place is not None:
            last = _covering(seen[key], before)
            if label.needs_previous is not None and last is not None:
                said = last == place or last in seen[key].steps[place].needs
                needs.append((str(label.needs_previous), str(said)))
        before = label
    return kinds, needs


def _covering(structure: Structure, label: Label) -> int | None:
    """The step that covers most of a labelled place."""
    shared = [min(s.end, label.end) - max(s.start, label.start) for s in structure.steps]
    best = max(range(len(shared)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None
