"""Runs stages over a file of rows: in order, resumable at any byte, in bounded memory.

Every row of the input, whatever became of it, is one line of ``rows.jsonl``, in the order of the
input. A resumed run goes on behind the last whole line; answers of models that were paid for are
in the cache. Stages that ask nothing run in processes, so they use all cores. The rows that passed
are written to ``kept.jsonl`` at the end, as training reads them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

from anabranch.curation.rows import End, Outcome, Row, end_of
from anabranch.curation.stage import Stage
from anabranch.curation.store import Scan, Shard, Store, input_rows
from anabranch.curation.treating import Asked, treat, treat_lines
from anabranch.errors import RecordError
from anabranch.jsonl import dump_line

#: Lines to write, with how their rows ended.
Lines = AsyncGenerator[tuple[str, End], None]
#: Rows that one worker process is given at a time.
CHUNK = 64


@dataclass
class Tally:
    """How a run stands.

    Attributes:
        total: rows of the input (of the shard).
        done: rows that are written.
        ends: how many rows left the last stage that they reached how: by stage, status, reason.
        stopped: why the run ended early, "" where it did not.
    """

    total: int = 0
    done: int = 0
    ends: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    stopped: str = ""

    def add(self, end: End) -> None:
        """Count a written row."""
        self.done += 1
        self.ends[end] += 1

    def of(self, status: str) -> int:
        """How many rows have a status."""
        return sum(count for (_, one, _), count in self.ends.items() if one == status)


async def run_stages(
    source: Path,
    store: Store,
    stages: Sequence[Stage],
    annotator: Asked | None = None,
    *,
    shard: Shard | None = None,
    concurrency: int = 16,
    jobs: int | None = None,
    target: int | None = None,
    stop: asyncio.Event | None = None,
    on_row: Callable[[Tally], None] | None = None,
) -> Tally:
    """Treat the rows that are not treated yet, and write ``kept.jsonl`` when all are.

    Args:
        source: rows as JSON Lines.
        store: the folder of the run, opened for these stages.
        stages: in order.
        annotator: who is asked; needed where a stage asks.
        shard: the part of the rows that is treated.
        concurrency: rows at once, where a stage asks.
        jobs: processes, where none does; default one per core.
        target: kept rows after which the run is finished, whatever is left of the input.
        stop: when set, nothing new is begun.
        on_row: told after each written row.

    Raises:
        RecordError: input or output is damaged, or an id is there twice.
        BudgetSpent, EngineError: the run stopped; everything before is written.
    """
    scan = store.scan(source, shard)
    tally = Tally(total=scan.total)
    for row in store.written():
        tally.add(end_of(row["status"]))
    rows = _marked(islice(input_rows(source, shard), tally.done, None), scan)
    if any(stage.asks for stage in stages):
        before = store.previous(tally.done)
        lines = _asking(rows, before, stages, annotator, concurrency, stop)
    else:
        lines = _computing(rows, stages, jobs or os.cpu_count() or 1, stop)
    enough = target is not None and tally.of("kept") >= target
    with store.append() as handle:
        async with aclosing(lines) as stream:
            while not enough and (item := await anext(stream, None)) is not None:
                _write(handle, item[0], store)
                tally.add(item[1])
                enough = target is not None and tally.of("kept") >= target
                if on_row is not None:
                    on_row(tally)
    if enough or tally.done == tally.total:
        store.finish()
    elif stop is not None and stop.is_set():
        tally.stopped = "stopped"
    return tally


def _marked(rows: Iterator[dict[str, Any]], scan: Scan) -> Iterator[dict[str, Any]]:
    """Rows whose problem and trace were there before are dropped without any work."""
    for row in rows:
        if row["id"] in scan.repeated:
            dropped = Outcome(status="dropped", reason="repeated", detail="same problem and trace")
            row = {**row, "status": {**row.get("status", {}), "input": dropped.to_json()}}
        yield row


def _write(handle: IO[str], line: str, store: Store) -> None:
    try:
        handle.write(line + "\n")
        handle.flush()
    except OSError as error:
        raise RecordError(f"cannot be written: {error.strerror}", path=store.rows) from error


async def _asking(
    rows: Iterator[dict[str, Any]],
    before: Iterator[dict[str, Any] | None],
    stages: Sequence[Stage],
    annotator: Asked | None,
    concurrency: int,
    stop: asyncio.Event | None,
) -> Lines:
    """Rows in order. Some more than ``concurrency`` are begun, so that a slow one holds up few."""
    window: deque[asyncio.Future[Row]] = deque()
    slots = asyncio.Semaphore(concurrency)

    async def one(data: dict[str, Any]) -> Row:
        async with slots:
            return await treat(Row.model_validate(data), stages, annotator)

    def begin() -> bool:
        if stop is not None and stop.is_set():
            return False
        data = next(rows, None)
        if data is None:
            return False
        old = next(before, None)
        if old is not None:
            ready: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
            ready.set_result(Row.model_validate(old))
            window.append(ready)
        else:
            window.append(asyncio.ensure_future(one(data)))
        return True

    try:
        while True:
            while len(window) < 4 * concurrency and begin():
                pass
            if not window:
                return
            row = await window[0]
            window.popleft()
            yield dump_line(row), row.end
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


async def _computing(
    rows: Iterator[dict[str, Any]],
    stages: Sequence[Stage],
    jobs: int,
    stop: asyncio.Event | None,
) -> Lines:
    """Rows in order, from worker processes that are given some at a time."""
    window: deque[Future[list[tuple[str, End]]]] = deque()
    # Fresh processes: a fork would copy whatever threads the caller has.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            while True:
                while len(window) < 4 * jobs and not (stop is not None and stop.is_set()):
                    chunk = list(islice(rows, CHUNK))
                    if not chunk:
                        break
                    window.append(pool.submit(treat_lines, chunk, stages))
                if not window:
                    return
                for line in await asyncio.wrap_future(window.popleft()):
                    yield line
        finally:
            pool.shutdown(cancel_futures=True)
