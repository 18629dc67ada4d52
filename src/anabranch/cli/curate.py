"""`anabranch curate …`: sequential traces become parallel samples, in resumable stages."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from anabranch.cli.common import console
from anabranch.cli.curate_check import check
from anabranch.errors import AnabranchError, EngineError, UsageError

if TYPE_CHECKING:
    from anabranch.annotation import Annotator
    from anabranch.curation.runner import Tally

app = typer.Typer(
    name="curate", help="Turn sequential traces into parallel samples.", no_args_is_help=True
)

app.command("check")(check)

#: Rows after which the whole run's cost is foretold.
ENOUGH = 5
Folder = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")]


@app.command("run")
def run(
    source: Annotated[Path, typer.Argument(help="Rows with id, problem and text: JSON Lines.")],
    output: Folder,
    stages: Annotated[
        str, typer.Option(help="Names in order, or `traces` for ThreadWeaver's first stage.")
    ] = "traces",
    config: Annotated[
        Path | None, typer.Option(help="TOML file with a table for each stage.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="stage.name=value, repeatable.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint.")] = None,
    model: Annotated[str, typer.Option(help="Name of the model there.")] = "",
    api_key: Annotated[str | None, typer.Option(envvar="ANABRANCH_API_KEY")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="File of answers; default answers.sqlite in the folder.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    rpm: Annotated[float | None, typer.Option(help="Requests a minute.")] = None,
    tpm: Annotated[float | None, typer.Option(help="Tokens a minute.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Most tokens of the run.")] = None,
    budget_money: Annotated[float | None, typer.Option(help="Most money of the run.")] = None,
    price: Annotated[
        str | None, typer.Option(help="PROMPT,SAMPLED: money for a million tokens.")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Answers to one question.")] = 3,
    shard: Annotated[str | None, typer.Option(help="i/n: every n-th row from the i-th.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes of stages without model.")
    ] = None,
    target: Annotated[int | None, typer.Option(min=1, help="Stop at so many kept rows.")] = None,
    force: Annotated[bool, typer.Option(help="Begin anew with other settings.")] = False,
) -> None:
    """Run stages over a file; the same command goes on where it was stopped."""
    from anabranch.config import load_settings
    from anabranch.curation.stages import FROM_TRACES, make_stages
    from anabranch.curation.store import Shard, Store

    names = list(FROM_TRACES) if stages == "traces" else [s.strip() for s in stages.split(",")]
    made = make_stages(names, load_settings(config, overrides or ()))
    asking = any(stage.asks for stage in made)
    if asking and (url is None or not model):
        who = ", ".join(stage.name for stage in made if stage.asks)
        raise UsageError(f"{who} ask a model: give --url and --model")
    part = Shard.parse(shard) if shard else None
    store = Store(output)
    extra = {"model": model if asking else None, "tries": tries, "target": target}
    store.open(source, made, shard=part, extra=extra, force=force)
    annotator = None
    if asking:
        assert url is not None
        annotator = _annotator(
            url, model, api_key, cache or output / "answers.sqlite", output.name,
            (budget_tokens, budget_money, price), (rpm, tpm), concurrency, tries,
        )  # fmt: skip
    tally = asyncio.run(_run(source, store, made, annotator, part, concurrency, jobs, target))
    _summary(tally, annotator, output)


def _annotator(
    url: str,
    model: str,
    key: str | None,
    cache: Path,
    run: str,
    budget: tuple[int | None, float | None, str | None],
    rates: tuple[float | None, float | None],
    concurrency: int,
    tries: int,
) -> Annotator:
    from anabranch.annotation import Annotator, AnswerCache, Budget, Pace, Patience, Prices
    from anabranch.engines.retry import Retries
    from anabranch.engines.transport import Transport

    tokens, money, price = budget
    try:
        prices = Prices(*(float(part) for part in price.split(","))) if price else None
    except (ValueError, TypeError):
        raise UsageError(f"--price {price!r}: write it like 0.5,1.5") from None
    if money is not None and prices is None:
        raise UsageError("--budget-money needs --price")
    return Annotator(
        Transport(url, api_key=key, retries=Retries(attempts=0)),
        model,
        AnswerCache(cache, run),
        budget=Budget(tokens, money, prices),
        pace=Pace(*rates),
        patience=Patience(tries=tries),
        concurrency=concurrency,
    )


async def _run(
    source: Path,
    store: Any,
    stages: Any,
    annotator: Annotator | None,
    shard: Any,
    concurrency: int,
    jobs: int | None,
    target: int | None,
) -> Tally:
    from anabranch.annotation import BudgetSpent
    from anabranch.curation.runner import Tally, run_stages

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    columns = (
        TextColumn("curating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    latest = Tally()
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task("rows", total=None, said="")

        def on_row(tally: Tally) -> None:
            nonlocal latest
            latest = tally
            said = f"kept {tally.of('kept')}"
            if annotator is not None:
                said += f" · {_spent(annotator)}{_foreseen(annotator, tally)}"
            shown.update(task, total=tally.total, completed=tally.done, said=said)

        try:
            return await run_stages(
                source, store, stages, annotator, shard=shard, concurrency=concurrency,
                jobs=jobs, target=target, stop=stop, on_row=on_row,
            )  # fmt: skip
        except (BudgetSpent, EngineError) as error:
            latest.stopped = str(error)
            return latest
        finally:
            if annotator is not None:
                await annotator.transport.close()
                annotator.cache.close()


def _spent(annotator: Annotator) -> str:
    budget = annotator.budget
    said = f"{budget.requests} answers, {budget.prompt + budget.sampled} tokens"
    return said + (f", {budget.cost:.2f} spent" if budget.cost else "")


def _foreseen(annotator: Annotator, tally: Tally) -> str:
    """What the whole run will take, from what its rows have taken so far."""
    budget, share = annotator.budget, tally.done / tally.total if tally.total else 0.0
    if tally.done < ENOUGH or not share:
        return ""
    said = f", about {(budget.prompt + budget.sampled) / share:.3g} tokens in all"
    return said + (f" ({budget.cost / share:.2f})" if budget.cost else "")


def _summary(tally: Tally, annotator: Annotator | None, output: Path) -> None:
    _table(tally)
    if annotator is not None:
        console.print(f"{_spent(annotator)}; {annotator.cached} answers were there already")
    if tally.stopped:
        console.print(f"{tally.stopped}; the same command goes on", markup=False)
        if tally.stopped != "stopped":
            raise AnabranchError(f"{output}: {tally.done} of {tally.total} rows are done")
        return
    console.print(f"{tally.of('kept')} of {tally.total} rows kept: {output / 'kept.jsonl'}")
    lost = tally.of("unreachable")
    if lost:
        raise AnabranchError(
            f"{lost} rows got no answer at all (listed by `anabranch curate status {output}`); "
            "the same command asks for them again"
        )


def _table(tally: Tally) -> None:
    table = Table("stage", "status", "reason", "rows", box=None, pad_edge=False)
    for (stage, status, reason), count in sorted(tally.ends.items()):
        table.add_row(stage, status, reason, str(count))
    table.add_row("", "", "in", str(tally.done))
    console.print(table)


@app.command("status")
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    show: Annotated[int, typer.Option(min=0, help="Rows without an answer that are listed.")] = 20,
) -> None:
    """How many rows left which stage how; the yield by difficulty; rows without an answer."""
    from anabranch.curation.rows import end_of
    from anabranch.curation.runner import Tally
    from anabranch.curation.store import Store, yield_by_difficulty

    store = Store(folder)
    if not store.rows.exists():
        raise UsageError(f"{folder}: holds no rows.jsonl")
    tally = Tally()
    lost = []
    for row in store.written():
        stage, ended, _ = end = end_of(row["status"])
        tally.add(end)
        if ended in ("failed", "unreachable"):
            lost.append((row["id"], row["status"][stage]))
    _table(tally)
    for bucket, kept, count in yield_by_difficulty(store.written()):
        console.print(f"difficulty {bucket}: {kept} of {count} kept ({kept / count:.1%})")
    for name, outcome in lost[:show]:
        said = f"{name}: {outcome['status']}, {outcome['reason']}: {outcome['detail']}"
        console.print(said, markup=False, soft_wrap=True)
    if len(lost) > show:
        console.print(f"… and {len(lost) - show} more")


@app.command("merge")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of all shards of a run.")],
    output: Folder,
) -> None:
    """Put shards together, as if it had been one run."""
    from anabranch.curation.store import Store, merge_shards

    kept = merge_shards(folders, Store(output))
    console.print(f"{kept} rows kept: {output / 'kept.jsonl'}")
