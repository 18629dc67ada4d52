"""The results of a claim as JSON, a Markdown table and a plot of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from anabranch.jsonl import atomic_writer, read_rows
from anabranch.lab.rl_arms import Claim
from anabranch.lab.rl_measure import ANSWERS, Answers, right_within
from anabranch.metrics.intervals import over_seeds
from anabranch.views.plots import picture

Result = dict[str, Any]


def write_page(claim: Claim, results: Sequence[Result], output: Path) -> Path:
    """Write ``CLAIM.json``, ``CLAIM.md`` and, with matplotlib, ``CLAIM.svg``; returns the page."""
    from anabranch.training.runs import write_json

    write_json(output / f"{claim.name}.json", {"claim": claim.title, "results": list(results)})
    page = output / f"{claim.name}.md"
    with atomic_writer(page) as handle:
        handle.write(f"# {claim.title}\n\n{table(claim, results)}")
    if find_spec("matplotlib") is not None and results:
        draw(claim, results, output / f"{claim.name}.svg")
        answers = kept_answers(claim, results, output)
        if answers:
            draw_limits(answers, output / f"{claim.name}-limits.svg")
    return page


def kept_answers(claim: Claim, results: Sequence[Result], output: Path) -> dict[str, list[Answers]]:
    """Held-out answers of the start and of each arm, a list for each seed that kept them."""
    found: dict[str, list[Answers]] = {}
    for result in results:
        path = output / claim.name / f"{result['arm']}-{result['seed']}" / ANSWERS
        if not path.is_file():
            continue
        rows = [row for _, row in read_rows(path)]
        found.setdefault("start", [[row for row in rows if row["when"] == "before"]])
        after = [row for row in rows if row["when"] == "after"]
        found.setdefault(result["arm"], []).append(after)
    return found


def table(claim: Claim, results: Sequence[Result]) -> str:
    """One row per arm: before → after with the 95 % interval over seeds, where there are two."""
    head = ["arm", "seeds", "steps", *claim.figures, "CPU s"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in dict.fromkeys(result["arm"] for result in results):
        own = [result for result in results if result["arm"] == name]
        cells = [name, str(len(own)), str(own[0]["steps"])]
        cells += [_change(own, figure) for figure in claim.figures]
        cells.append(f"{fmean(result['cpu_seconds'] for result in own):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _change(results: Sequence[Result], figure: str) -> str:
    before = fmean(result["before"][figure] for result in results)
    after = [result["after"][figure] for result in results]
    middle, spread = fmean(after), over_seeds(after)
    shown = f"{before:.3g} → {middle:.3g}"
    return shown if spread is None else f"{shown} ± {spread:.2g}"


def draw(claim: Claim, results: Sequence[Result], path: Path) -> None:
    """Figures over the steps: a thin line a run, a thick one the mean of an arm."""
    figures = ("reward", "accuracy", "parallel_ratio", "path")
    with _picture(path, len(figures)) as axes:
        for axis, what in zip(axes, figures, strict=True):
            for name, colour, own in _arms(results):
                runs = [[row[what] for row in result["log"]] for result in own]
                steps = range(1, min(map(len, runs)) + 1)
                for run in runs:
                    axis.plot(range(1, len(run) + 1), run, color=colour, alpha=0.2, linewidth=0.7)
                mean = [fmean(at) for at in zip(*runs, strict=False)]
                axis.plot(steps, mean, color=colour, linewidth=1.8, label=name)
            axis.set_title(what.replace("_", " "))
            axis.set_xlabel("step")
        axes[1].legend(fontsize=7)


def draw_limits(answers: Mapping[str, Sequence[Answers]], path: Path) -> None:
    """Right answers within a limit on the path: the start, and each arm's mean over seeds.

    Args:
        answers: of the start and of each arm, a list for each seed.
        path: of the picture.
    """
    every = [one["path"] for runs in answers.values() for run in runs for one in run]
    limits = range(min(every, default=0) - 1, max(every, default=0) + 2)
    with _picture(path, 1) as axes:
        for number, (name, runs) in enumerate(answers.items()):
            shares = [fmean(right_within(run, limit) for run in runs) for limit in limits]
            axes[0].plot(limits, shares, label=name, color=f"C{number}")
        axes[0].set_xlabel("limit on the path, tokens")
        axes[0].set_ylabel("right answers")
        axes[0].set_ylim(0, 1.02)
        axes[0].legend(fontsize=7)


def _arms(results: Sequence[Result]) -> Iterator[tuple[str, str, list[Result]]]:
    for number, name in enumerate(dict.fromkeys(result["arm"] for result in results)):
        yield name, f"C{number % 10}", [result for result in results if result["arm"] == name]


@contextmanager
def _picture(path: Path, columns: int) -> Iterator[Any]:
    with picture(columns, height=3.4, width=3.6 * max(columns, 1.6)) as made:
        yield made.axes
    with atomic_writer(path) as handle:
        handle.write(made.svg)
