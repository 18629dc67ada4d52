"""Reports of graded runs: Markdown tables and plots, from :mod:`anabranch.evaluation.measures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anabranch.evaluation.measures import Run, curve, summary
from anabranch.jsonl import atomic_writer
from anabranch.views.plots import COLOURS, picture

_SKIPPED = ("problems", "samples", "statuses", "minimum detectable difference")


def markdown(runs: Mapping[str, Run], seed: int = 0) -> str:
    """One table with a column a run; values with their 95 % intervals."""
    found = {name: summary(run, seed) for name, run in runs.items()}
    rows = list(dict.fromkeys(key for one in found.values() for key in one if key not in _SKIPPED))
    lines = [f"| | {' | '.join(found)} |", "|" + " --- |" * (len(found) + 1)]
    lines.append(
        _row("problems × samples", [f"{s['problems']} × {runs[n].k}" for n, s in found.items()])
    )
    for key in rows:
        lines.append(_row(key, [_shown(one.get(key)) for one in found.values()]))
    lines.append(
        _row(
            "smallest difference that would show",
            [f"{one['minimum detectable difference']:.3f}" for one in found.values()],
        )
    )
    lines.append(_row("verdicts", [_counts(one["statuses"]) for one in found.values()]))
    return "\n".join(lines) + "\n"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value['value']:.3g} ({value['low']:.3g}–{value['high']:.3g})"


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(statuses.items()))


def plain(runs: Mapping[str, Run], seed: int = 0) -> dict[str, Any]:
    """Everything of a report as plain data."""
    return {
        name: {**summary(run, seed), "curve": curve(run, seed=seed)} for name, run in runs.items()
    }


def plot(runs: Mapping[str, Run], path: Path, seed: int = 0) -> bool:
    """Accuracy under limits on the critical path, and the distribution of paths; False without
    matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    with picture(2, height=4, width=11) as made:
        left, right = made.axes
        for number, (name, run) in enumerate(runs.items()):
            colour = COLOURS[number % len(COLOURS)]
            points = curve(run, seed=seed)
            limits = [point["limit"] for point in points]
            low, high = ([p[end] for p in points] for end in ("low", "high"))
            left.plot(limits, [p["value"] for p in points], label=name, color=colour)
            left.fill_between(limits, low, high, color=colour, alpha=0.15)
            paths = [s.path for samples in run.problems.values() for s in samples]
            right.hist(paths, bins=24, histtype="step", label=name, color=colour)
        left.set_xlabel("limit on the critical path, tokens")
        left.set_ylabel("right answers within it")
        left.set_ylim(0, 1.02)
        right.set_xlabel("critical path, tokens")
        right.set_ylabel("answers")
        left.legend(fontsize=8)
    with atomic_writer(path) as handle:
        handle.write(made.svg)
    return True
