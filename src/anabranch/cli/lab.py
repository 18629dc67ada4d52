"""`anabranch lab …`: the generated problems, the bundled model's training and its results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.common import EngineOptions, console, open_engine
from anabranch.cli.lab_self_training import self_training
from anabranch.errors import UsageError
from anabranch.jsonl import atomic_writer, write_records

app = typer.Typer(no_args_is_help=True, help="Generated problems and the small bundled model.")


app.command("self-training")(self_training)


@app.command("problems")
def problems(
    family: Annotated[str, typer.Argument(help="chains or puzzle.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    count: Annotated[int, typer.Option(min=1)] = 100,
    size: Annotated[str, typer.Option(help="chains: K or K,OPERATORS; puzzle: OPERATORS.")] = "",
    form: Annotated[str, typer.Option(help="sequential, parallel or mixed.")] = "parallel",
    held_out: Annotated[bool, typer.Option("--held-out/--train")] = True,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Write problems with their reference solutions as text in one form."""
    from anabranch.lab.families import FAMILIES, draw_distinct
    from anabranch.lab.sizes import parse_size
    from anabranch.lab.structure import MARKERS

    if family not in FAMILIES:
        raise UsageError(f"unknown family {family!r}: use {' or '.join(FAMILIES)}")
    if form not in MARKERS:
        raise UsageError(f"unknown form {form!r}: use {', '.join(MARKERS)}")
    drawn = draw_distinct(seed, family, parse_size(family, size), count, evaluation=held_out)

    def rows() -> Iterator[dict[str, Any]]:
        for number, problem in enumerate(drawn):
            solution = problem.solve(form)
            yield {
                "id": f"{family}-{number}",
                "problem": problem.text,
                "answer": solution.answer,
                "text": solution.text(),
                "family": family,
                "form": form,
                "dialect": "parason:compact",
            }

    typer.echo(f"{write_records(output, rows())} problems written to {output}")


@app.command("train")
def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    scale: Annotated[
        float, typer.Option(help="Share of each stage's steps; 1 is the recipe.")
    ] = 1.0,
    resume: Annotated[bool, typer.Option(help="Go on where a run was stopped.")] = False,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    start: Annotated[
        Path | None, typer.Option(help="A lab model to go on with: its missing stages are run.")
    ] = None,
) -> None:
    """Train the lab model by its recipe: one scripted schedule."""
    from anabranch.lab.train import train_lab

    folder = train_lab(
        output,
        seed=seed,
        scale=scale,
        resume=resume,
        threads=threads,
        start=start,
        note=console.print,
    )
    console.print(f"the model is in {folder}")


@app.command("results")
def results(
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write (Markdown).")],
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each size.")] = 500,
    timed: Annotated[int, typer.Option(min=1, help="Problems whose wall clock is taken.")] = 30,
    local: Annotated[Path | None, typer.Option(help="Another lab checkpoint.")] = None,
    name: Annotated[str, typer.Option(help="What the page calls the model.")] = "the bundled one",
) -> None:
    """Measure a lab model on held-out problems; writes page, plot and JSON."""
    from anabranch.lab.page import draw, page
    from anabranch.lab.results import measure

    async def go() -> dict[str, Any]:
        async with open_engine(EngineOptions(local=local)) as opened:
            return await measure(opened.engine, problems=problems, timed=timed, note=console.print)

    result = asyncio.run(go())
    result["model"] = name
    plot = output.with_name(f"{output.stem}-limits.svg")
    draw(result, plot)
    with atomic_writer(output.with_suffix(".json")) as handle:
        json.dump(result, handle, indent=1)
        handle.write("\n")
    with atomic_writer(output) as handle:
        handle.write(page(result, plot=plot.name))
    console.print(f"written: {output}, {plot}, {output.with_suffix('.json')}")


@app.command("teacher")
def teacher(
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    faults: Annotated[float, typer.Option(min=0, max=1, help="Share that fails.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
) -> None:
    """Serve the annotator of lab traces that answers the prompts of `anabranch curate`."""
    from anabranch.lab.teacher import serve

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(port, faults, seed, lambda url: console.print(f"serving {url}")))


@app.command("traces")
def traces(
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON Lines file.")],
    count: Annotated[int, typer.Option(min=1, help="Rows.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 0,
) -> None:
    """Write sequential traces of lab problems, as `anabranch curate` reads them."""
    from anabranch.lab.teacher import KINDS, trace_rows

    write_records(output, trace_rows(seed, KINDS, count))
    console.print(f"{count} traces: {output}")


@app.command("reproduce")
def reproduce(
    claim: Annotated[str, typer.Argument(help="A paper, or a claim: control, half_trained, …")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the study.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every arm.")] = 3,
    arm: Annotated[list[str] | None, typer.Option(help="Only these arms, repeatable.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of each arm's own.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each size.")] = 100,
) -> None:
    """Run reinforcement-learning arms at lab scale; stopped studies go on arm by arm."""
    from anabranch.lab.reproduce import claims_of, run_claim
    from anabranch.lab.reproduce_page import write_page

    for one in claims_of(claim):
        results = run_claim(
            one,
            output,
            seeds=range(seeds),
            arms=arm or (),
            steps=steps,
            problems=problems,
            note=console.print,
        )
        console.print(f"written: {write_page(one, results, output)}")
