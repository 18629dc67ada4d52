"""`anabranch report` and `anabranch compare`: what graded runs show, and whether one got worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from anabranch.errors import AnabranchError, UsageError
from anabranch.evaluation.measures import (
    Run,
    accuracy,
    average,
    detectable,
    samples_of,
    warnings,
)
from anabranch.evaluation.measures import compare as compare_runs
from anabranch.evaluation.reports import markdown, plain, plot
from anabranch.jsonl import atomic_writer, read_records
from anabranch.records import Trajectory

Seed = Annotated[int, typer.Option(help="Of the bootstrap.")]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Graded trajectories, one file a run.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown; the plot lies beside it.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="A page with pictures; trajectories lie beside it.")
    ] = None,
    suite: Annotated[str, typer.Option(help="Put its published results beside.")] = "",
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Accuracy, pass@k, maj@k, latency and format of runs, with 95 % intervals."""
    named = {_name(path, runs): _run(path) for path in runs}
    if html is not None:
        from anabranch.evaluation.page import write_page

        files = {_name(path, runs): path for path in runs}
        write_page(named, html, ", ".join(named), suite=suite, files=files, seed=seed)
        typer.echo(f"written: {html}", err=True)
    if as_json:
        typer.echo(json.dumps(plain(named, seed), indent=1))
        return
    for warning in warnings(named):
        typer.echo(f"anabranch: {warning}", err=True)
    text = markdown(named, seed)
    if output is None:
        typer.echo(text)
        return
    picture = output.with_suffix(".svg")
    drawn = plot(named, picture, seed)
    with atomic_writer(output) as handle:
        handle.write("# " + ", ".join(named) + "\n\n" + text)
        if drawn:
            handle.write(f"\n![accuracy under limits, and paths]({picture.name})\n")
    typer.echo(f"{output}" + (f", {picture}" if drawn else " (no plot: matplotlib is missing)"))


def compare(
    before: Annotated[Path, typer.Argument(help="Graded trajectories.")],
    after: Annotated[Path, typer.Argument(help="Graded trajectories of the same problems.")],
    max_drop: Annotated[
        float, typer.Option(min=0, help="Fail when accuracy fell by more than this.")
    ] = 0.02,
    max_slower: Annotated[
        float, typer.Option(min=0, help="Fail when the mean critical path grew by this share.")
    ] = 0.1,
    seed: Seed = 0,
) -> None:
    """Compare two runs problem by problem; exit code 1 when the second is worse."""
    one, other = _run(before), _run(after)
    right = compare_runs(one, other, "accuracy", accuracy, seed)
    path = compare_runs(one, other, "critical path", average("path"), seed)
    for found in (right, path):
        typer.echo(
            f"{found.measure}: {found.first:.4g} → {found.second:.4g}, difference "
            f"{found.difference.shown()}, p {found.p:.3f}"
        )
    typer.echo(f"unpaired runs like these would show a difference of {detectable(one):.3f}")
    worse = []
    if right.difference.value < -max_drop:
        worse.append(f"accuracy fell by {-right.difference.value:.4g} (allowed: {max_drop:g})")
    if path.second > path.first * (1 + max_slower):
        grown = path.second / path.first - 1
        worse.append(f"the critical path grew by {grown:.1%} (allowed: {max_slower:.1%})")
    if worse:
        raise AnabranchError("; ".join(worse))


def _run(path: Path) -> Run:
    return Run(samples_of(read_records(path, Trajectory), str(path)))


def _name(path: Path, runs: list[Path]) -> str:
    same = [other for other in runs if other.stem == path.stem]
    if len({other.resolve() for other in same}) < len(same):
        raise UsageError(f"{path}: is named twice")
    return path.stem.removesuffix(".graded") if len(same) == 1 else str(path)
