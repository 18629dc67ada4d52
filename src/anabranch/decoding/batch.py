"""Decodes many problems into a file that can be stopped anywhere and resumed to the same records.

Each finished trajectory is one line, written at once. A resumed run reads which are there, cuts off
a line that was not written whole, and decodes the rest: every trajectory has its own seeds, so it
does not matter in which run or order it was made. Only what is being decoded is held in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.decoding.decoder import run
from anabranch.decoding.setup import Setup
from anabranch.decoding.width import LoadGate
from anabranch.engines.base import Engine
from anabranch.errors import RecordError, UsageError
from anabranch.jsonl import atomic_writer, cut_torn_tail, dump_line, read_rows, write_records
from anabranch.records import Problem, Trajectory

#: From a problem, the number of the sample and the trajectory's id to how it is decoded.
Make = Callable[[Problem, int, str], Setup]


@dataclass
class Tally:
    """How a file of trajectories stands: all of them, those found there, outcomes of the new."""

    total: int | None = None
    found: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    @property
    def done(self) -> int:
        return self.found + sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        """New trajectories that the engine failed on."""
        return self.outcomes["failed"]


def sample_id(problem: Problem, sample: int) -> str:
    """The id of one sample of one problem."""
    return f"{problem.id}#{sample}"


async def decode_stream(
    setups: Iterable[Setup],
    engine: Engine,
    *,
    concurrency: int = 16,
    gate: Callable[[], LoadGate] | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Trajectories as they are finished, at most ``concurrency`` begun and not yet taken.

    ``gate`` makes what holds back the branches of one trajectory; None: nothing does.

    Closing the iterator early aborts everything that runs.
    """
    if concurrency < 1:
        raise UsageError(f"concurrency {concurrency}: use 1 or more")
    source = iter(setups)
    running: set[asyncio.Task[Trajectory]] = set()
    try:
        while True:
            while len(running) < concurrency and (setup := next(source, None)) is not None:
                own = gate() if gate is not None else None
                running.add(asyncio.ensure_future(run(setup, engine, gate=own)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def decode_file(
    problems: Iterable[Problem],
    make: Make,
    engine: Engine,
    output: Path,
    *,
    samples: int = 1,
    concurrency: int = 16,
    config: dict[str, Any] | None = None,
    force: bool = False,
    total: int | None = None,
    on_done: Callable[[Tally, Trajectory], None] | None = None,
    stop: asyncio.Event | None = None,
    gate: Callable[[], LoadGate] | None = None,
) -> Tally:
    """Decode what a file does not hold yet.

    Args:
        problems: their ids tell them apart; taken one at a time.
        make: how each sample is decoded.
        engine: where tokens come from.
        output: JSON Lines of trajectories, in the order in which they finish.
        samples: per problem.
        concurrency: trajectories at once.
        config: what makes records comparable; kept beside the output, and compared on a resume.
        force: resume although the configuration has changed.
        total: problems times samples, where known.
        on_done: told of each new trajectory.
        stop: when set, nothing new is begun and what runs is dropped.
        gate: as of :func:`decode_stream`.

    Raises:
        RecordError: the output is damaged elsewhere than at its end, or holds an id twice.
        UsageError: it was made with another configuration.
    """
    _check_config(output, config or {}, force)
    cut_torn_tail(output)
    have = _ids(output)
    tally = Tally(total, len(have))

    def setups() -> Iterator[Setup]:
        for problem in problems:
            for sample in range(samples):
                name = sample_id(problem, sample)
                if name not in have:
                    yield make(problem, sample, name)

    stream = decode_stream(setups(), engine, concurrency=concurrency, gate=gate)
    with output.open("a", encoding="ascii", newline="\n") as handle:
        async with aclosing(stream):
            async for trajectory in _until(stream, stop):
                handle.write(dump_line(trajectory) + "\n")
                handle.flush()
                tally.outcomes[trajectory.outcome] += 1
                if on_done is not None:
                    on_done(tally, trajectory)
    tally.stopped = stop is not None and stop.is_set()
    return tally


async def _until(
    stream: AsyncGenerator[Trajectory, None], stop: asyncio.Event | None
) -> AsyncGenerator[Trajectory, None]:
    """The stream's items until the event is set, even while the next one is awaited."""
    if stop is None:
        async for item in stream:
            yield item
        return
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while True:
            upcoming = asyncio.ensure_future(anext(stream))
            await asyncio.wait({upcoming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
                return
            try:
                item = upcoming.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        stopping.cancel()


def _ids(output: Path) -> set[str]:
    """What need not be decoded again; answers that the engine failed on are taken out of the file.

    The failure was the engine's and not the answer's, so a resumed run asks once more.
    """
    found: set[str] = set()
    failed: set[str] = set()
    if not output.exists():
        return found
    for number, row in read_rows(output):
        name = row.get("id")
        if not isinstance(name, str):
            raise RecordError("no trajectory: it has no id", path=output, line=number, field="id")
        if name in found:
            raise RecordError(f"{name!r} is there twice", path=output, line=number, field="id")
        found.add(name)
        if row.get("outcome") == "failed":
            failed.add(name)
    if failed:
        kept = (row for _, row in read_rows(output) if row["id"] not in failed)
        write_records(output, kept)
    return found - failed


def config_file(output: Path) -> Path:
    """Where the configuration of an output is kept."""
    return output.with_name(output.name + ".config.json")


def _check_config(output: Path, config: dict[str, Any], force: bool) -> None:
    path = config_file(output)
    plain = json.loads(json.dumps(config))
    if output.exists() and path.exists() and not force:
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(k for k in {*before, *plain} if before.get(k) != plain.get(k))
        if changed:
            raise UsageError(
                f"{output}: was begun with other settings ({', '.join(changed)}): use --force to "
                "mix them, or another output"
            )
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as handle:
        json.dump(plain, handle, indent=1)
        handle.write("\n")
