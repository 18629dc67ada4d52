"""The report of an analysis as Markdown and as a page, with how far its annotator agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from anabranch.analysis.agreement import Agreement
from anabranch.analysis.report import Figure, Summary, TraceFigures, by_difficulty
from anabranch.analysis.structure import KINDS
from anabranch.views.plots import bars, histogram
from anabranch.views.report import figure, heading, paragraph, table, write_report

Row = list[object]


#: The annotator of traces that are written in parallel form.
ITSELF = "parallel form"


def agreement_sentence(found: Agreement | None, annotator: str) -> str:
    """What is known of how right the annotator is; belongs beside every share."""
    if annotator == ITSELF:
        return "Steps and kinds are those that the traces themselves give."
    if found is None:
        return (
            f"Steps and kinds are those of the {annotator}; how far it agrees with people on such "
            "traces was not measured here (--labels)."
        )
    low, high = found.interval
    kinds = ", ".join(
        f"{kind}: {found.recall(kind)[0]} of {found.recall(kind)[1]} found, "
        f"{found.precision(kind)[0]} of {found.precision(kind)[1]} named were right"
        for kind in KINDS
    )
    return (
        f"Steps and kinds are those of the {annotator}. On {found.total} steps labelled by hand "
        f"and held out it agrees in {found.accuracy:.0%} ({low:.0%} to {high:.0%}), "
        f"Cohen's κ {found.kappa[0]:.2f} ({found.kappa[1]:.2f} to {found.kappa[2]:.2f}); {kinds}."
    )


def rows_of(summary: Summary) -> list[Row]:
    """The table of a summary."""
    rows: list[Row] = []
    for kind, name in (("serial", "serial"), ("subtask", "AND: subtask"), ("trial", "OR: trial")):
        rows.append([name, _shown(summary.by_tokens[kind]), _shown(summary.by_steps[kind])])
    rows.append(["trials among parallel steps", "", _shown(summary.or_share)])
    for width, gain in summary.gains.items():
        name = f"{width} branches at once" if width else "any number at once"
        rows.append([f"ideal gain, {name}", _times(gain), ""])
    rows.append(["tokens of a trace", _number(summary.tokens), ""])
    rows.append(["ideal path of a trace", _number(summary.path), ""])
    return rows


HEAD = ("", "of tokens", "of steps")


def markdown(
    summaries: Mapping[str, Summary], found: Agreement | None, annotator: str, unit: str
) -> str:
    """The tables as Markdown, with what is known of the annotator."""
    lines = []
    for name, summary in summaries.items():
        lines += [
            f"## {name}",
            "",
            f"{summary.traces} traces of {summary.problems} problems, {summary.empty} empty.",
            "",
            "| | of tokens | of steps |",
            "|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in rows_of(summary)),
            "",
        ]
    lines += [agreement_sentence(found, annotator), f"Tokens: {unit}."]
    return "\n".join(lines) + "\n"


def write_page(
    path: Path,
    traces: Mapping[str, Sequence[TraceFigures]],
    summaries: Mapping[str, Summary],
    found: Agreement | None,
    annotator: str,
    unit: str,
) -> None:
    """Write the page: tables and pictures of each file."""
    write_report(path, "What is in the traces", _parts(traces, summaries, found, annotator, unit))


def _parts(
    traces: Mapping[str, Sequence[TraceFigures]],
    summaries: Mapping[str, Summary],
    found: Agreement | None,
    annotator: str,
    unit: str,
) -> Iterator[str]:
    yield paragraph(agreement_sentence(found, annotator))
    yield paragraph(
        f"Tokens: {unit}. Intervals are 95 %, by bootstrap over problems. The ideal gain is all "
        "tokens over the heaviest chain of steps that need one another: no decoding that keeps "
        "these steps can be faster.",
        note=True,
    )
    for name, summary in summaries.items():
        yield heading(name)
        yield paragraph(
            f"{summary.traces} traces of {summary.problems} problems, {summary.empty} empty."
        )
        yield table(HEAD, rows_of(summary))
        shares: dict[str, float] = {k: round(100 * summary.by_tokens[k][0], 1) for k in KINDS}
        yield figure("Shares of tokens, per cent", bars(shares))
        gains = [trace.gain for trace in traces[name] if trace.steps]
        yield figure("Ideal gain of each trace", histogram(gains, "tokens over the ideal path"))
        parts = by_difficulty(traces[name])
        if parts:
            yield table(
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
