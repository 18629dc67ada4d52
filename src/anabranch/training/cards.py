"""The data card of a training file: what it is made of, how, and what was left out. JSON and text.

The JSON is the card; the Markdown is written from it and holds nothing else. Whether the data is
good for a purpose is the reader's judgement; the card gives the counts for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from anabranch.jsonl import atomic_writer
from anabranch.records import Problem
from anabranch.training.runs import write_json
from anabranch.training.self_training_keep import REASONS, Seen, Sieved


class FamilyCounts(BaseModel):
    """Counts of one family of problems; tokens are means over the kept answers."""

    model_config = ConfigDict(extra="forbid")

    decoded: int
    well_formed: int
    parallel: int
    correct: int
    kept: int
    kept_problems: int
    path_tokens: float | None = None
    total_tokens: float | None = None


class Part(BaseModel):
    """Rows of one origin in the file: how many there are, and how many were taken."""

    model_config = ConfigDict(extra="forbid")

    name: str
    rows: int
    taken: int
    sha256: str | None = None


class DataCard(BaseModel):
    """Everything that is known of one round's training file.

    Attributes:
        title: of the page.
        round: number of the round, from 1.
        model: checkpoint that wrote the answers, its dialect and prompt.
        problems: file, number, origin of the problems, and how many were excluded.
        decoding: settings with which they were drawn.
        rules: thresholds and quotas.
        families: counts by family of problem; ``all`` is their sum.
        dropped: answers by reason; with ``families['all'].kept`` they add up to all.
        details: the commonest details of each reason.
        parts: what the training file is made of.
        versions: of the packages.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    round: int
    model: dict[str, Any]
    problems: dict[str, Any]
    decoding: dict[str, Any]
    rules: dict[str, Any]
    families: dict[str, FamilyCounts]
    dropped: dict[str, int]
    details: dict[str, dict[str, int]] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)


def family_counts(seen: Sequence[Seen], sieved: Sieved) -> dict[str, FamilyCounts]:
    """Counts of each family, then of all together."""
    kept = {one.order for one in sieved.kept}
    names = sorted({one.family for one in seen} - {""})
    groups = {name: [one for one in seen if one.family == name] for name in names}
    return {name: _counts(group, kept) for name, group in [*groups.items(), ("all", list(seen))]}


def details(sieved: Sieved, most: int = 5) -> dict[str, dict[str, int]]:
    """The commonest details of each reason."""
    found: dict[str, Counter[str]] = {}
    for one, reason in sieved.dropped:
        if one.detail and one.fault == reason:
            found.setdefault(reason, Counter())[one.detail] += 1
    return {
        reason: dict(sorted(found[reason].items(), key=lambda item: (-item[1], item[0]))[:most])
        for reason in REASONS
        if reason in found
    }


def origins(problems: Sequence[Problem]) -> dict[str, int]:
    """How many problems come from where; those that do not say are ``unknown``."""
    counts = Counter(problem.source or "unknown" for problem in problems)
    return dict(sorted(counts.items()))


def save_card(card: DataCard, path: Path) -> None:
    """Write ``path`` (Markdown) and, beside it, the card itself as JSON."""
    write_json(path.with_suffix(".json"), card.model_dump(mode="json"))
    with atomic_writer(path) as handle:
        handle.write(card_page(card))


def card_page(card: DataCard) -> str:
    """The card as Markdown."""
    everything = card.families["all"]
    parts = [
        f"# {card.title}",
        f"Training data of round {card.round} of self-training: answers that "
        f"`{card.model.get('path', '')}` ({card.model.get('dialect', '')}) gave itself, and rows "
        f"from before. {everything.kept} of {everything.decoded} answers were kept.",
        "## The file",
        _table(
            ["origin", "rows there", "rows taken"],
            [[part.name, str(part.rows), str(part.taken)] for part in card.parts],
        ),
        "## Answers by family",
        _families(card.families),
        "## What was dropped, and why",
        _dropped(card),
        "## How it was made",
        _settings(card),
        "## Limits",
        "The answers are a model's own: what it cannot do is not in them, and problems that it "
        "solves easily are over-represented up to the quota. A right final answer does not show "
        "that every step is right. Rights in the problems stay with their sources.",
    ]
    return "\n\n".join(parts) + "\n"


def _counts(group: Sequence[Seen], kept: set[int]) -> FamilyCounts:
    chosen = [one for one in group if one.order in kept]
    return FamilyCounts(
        decoded=len(group),
        well_formed=sum(one.well_formed for one in group),
        parallel=sum(one.parallel for one in group),
        correct=sum(one.correct for one in group),
        kept=len(chosen),
        kept_problems=len({one.problem for one in chosen}),
        path_tokens=fmean(one.path for one in chosen) if chosen else None,
        total_tokens=fmean(one.total for one in chosen) if chosen else None,
    )


def _families(families: Mapping[str, FamilyCounts]) -> str:
    head = ["family", "decoded", "well formed", "with a block", "right", "kept", "problems kept"]
    head += ["path, tokens", "all tokens"]
    rows = []
    for name, counts in families.items():
        rows.append(
            [
                name,
                str(counts.decoded),
                _of(counts.well_formed, counts.decoded),
                _of(counts.parallel, counts.decoded),
                _of(counts.correct, counts.decoded),
                str(counts.kept),
                str(counts.kept_problems),
                "–" if counts.path_tokens is None else f"{counts.path_tokens:.0f}",
                "–" if counts.total_tokens is None else f"{counts.total_tokens:.0f}",
            ]
        )
    return _table(head, rows)


def _dropped(card: DataCard) -> str:
    rows = []
    for reason, count in card.dropped.items():
        common = ", ".join(f"{name} {n}" for name, n in card.details.get(reason, {}).items())
        rows.append([reason, str(count), REASONS[reason], common or "–"])
    rows.append(["all", str(sum(card.dropped.values())), "", ""])
    return _table(["reason", "answers", "meaning", "most often"], rows)


def _settings(card: DataCard) -> str:
    lines = []
    for title in ("model", "problems", "decoding", "rules", "versions"):
        values = getattr(card, title)
        shown = ", ".join(f"{name} `{value}`" for name, value in values.items())
        lines.append(f"- {title}: {shown}")
    return "\n".join(lines)


def _of(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "0"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(_cell(c) for c in row) + " |" for row in rows)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
