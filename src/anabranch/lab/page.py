"""The results page: Markdown and a plot, from what :mod:`anabranch.lab.results` measured.

Text and layout only; no figure is made here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.jsonl import atomic_writer
from anabranch.lab.results import LIMIT
from anabranch.views.plots import picture


def percent(cell: dict[str, float]) -> str:
    """A share as `97.4 % (95.6–98.5)`, the brackets its 95 % interval."""
    low, high = 100 * cell["low"], 100 * cell["high"]
    return f"{100 * cell['share']:.1f} % ({low:.1f}–{high:.1f})"


def page(result: dict[str, Any], *, plot: str | None = None) -> str:
    """The whole page.

    Args:
        result: of :func:`anabranch.lab.results.measure`.
        plot: path of the plot, as the page is to link it.
    """
    parts = [
        "# Results of the bundled model",
        _intro(result),
        "## AND: independent chains",
        _chains(result),
        "## OR: operator puzzles",
        _puzzles(result),
        _curve(result["or"], plot),
        "## Wall clock",
        _clock(result),
    ]
    return "\n\n".join(parts) + "\n"


def _intro(result: dict[str, Any]) -> str:
    return (
        f"Made by `make results`. Model: {result['model']}, decoded greedily on held-out "
        "problems: the split is by a hash of the problem, and no problem of it is ever drawn for "
        f"training. {result['problems']} problems of each size. Brackets are 95 % intervals "
        "(Wilson; bootstrap over problems for ratios). Tokens are sampled tokens; the path is the "
        "critical path: everything outside the branches and the longest branch of each block."
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _chains(result: dict[str, Any]) -> str:
    rows = []
    for row in result["and"]:
        line, fork = row["sequential"], row["parallel"]
        rows.append(
            [
                str(row["chains"]),
                percent(line["correct"]),
                percent(fork["correct"]),
                percent(fork["format"]),
                percent(fork["forked"]),
                f"{line['total']:.0f}",
                f"{fork['path']:.0f}",
                f"{fork['total']:.0f}",
                f"{fork['path'] / line['total']:.2f}",
            ]
        )
    head = ["k", "right, one line", "right, fork-join", "well formed", "forked"]
    head += ["tokens, one line", "path", "tokens, fork-join", "path / one line"]
    tail = f"Mean of the last column for k = 4 … 6: {result['and_path_ratio']:.2f}."
    return _table(head, rows) + "\n\n" + tail


_NAMES = {"sequential": "one line", "all": "all trials", "first_conclusive": "first conclusive"}


def _puzzles(result: dict[str, Any]) -> str:
    rows = []
    for name, title in _NAMES.items():
        cell = result["or"][name]
        rows.append(
            [
                title,
                percent(cell["correct"]),
                percent(cell["format"]),
                f"{cell['path']:.0f}",
                f"{cell['total']:.0f}",
                f"{cell['losers']:.0f}",
            ]
        )
    ratio = result["or"]["tokens_ratio"]
    below = [
        row["share"]
        for row in result["or"]["curve"]
        if row["first_conclusive"]["share"] < max(row["all"]["share"], row["sequential"]["share"])
    ]
    but = ", ".join(f"{one:g}" for one in below)
    where = f"at every limit but {but} × the mean" if below else "at every limit below"
    tail = (
        "All trials: join policy `all`; first conclusive: `first_conclusive`, which ends a block "
        "at the first trial that reports a success. Tokens of the latter against the former: "
        f"{ratio['ratio']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f}). Its right answers are at "
        f"or above those of both others {where}. A quorum means nothing here: of the trials of a "
        "puzzle one succeeds, so no two ever agree on an answer."
    )
    head = ["", "right", "well formed", "path", "tokens", "of them losers'"]
    return _table(head, rows) + "\n\n" + tail


def _curve(result: dict[str, Any], plot: str | None) -> str:
    rows = [
        [f"{row['share']:.1f}", f"{row['limit']:.0f}", *(percent(row[n]) for n in _NAMES)]
        for row in result["curve"]
    ]
    head = ["limit / sequential mean", "tokens", *_NAMES.values()]
    real = result["limited"]
    lines = [
        "Right answers under a limit on the path. Without a reserve a limit only ends the answer, "
        "so one unlimited run gives the whole curve:",
        _table(head, rows),
        f"Decoded again with the limit {real['limit']} ({LIMIT} × the mean) enforced: "
        + ", ".join(f"{title} {percent(real[name])}" for name, title in _NAMES.items())
        + f"; longest path {real['longest_path']}.",
    ]
    if plot:
        lines.append(f"![right answers against the path limit]({plot})")
    return "\n\n".join(lines)


def _clock(result: dict[str, Any]) -> str:
    rows = []
    for row in [*result["clock"], {"chains": "all", **result["clock_all"]}]:
        rows.append(
            [
                str(row["chains"]),
                f"{1000 * row['sequential']:.0f}",
                f"{1000 * row['parallel']:.0f}",
                f"{row['speed_up']:.2f} ({row['low']:.2f}–{row['high']:.2f})",
            ]
        )
    head = ["k", "one line, ms", "fork-join, ms", "times faster"]
    text = (
        f"One problem at a time on the engine `{result['engine']}`, both ways in turn, in one run."
    )
    return text + "\n\n" + _table(head, rows)


def draw(result: dict[str, Any], path: Path) -> None:
    """The curve of right answers against the path limit, as SVG.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with picture(width=7, height=4) as made:
        axes = made.axes[0]
        for name, title in _NAMES.items():
            curve = result["or"]["curve"]
            limits = [row["limit"] for row in curve]
            axes.plot(limits, [row[name]["share"] for row in curve], marker="o", label=title)
            low, high = [row[name]["low"] for row in curve], [row[name]["high"] for row in curve]
            axes.fill_between(limits, low, high, alpha=0.15)
        axes.set(xlabel="limit on the critical path, tokens", ylabel="right answers")
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
        axes.legend(title="operator puzzles")
    with atomic_writer(path) as handle:
        handle.write(made.svg)
