"""The report of graded runs as one page: tables, pictures, and the problems to look at.

With files of trajectories, a page of each run's trajectories is written beside it and linked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from anabranch.evaluation.measures import Run, accuracy, average, summary, warnings, within
from anabranch.evaluation.published import RESULTS
from anabranch.jsonl import read_records
from anabranch.records import Trajectory
from anabranch.views import Page, write_pages
from anabranch.views.plots import curves, histogram, picture
from anabranch.views.report import figure, heading, paragraph, table, write_report

#: Problems that are listed, and trajectories of a run that its page holds.
WORST = 20
KEPT = 10_000
#: Runs whose speed-ups are drawn; the table has all.
HISTOGRAMS = 2
BASELINE = "sequential"


def write_page(
    runs: Mapping[str, Run],
    path: Path,
    title: str,
    *,
    suite: str = "",
    files: Mapping[str, Path] | None = None,
    seed: int = 0,
) -> None:
    """Write the report.

    Args:
        runs: by name; one called ``sequential`` is what speed-ups are measured against.
        path: the HTML file.
        title: of the page.
        suite: whose published results are put beside, where there are any.
        files: each run's graded trajectories, for pages to read them.
        seed: of the bootstrap.
    """
    links = {}
    for name, file in (files or {}).items():
        target = path.with_name(f"{path.stem}-{name}.html")
        rows = (Page.of_trajectory(one) for one in read_records(file, Trajectory))
        write_pages(target, (row for row, _ in zip(rows, range(KEPT), strict=False)), name)
        links[name] = target.name
    write_report(path, title, _parts(runs, suite, links, seed))


def _parts(
    runs: Mapping[str, Run], suite: str, links: Mapping[str, str], seed: int
) -> Iterator[str]:
    found = {name: summary(run, seed) for name, run in runs.items()}
    yield paragraph(
        "All intervals are 95 %, by bootstrap over problems. The critical path is in sampled "
        "tokens that had to follow one another.",
        note=True,
    )
    for warning in warnings(runs):
        yield paragraph(f"Warning: {warning}.")
    yield heading("Measures")
    yield from _measures(found)
    yield heading("Accuracy against latency")
    yield figure("Accuracy against the mean critical path; the line is the front", _front(found))
    yield heading("Under a limit on the critical path")
    yield figure("Right answers within a limit that ends the answer", _limits(runs))
    yield from _speed_ups(runs)
    yield from _difficulty(runs)
    if suite in RESULTS:
        yield heading("Published, not measured here")
        yield _published(suite)
    yield heading("Problems to look at")
    yield from _worst(runs)
    for name, link in links.items():
        yield f'<p><a href="{escape(link)}">Trajectories of {escape(name)}</a></p>'


def _measures(found: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    keys = dict.fromkeys(k for one in found.values() for k, v in one.items() if isinstance(v, dict))
    rows = [
        [key, *(_estimate(one.get(key)) for one in found.values())]
        for key in keys
        if key != "statuses"
    ]
    for key in ("problems", "samples", "minimum detectable difference"):
        rows.append([key, *(one[key] for one in found.values())])  # type: ignore[list-item]
    verdicts = [
        ", ".join(f"{count} {name}" for name, count in sorted(one["statuses"].items()))  # type: ignore[attr-defined]
        for one in found.values()
    ]
    yield table(("", *found), [*rows, ["verdicts", *verdicts]])


def _estimate(value: object) -> str:
    if not isinstance(value, dict):
        return "–"
    return f"{value['value']:.3g} ({value['low']:.3g}–{value['high']:.3g})"


def _right(one: Mapping[str, object]) -> dict[str, float]:
    return next(v for k, v in one.items() if k.startswith("mean@") and isinstance(v, dict))


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of points that no other beats: at most its path and at least its accuracy.

    Args:
        points: path and accuracy by name.
    """
    kept = [
        name
        for name, (path, right) in points.items()
        if not any(
            (p <= path and r >= right) and (p < path or r > right) for p, r in points.values()
        )
    ]
    return sorted(kept, key=lambda name: points[name])


def _front(found: Mapping[str, Mapping[str, object]]) -> str:
    places: dict[str, tuple[float, float]] = {}
    with picture(height=3.8) as made:
        axis = made.axes[0]
        for name, one in found.items():
            right, path = _right(one), one["critical_path"]
            assert isinstance(path, dict)
            x, y = path["value"], right["value"]
            places[name] = (x, y)
            axis.errorbar(
                x,
                y,
                xerr=[[x - path["low"]], [path["high"] - x]],
                yerr=[[y - right["low"]], [right["high"] - y]],
                marker="o",
                capsize=3,
                linestyle="none",
                label=name,
            )
        line = [places[name] for name in front(places)]
        axis.plot([p[0] for p in line], [p[1] for p in line], color="#8a8f98", zorder=0)
        axis.set_xlabel("critical path, tokens")
        axis.set_ylabel("accuracy")
        axis.legend(fontsize="small")
    return made.svg


