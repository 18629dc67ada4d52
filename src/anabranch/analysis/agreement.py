"""How far two annotators agree: hand labels and the classifier, or two judges.

Label files hold places and labels only, never the text: the traces themselves may not be passed on.
A label is of a paragraph; an annotator's answer for it is that of its step which covers most of it.
Intervals are 95 %, by bootstrap over traces, since labels of one trace are not independent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.analysis.structure import KINDS, Kind, Structure
from anabranch.errors import RecordError
from anabranch.jsonl import read_rows


@dataclass(frozen=True, slots=True)
class Label:
    """A label of one place.

    Attributes:
        file, id: the trace.
        start, end: offsets in its text.
        kind: what the place is.
        needs_previous: whether it uses what stands right before it; None: not said.
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


class Pair(NamedTuple):
    """What two annotators say of one place, and in which trace it is."""

    first: str
    second: str
    trace: str = ""


@dataclass(frozen=True)
class Agreement:
    """Of pairs of labels, the first taken as right where a recall is given.

    Attributes:
        pairs: counts by (first, second).
        accuracy: the share of equal pairs, with its interval.
        kappa: Cohen's, with its interval.
    """

    pairs: Mapping[tuple[str, str], int]
    accuracy: tuple[float, float, float]
    kappa: tuple[float, float, float]

    @property
    def total(self) -> int:
        """How many pairs there are."""
        return sum(self.pairs.values())

    def recall(self, kind: str) -> tuple[int, int]:
        """Of the first's labels of a kind, how many the second gave too, and how many there are."""
        of_kind = sum(count for (one, _), count in self.pairs.items() if one == kind)
        return self.pairs.get((kind, kind), 0), of_kind

    def precision(self, kind: str) -> tuple[int, int]:
        """Of the second's labels of a kind, how many the first gave too, and how many there are."""
        of_kind = sum(count for (_, other), count in self.pairs.items() if other == kind)
        return self.pairs.get((kind, kind), 0), of_kind


def agree(pairs: Sequence[Pair], *, seed: int = 0, samples: int = 1000) -> Agreement:
    """The agreement of pairs of labels.

    Raises:
        ValueError: there are none.
    """
    if not pairs:
        raise ValueError("no pair of labels")
    groups: dict[str, list[Pair]] = {}
    for number, pair in enumerate(pairs):
        groups.setdefault(pair.trace or f"#{number}", []).append(pair)
    traces = list(groups.values())
    rng = random.Random(seed)
    drawn = []
    for _ in range(samples):
        chosen = [pair for trace in rng.choices(traces, k=len(traces)) for pair in trace]
        drawn.append((_equal(chosen), _kappa(chosen)))
    return Agreement(
        Counter((pair.first, pair.second) for pair in pairs),
        (_equal(pairs), *_middle([equal for equal, _ in drawn])),
        (_kappa(pairs), *_middle([kappa for _, kappa in drawn])),
    )


def _middle(values: list[float]) -> tuple[float, float]:
    values.sort()
    return values[int(0.025 * len(values))], values[int(0.975 * len(values)) - 1]


def _equal(pairs: Sequence[Pair]) -> float:
    return sum(pair.first == pair.second for pair in pairs) / len(pairs)


def _kappa(pairs: Sequence[Pair]) -> float:
    """Cohen's kappa (1960); 1 where both give one label throughout."""
    first = Counter(pair.first for pair in pairs)
    second = Counter(pair.second for pair in pairs)
    chance = sum(first[kind] * second[kind] for kind in first) / len(pairs) ** 2
    return 1.0 if chance == 1 else (_equal(pairs) - chance) / (1 - chance)


def compare_labels(
    labels: Sequence[Label], structure: Callable[[str, str], Structure]
) -> tuple[list[Pair], list[Pair]]:
    """Pairs of kinds, and pairs of whether the place before is needed, for labelled places.

    Args:
        labels: of an annotator.
        structure: what another one says of the trace with a file and an id.
    """
    kinds: list[Pair] = []
    needs: list[Pair] = []
    seen: dict[tuple[str, str], Structure] = {}
    for label in labels:
        key = (label.file, label.id)
        if key not in seen:
            seen[key] = structure(*key)
        steps = seen[key].steps
        place = _covering(seen[key], label)
        said = steps[place].kind if place is not None else "none"
        trace = f"{label.file}/{label.id}"
        kinds.append(Pair(label.kind, said, trace))
        if place is not None and label.needs_previous is not None:
            # A place inside a longer step follows on what stands before it there.
            inside = steps[place].start < label.start
            if inside or place:
                follows = inside or place - 1 in steps[place].needs
                needs.append(Pair(str(label.needs_previous), str(follows), trace))
    return kinds, needs


def _covering(structure: Structure, label: Label) -> int | None:
    """The step that covers most of a labelled place."""
    shared = [min(s.end, label.end) - max(s.start, label.start) for s in structure.steps]
    best = max(range(len(shared)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None
