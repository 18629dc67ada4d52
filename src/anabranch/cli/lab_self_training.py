"""`anabranch lab self-training`: the experiment with its start model, arms and table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.common import console, needs_training


def self_training(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs.")],
    page: Annotated[
        Path | None, typer.Option(help="Page that gets the table, between its marks.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many arms.")] = 3,
) -> None:
    """Few supervised rows, then rounds of self-training; goes on where it was stopped."""
    needs_training()
    from anabranch.lab.self_training_results import experiment, table, write_into

    def note(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    result = experiment(output, seeds=range(seeds), note=note)
    print(table(result))
    if page is not None:
        write_into(page, result)
        note(f"written: {page}, {page.with_suffix('.json')}")
