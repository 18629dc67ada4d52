"""The results of a claim as JSON, a Markdown table and a plot of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from anabranch.jsonl import atomic_writer
from anabranch.lab.rl_arms import Claim

Result = dict[str, Any]


def write_page(claim: Claim, results: Sequence[Result], output: Path) -> Path:
    """Write ``CLAIM.json``, ``CLAIM.md`` and, with matplotlib, ``CLAIM.svg``; returns the page."""
    from anabranch.training.runs import write_json

    write_json(output / f"{claim.name}.json", {"claim": claim.title, "results": list(results)})
    page = output / f"{claim.name}.md"
    with atomic_writer(page) as handle:
        handle.write(f"# {claim.title}\n\n{table(claim, results)}")
    if find_spec("matplotlib") is not None:
        draw(claim, results, output / f"{claim.name}.svg")
    return page


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
    middle, spread = fmean(after), interval(after)
    shown = f"{before:.3g} → {middle:.3g}"
    return shown if spread is None else f"{shown} ± {spread:.2g}"


def interval(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of a mean over seeds (Student's t); None of one value."""
    if len(values) < 2:
        return None
    quantiles = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
    quantile = quantiles.get(len(values) - 1, NormalDist().inv_cdf(0.975))
    return float(quantile * stdev(values) / len(values) ** 0.5)


def draw(claim: Claim, results: Sequence[Result], path: Path) -> None:
    """Parallel ratio, critical path and accuracy over the steps, one line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = ("parallel_ratio", "path", "accuracy")
    figure, axes = pyplot.subplots(1, len(figures), figsize=(12, 3.5))
    names = list(dict.fromkeys(result["arm"] for result in results))
    colours = matplotlib.colormaps["tab20"]
    for axis, what in zip(axes, figures, strict=True):
        for result in results:
            steps = [row["step"] for row in result["log"]]
            color = colours(names.index(result["arm"]) % 20)
            label = result["arm"] if result["seed"] == 0 else None
            axis.plot(steps, [row[what] for row in result["log"]], color=color, label=label)
        axis.set_title(what.replace("_", " "))
        axis.set_xlabel("step")
    if results:
        axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
