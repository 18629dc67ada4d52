"""Figures over many traces: shares of AND, OR and serial steps, and ideal paths, by difficulty.

Intervals are 95 %, by bootstrap over problems. A share is of the tokens (or steps) of all traces of
a problem together; a gain is the mean over traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.analysis.structure import KINDS, WIDTHS, Count, Structure, quarter, schedule
from anabranch.metrics.intervals import mean, ratio_of_means

Figure = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """One trace in figures.

    Attributes:
        id, problem: of the row; traces of one problem are drawn together.
        difficulty: as the row says, "" where it does not.
        steps, tokens: its size.
        step_counts, kind_tokens: by kind.
        paths: ideal path by branches at once, 0 for no limit.
        faults: what is odd about it (:class:`anabranch.annotation.traces.SequentialTrace`, and
            ``malformed``, ``not_english``).
        itself: whether the trace says itself what its steps are.
    """

    id: str
    problem: str
    difficulty: str
    steps: int
    tokens: float
    step_counts: Mapping[str, int]
    kind_tokens: Mapping[str, float]
    paths: Mapping[int, float]
    faults: tuple[str, ...] = ()
    itself: bool = False

    @property
    def gain(self) -> float:
        """Tokens over the ideal path without limit."""
        return self.tokens / self.paths[0] if self.paths[0] else 1.0


def figures_of(
    name: str,
    problem: str,
    difficulty: str,
    structure: Structure,
    count: Count = quarter,
    *,
    faults: tuple[str, ...] = (),
    itself: bool = False,
) -> TraceFigures:
    """The figures of one trace; arguments as the attributes of :class:`TraceFigures`."""
    sizes = structure.sizes(count)
    kinds = [step.kind for step in structure.steps]
    needs = [step.needs for step in structure.steps]
    return TraceFigures(
        name,
        problem,
        difficulty,
        len(kinds),
        sum(sizes),
        {kind: kinds.count(kind) for kind in KINDS},
        {kind: sum(s for s, k in zip(sizes, kinds, strict=True) if k == kind) for kind in KINDS},
        {width: schedule(sizes, needs, width) for width in WIDTHS},
        faults,
        itself,
    )


@dataclass(frozen=True)
class Summary:
    """Figures of a set of traces, each ``(value, low, high)``.

    Attributes:
        traces, problems, empty: how many; empty ones have no step and count nowhere else.
        itself: of the traces, how many say themselves what their steps are.
        faults: how many traces have which, empty ones included.
        by_tokens, by_steps: shares of the kinds, all traces taken together.
        by_problem: shares of steps, each problem counting the same: a long trace no more than a
            short one.
        or_share: of the steps that are no serial ones, the share of trials; None without any.
        or_share_by_problem: the same, each problem counting the same.
        gains: tokens over the ideal path, by branches at once.
        tokens, path: means.
    """

    traces: int
    problems: int
    empty: int
    itself: int
    faults: dict[str, int]
    by_tokens: dict[str, Figure]
    by_steps: dict[str, Figure]
    by_problem: dict[str, Figure]
    or_share: Figure | None
    or_share_by_problem: Figure | None
    gains: dict[int, Figure]
    tokens: Figure
    path: Figure

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "traces": self.traces,
            "problems": self.problems,
            "empty": self.empty,
            "parallel_form": self.itself,
            "faults": self.faults,
            "by_tokens": self.by_tokens,
            "by_steps": self.by_steps,
            "by_steps_of_a_problem": self.by_problem,
            "or_share_of_parallel_steps": self.or_share,
            "or_share_of_parallel_steps_of_a_problem": self.or_share_by_problem,
            "ideal_gain": {str(width or "unlimited"): v for width, v in self.gains.items()},
            "tokens": self.tokens,
            "ideal_path": self.path,
        }


def summarise(traces: Sequence[TraceFigures]) -> Summary | None:
    """The figures of some traces; None where none has a step."""
    full = [trace for trace in traces if trace.steps]
    if not full:
        return None
    groups: dict[str, list[TraceFigures]] = {}
    for trace in full:
        groups.setdefault(trace.problem or trace.id, []).append(trace)
    problems = list(groups.values())

    def total(what: Any) -> list[float]:
        return [float(sum(what(trace) for trace in group)) for group in problems]

    def shares(what: Any) -> list[float]:
        return [one / all_ for one, all_ in zip(total(what), steps, strict=True)]

    tokens, steps = total(lambda t: t.tokens), total(lambda t: t.steps)
    parallel = total(lambda t: t.step_counts["subtask"] + t.step_counts["trial"])
    trials = total(lambda t: t.step_counts["trial"])
    return Summary(
        traces=len(full),
        problems=len(problems),
        empty=len(traces) - len(full),
        itself=sum(trace.itself for trace in full),
        faults=dict(sorted(Counter(one for trace in traces for one in trace.faults).items())),
        by_tokens={
            kind: ratio_of_means(total(lambda t, k=kind: t.kind_tokens[k]), tokens)
            for kind in KINDS
        },
        by_steps={
            kind: ratio_of_means(total(lambda t, k=kind: t.step_counts[k]), steps) for kind in KINDS
        },
        by_problem={kind: _mean(shares(lambda t, k=kind: t.step_counts[k])) for kind in KINDS},
        or_share=_ratio(trials, parallel),
        or_share_by_problem=_ratio(
            shares(lambda t: t.step_counts["trial"]),
            shares(lambda t: t.step_counts["subtask"] + t.step_counts["trial"]),
        ),
        gains={
            width: _mean([sum(t.tokens / t.paths[width] for t in g) / len(g) for g in problems])
            for width in WIDTHS
        },
        tokens=_mean([sum(t.tokens for t in g) / len(g) for g in problems]),
        path=_mean([sum(t.paths[0] for t in g) / len(g) for g in problems]),
    )


def _ratio(above: Sequence[float], below: Sequence[float]) -> Figure | None:
    # A problem without any parallel step says nothing of which kind they are.
    pairs = [(a, b) for a, b in zip(above, below, strict=True) if b]
    return ratio_of_means([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def _mean(values: Sequence[float]) -> Figure:
    value, low, high = mean(values)
    return value, low, high


def by_difficulty(traces: Sequence[TraceFigures]) -> dict[str, Summary]:
    """A summary for each difficulty that rows name, in its order."""
    names = sorted({trace.difficulty for trace in traces} - {""})
    found = {name: summarise([t for t in traces if t.difficulty == name]) for name in names}
    return {name: summary for name, summary in found.items() if summary is not None}
