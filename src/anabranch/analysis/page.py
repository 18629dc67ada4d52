"""The report of an analysis as Markdown and as a page, with how far its annotator agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.analysis.agreement import Agreement
from anabranch.analysis.report import Figure, Summary, TraceFigures, by_difficulty
from anabranch.analysis.structure import KINDS
from anabranch.views.plots import bars, histogram
from anabranch.views.report import figure, heading, paragraph, table, write_report

Row = list[object]
HEAD = ("", "of tokens", "of steps", "of steps, each problem alike")


@dataclass(frozen=True, slots=True)
class Measured:
    """How far the annotator agrees with labels by hand: on kinds, and on what needs what."""

    kinds: Agreement
    needs: Agreement | None


@dataclass(frozen=True, slots=True)
class Shown:
    """What a report shows.

    Attributes:
        traces, summaries: by file.
        annotator: who said what the steps of sequential traces are.
        unit: what a token is.
        measured: of the annotator, None where it was not measured.
        left_out: traces that were not wanted, by file.
    """

    traces: Mapping[str, Sequence[TraceFigures]]
    summaries: Mapping[str, Summary]
    annotator: str
    unit: str
    measured: Measured | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def itself(self) -> bool:
        """Whether every trace says itself what its steps are."""
        return all(one.itself == one.traces for one in self.summaries.values())


def agreement_sentences(shown: Shown) -> str:
    """What is known of how right the annotator is; belongs beside every share."""
    if shown.itself:
        return "Steps and kinds are those that the traces themselves give."
    if shown.measured is None:
        return (
            f"Steps and kinds of sequential traces are those of the {shown.annotator}; how far it "
            "agrees with labels by hand was not measured here (--labels)."
        )
    found, needs = shown.measured.kinds, shown.measured.needs
    kinds = ", ".join(
        f"{kind}: {found.recall(kind)[0]} of {found.recall(kind)[1]} found, "
        f"{found.precision(kind)[0]} of {found.precision(kind)[1]} named were right"
        for kind in KINDS
    )
    said = (
        f"Steps and kinds of sequential traces are those of the {shown.annotator}. "
        f"On {found.total} steps labelled by hand and held out it agrees in {_agreed(found)}; "
        f"{kinds}."
    )
    if needs is not None:
        said += (
            " On whether a step needs what stands before it, which ideal paths rest on, it agrees "
            f"in {_agreed(needs)}."
        )
    return said


def _agreed(found: Agreement) -> str:
    share, kappa = found.accuracy, found.kappa
    return (
        f"{share[0]:.0%} ({share[1]:.0%} to {share[2]:.0%}), "
        f"Cohen's κ {kappa[0]:.2f} ({kappa[1]:.2f} to {kappa[2]:.2f})"
    )


def about(summary: Summary, left_out: int) -> str:
    """How many traces there are, and what is odd about them."""
    said = f"{summary.traces} traces of {summary.problems} problems, {summary.empty} empty."
    if left_out:
        said += f" {left_out} more are left out."
    if 0 < summary.itself < summary.traces:
        said += f" {summary.itself} are in parallel form and say themselves what their steps are."
    if summary.faults:
        faults = (f"{name.replace('_', ' ')}: {n}" for name, n in summary.faults.items())
        said += f" Odd among them: {', '.join(faults)}."
    return said


def rows_of(summary: Summary) -> list[Row]:
    """The table of a summary."""
    rows: list[Row] = []
    for kind, name in (("serial", "serial"), ("subtask", "AND: subtask"), ("trial", "OR: trial")):
        of = (summary.by_tokens[kind], summary.by_steps[kind], summary.by_problem[kind])
        rows.append([name, *map(_shown, of)])
    rows.append(
        [
            "trials among parallel steps",
            "",
            _shown(summary.or_share),
            _shown(summary.or_share_by_problem),
        ]
    )
    for width, gain in summary.gains.items():
        name = f"{width} branches at once" if width else "any number at once"
        rows.append([f"ideal gain, {name}", _times(gain), "", ""])
    rows.append(["tokens of a trace", _number(summary.tokens), "", ""])
    rows.append(["ideal path of a trace", _number(summary.path), "", ""])
    return rows


def markdown(shown: Shown) -> str:
    """The tables as Markdown, with what is known of the annotator."""
    lines = []
    for name, summary in shown.summaries.items():
        lines += [
            f"## {name}",
            "",
            about(summary, shown.left_out.get(name, 0)),
            "",
            f"| {' | '.join(HEAD)} |",
            "|---|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in rows_of(summary)),
            "",
        ]
    lines += [agreement_sentences(shown), f"Tokens: {shown.unit}."]
    return "\n".join(lines) + "\n"


def write_page(path: Path, shown: Shown) -> None:
    """Write the page: tables and pictures of each file.

    Raises:
        UsageError: matplotlib is not installed.
    """
    write_report(path, "What is in the traces", _parts(shown))


def _parts(shown: Shown) -> Iterator[str]:
    yield paragraph(agreement_sentences(shown))
    yield paragraph(
        f"Tokens: {shown.unit}. Intervals are 95 %, by bootstrap over problems. The ideal gain is "
        "all tokens over the heaviest chain of steps that need one another: no decoding that keeps "
        "these steps can be faster. With a limit on branches it is that of list scheduling, the "
        "step with the heaviest rest first: at most 2 − 1/branches times the best schedule.",
        note=True,
    )
    for name, summary in shown.summaries.items():
        yield heading(name)
        yield paragraph(about(summary, shown.left_out.get(name, 0)))
        yield table(HEAD, rows_of(summary))
        shares: dict[str, float] = {k: round(100 * summary.by_tokens[k][0], 1) for k in KINDS}
        yield figure("Shares of tokens, per cent", bars(shares))
        gains = [trace.gain for trace in shown.traces[name] if trace.steps]
        yield figure("Ideal gain of each trace", histogram(gains, "tokens over the ideal path"))
        parts = by_difficulty(shown.traces[name])
        if parts:
            yield _difficulties(parts)


def _difficulties(parts: Mapping[str, Summary]) -> str:
    return table(
        ("difficulty", "traces", "AND of tokens", "OR of tokens", "ideal gain"),
        [
            [
                level,
                one.traces,
                _shown(one.by_tokens["subtask"]),
                _shown(one.by_tokens["trial"]),
                _times(one.gains[0]),
            ]
            for level, one in parts.items()
        ],
    )


def _shown(value: Figure | None) -> str:
    return "" if value is None else f"{value[0]:.1%} ({value[1]:.1%}–{value[2]:.1%})"


def _times(value: Figure) -> str:
    return f"{value[0]:.2f} × ({value[1]:.2f}–{value[2]:.2f})"


def _number(value: Figure) -> str:
    return f"{value[0]:.0f} ({value[1]:.0f}–{value[2]:.0f})"
