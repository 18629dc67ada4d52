"""Labels of steps: how far annotators agree on them, and `anabranch agreement`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anabranch.cli.common import console
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import write_records

if TYPE_CHECKING:
    from anabranch.analysis.agreement import Agreement, Label
    from anabranch.analysis.page import Measured
    from anabranch.analysis.structure import Structure

#: What an annotator says, by file and id.
Known = Mapping[tuple[str, str], "Structure"]


def against(paths: Iterable[Path], known: Known) -> Measured:
    """Agreement with held-out labels by hand of the reasoning of the traces that are there."""
    from anabranch.analysis.agreement import agree, compare_labels, read_labels
    from anabranch.analysis.page import Measured
    from anabranch.annotation.traces import read_trace

    labels: list[Label] = []
    for path in paths:
        of_path = [one for one in read_labels(path) if (one.file, one.id) in known]
        for one in of_path:
            if one.end > len(known[one.file, one.id].text):
                where = f"{one.file} {one.id}"
                raise RecordError(f"a label is behind the end of {where}: other traces?", path=path)
        labels += [one for one in of_path if one.held_out]
    ends = {key: (t := read_trace(s.text)).start + len(t.thought) for key, s in known.items()}
    labels = [one for one in labels if one.end <= ends[one.file, one.id]]
    if not labels:
        raise RecordError("no held-out label is of these files", path=", ".join(map(str, paths)))
    kinds, needs = compare_labels(labels, lambda file, row: known[file, row])
    return Measured(agree(kinds), agree(needs) if needs else None)


def write_labels(path: Path, known: Known) -> None:
    """Write what an annotator says as a file of labels."""
    from anabranch.analysis.agreement import label_rows

    rows = (label_rows(file, name, structure) for (file, name), structure in known.items())
    write_records(path, (row for of_trace in rows for row in of_trace))


def agreement_json(found: Agreement) -> dict[str, Any]:
    """Plain data."""
    return {
        "steps": found.total,
        "accuracy": found.accuracy,
        "kappa": found.kappa,
        "pairs": {" as ".join(pair): count for pair, count in sorted(found.pairs.items())},
    }


def agreement(
    first: Annotated[Path, typer.Argument(help="Labels of one annotator.")],
    second: Annotated[Path, typer.Argument(help="Labels of another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How far two annotators agree, by Cohen's kappa over the places of the first."""
    from anabranch.analysis.agreement import agree, compare_labels, read_labels

    labels, others = read_labels(first), read_labels(second)
    by_trace: dict[tuple[str, str], list[Label]] = {}
    for label in others:
        by_trace.setdefault((label.file, label.id), []).append(label)
    common = [label for label in labels if (label.file, label.id) in by_trace]
    if not common:
        raise UsageError(f"{first} and {second} have no trace in common")
    kinds, _ = compare_labels(common, lambda file, row: _labelled(by_trace[file, row]))
    found = agree(kinds)
    if as_json:
        typer.echo(json.dumps(agreement_json(found)))
        return
    share, low, high = found.accuracy
    console.print(f"{found.total} places: equal {share:.1%} ({low:.1%} to {high:.1%})")
    kappa, low, high = found.kappa
    console.print(f"Cohen's kappa {kappa:.2f} ({low:.2f} to {high:.2f})")
    for (one, other), number in sorted(found.pairs.items()):
        if one != other:
            console.print(f"{one} as {other}: {number}")


def _labelled(labels: list[Label]) -> Structure:
    from anabranch.analysis.structure import Step, Structure

    return Structure("", tuple(Step(one.start, one.end, one.kind) for one in labels))