def _limits(runs: Mapping[str, Run]) -> str:
    paths = [s.path for run in runs.values() for of in run.problems.values() for s in of]
    low, high = min(paths), max(paths)
    room = max(1, (high - low) // 20)
    limits = range(max(0, low - room), high + room + 1, max(1, (high - low) // 120))
    series = {
        name: [(float(at), fmean(run.per_problem(within(at)).values())) for at in limits]
        for name, run in runs.items()
    }
    return curves(series, "limit on the critical path, tokens", "accuracy")


def speed_ups(run: Run, baseline: Run) -> dict[str, float]:
    """Mean sequential tokens over the mean critical path, for each problem of both runs."""
    path, line = run.per_problem(average("path")), baseline.per_problem(average("path"))
    return {name: line[name] / path[name] for name in path if name in line and path[name]}


def _speed_ups(runs: Mapping[str, Run]) -> Iterator[str]:
    baseline = runs.get(BASELINE)
    # Limited runs of the sequential form are not faster than it, only shorter.
    others = {name: run for name, run in runs.items() if not name.startswith(BASELINE)}
    if baseline is None or not others:
        return
    yield heading("Speed-up against the sequential form, problem by problem")
    rows = []
    for name, run in others.items():
        found = sorted(speed_ups(run, baseline).values())
        if not found:
            continue
        rows.append([name, fmean(found), median(found), found[0], found[-1],
                     sum(one > 1 for one in found) / len(found)])  # fmt: skip
        if len(rows) <= HISTOGRAMS:
            yield figure(f"{name}: problems by their speed-up", histogram(found, "times"))
    yield table(("run", "mean", "median", "least", "most", "share above 1"), rows)


def _difficulty(runs: Mapping[str, Run]) -> Iterator[str]:
    """Accuracy and path over problems in the order of how many answers to them are right."""
    shared = set.intersection(*(set(run.problems) for run in runs.values()))
    if len(shared) < 5:
        return
    right = [run.per_problem(accuracy) for run in runs.values()]
    hardness = {name: 1 - fmean(one[name] for one in right) for name in shared}
    order = sorted(shared, key=lambda name: (hardness[name], name))
    parts = [order[n * len(order) // 5 : (n + 1) * len(order) // 5] for n in range(5)]
    series = {}
    for name, run in runs.items():
        path = run.per_problem(average("path"))
        series[name] = [(n + 1, fmean(path[p] for p in part)) for n, part in enumerate(parts)]
    yield heading("By difficulty")
    drawn = curves(series, "fifth of the problems, from easy to hard by all runs", "critical path")
    yield figure("Mean critical path by difficulty", drawn)
    rows = []
    for n, part in enumerate(parts, 1):
        rows.append([n, len(part), *(f"{fmean(one[p] for p in part):.1%}" for one in right)])
    yield table(("fifth", "problems", *(f"accuracy {name}" for name in runs)), rows)


def _published(suite: str) -> str:
    head = ("published", "model", "accuracy %", "path", "sequential %", "sequential tokens")
    return table(head, [list(one) for one in RESULTS[suite]])


def _worst(runs: Mapping[str, Run]) -> Iterator[str]:
    names = sorted(set().union(*(run.problems for run in runs.values())))

    def right(name: str) -> list[float | None]:
        return [
            accuracy(run.problems[name]) if name in run.problems else None for run in runs.values()
        ]

    def mean(name: str) -> float:
        return fmean(value for value in right(name) if value is not None)

    wrong = [name for name in names if mean(name) < 1]
    if not wrong:
        yield paragraph("Every answer of every run is right.")
        return
    worst = sorted(wrong, key=lambda name: (mean(name), name))[:WORST]
    rows = [[name, *right(name), _answers(runs, name)] for name in worst]
    yield table(("problem", *runs, "answers"), rows)


def _answers(runs: Mapping[str, Run], name: str) -> str:
    given: Sequence[str] = [
        sample.answer or sample.status
        for run in runs.values()
        for sample in run.problems.get(name, ())
    ]
    return ", ".join(dict.fromkeys(one[:40] for one in given))[:200]
