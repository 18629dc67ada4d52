"""Record what passes at an engine's edge, and replay it offline, byte for byte.

:class:`RecordingEngine` stands in front of any engine and writes every call with its chunks, their
times and their order; :class:`ReplayEngine` answers the same calls from the file, in the recorded
order, without the engine. For tests, bug reports and capacity studies. The file's lines are
:mod:`anabranch.engines.recording`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import fields
from pathlib import Path

from anabranch.dialects.grammar import Flavour
from anabranch.engines.base import Call, Capabilities, Chunk, Engine, Tokenizer, find_grammar
from anabranch.engines.recording import (
    RecordedCall,
    RecordedEngine,
    error_from_json,
    error_to_json,
    read_recording,
)
from anabranch.engines.replay_order import Order
from anabranch.errors import AnabranchError, EngineError, RecordError, UsageError
from anabranch.jsonl import dump_line

__all__ = ["RecordingEngine", "ReplayEngine"]

#: A call's content. The affinity key says where a call goes, not what it is.
_CONTENT = tuple(field.name for field in fields(Call) if field.name != "affinity")


class RecordingEngine:
    """Passes calls on to an engine and writes them down.

    A call is written when it ends, as one line that is on its way to the disk before the caller
    sees the end; what was running when the process died is not in the file.

    Args:
        engine: the engine; closing this one closes it too.
        path: the file.
        overwrite: replace a file that is there.

    Raises:
        RecordError: the file cannot be written, or is there already.
    """

    def __init__(self, engine: Engine, path: Path | str, *, overwrite: bool = False) -> None:
        self._engine = engine
        self.name, self.model = engine.name, engine.model
        self.tokenizer: Tokenizer = engine.tokenizer
        self._path = Path(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w" if overwrite else "x", encoding="utf-8", newline="\n")
        except FileExistsError:
            raise RecordError("is there already: record to another file", path=path) from None
        except OSError as error:
            raise RecordError(f"cannot be written: {error.strerror}", path=path) from error
        self._step = 0
        self._headed = False

    @property
    def capabilities(self) -> Capabilities:
        """The engine's own."""
        return self._engine.capabilities

    async def open(self) -> RecordingEngine:
        """Opens the engine, where it has to be opened."""
        opening = getattr(self._engine, "open", None)
        if opening is not None:
            await opening()
        self.model = self._engine.model
        self._head()
        return self

    async def close(self) -> None:
        """Closes the engine and the file."""
        try:
            await self._engine.close()
        finally:
            if not self._file.closed:
                self._head()
                self._file.close()

    async def __aenter__(self) -> RecordingEngine:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def find_grammar(self) -> Flavour | None:
        """The flavour of grammar that the recorded engine takes."""
        return await find_grammar(self._engine)

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams one call, and writes it down when it ends."""
        if self._file.closed:
            raise UsageError(f"the recording {self._path} is closed")
        loop = asyncio.get_running_loop()
        began = loop.time()
        record = RecordedCall(call, self._next(), began, [], [], [])
        try:
            async with aclosing(self._engine.generate(call)) as chunks:
                async for chunk in chunks:
                    record.chunks.append(chunk)
                    record.steps.append(self._next())
                    record.times.append(loop.time() - began)
                    if chunk.finish is not None:
                        record.ending = "done"
                        self._write(record, loop.time() - began)
                    yield chunk
        except AnabranchError as error:
            record.ending, record.error = "error", error_to_json(error)
            raise
        finally:
            self._write(record, loop.time() - began)

    def _next(self) -> int:
        self._step += 1
        return self._step

    def _write(self, record: RecordedCall, seconds: float) -> None:
        if record.ended >= 0 or self._file.closed:
            return
        record.ended, record.seconds = self._next(), seconds
        self._head()
        self._file.write(dump_line(record.to_json()) + "\n")
        self._file.flush()

    def _head(self) -> None:
        """The line about the engine: late, because it may open itself at its first call."""
        if not self._headed:
            self._headed = True
            self.model = self._engine.model
            place = str(getattr(self.tokenizer, "name", ""))
            about = RecordedEngine(self.name, self.model, self._engine.capabilities, place)
            self._file.write(dump_line(about.to_json()) + "\n")


class ReplayEngine:
    """Answers recorded calls from a file, which is kept in memory.

    A call is known by its content; the same call made twice gets its recordings in the order in
    which they were made. Events of different calls come in the recorded order, so that the same
    program comes to the same result, also where it cancelled one call because of another.

    Args:
        path: the file that :class:`RecordingEngine` wrote.
        tokenizer: of the recorded engine.
        timed: also keep the recorded times; else everything comes as fast as it is asked for.
        patience: seconds that an event waits for earlier ones which do not come, because the
            program that asks is not the one that was recorded.

    Raises:
        RecordError: the file is not a recording.
    """

    def __init__(
        self,
        path: Path | str,
        tokenizer: Tokenizer,
        *,
        timed: bool = False,
        patience: float = 5.0,
    ) -> None:
        about, calls = read_recording(path)
        self.name, self.model, self.capabilities = about.name, about.model, about.capabilities
        self.tokenizer: Tokenizer = tokenizer
        self._calls, self._timed, self._patience = calls, timed, patience
        self._left: dict[tuple[object, ...], deque[RecordedCall]] = defaultdict(deque)
        for recorded in calls:
            self._left[_content(recorded.call)].append(recorded)
        self._order = Order(_steps(one) for one in calls)

    @property
    def unused(self) -> int:
        """Recorded calls that were not asked for so far."""
        return sum(map(len, self._left.values()))

    async def check(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """Nothing is open."""

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams the recorded answer.

        Raises:
            EngineError: the call is not in the recording, or its recording ends because the
                caller left there; and what was raised when it was recorded.
        """
        recorded = self._take(call)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._order.done([recorded.begun])
            for step, chunk, time in zip(
                recorded.steps, recorded.chunks, recorded.times, strict=True
            ):
                await self._turn(step, began + time)
                self._order.done([step])
                yield chunk
            if recorded.ending == "done":
                return
            await self._turn(recorded.ended, began + recorded.seconds)
            if recorded.error is not None:
                raise error_from_json(recorded.error)
            await asyncio.sleep(self._patience)  # the caller leaves now, as it did before
            raise EngineError(f"{self.name}: the recording ends here, its caller left")
        finally:
            self._order.done(_steps(recorded))

    async def _turn(self, step: int, due: float) -> None:
        if self._timed:
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        await self._order.turn(step, self._patience)

    def _take(self, call: Call) -> RecordedCall:
        waiting = self._left.get(_content(call))
        if waiting:
            return waiting.popleft()
        raise EngineError(f"{self.name}: {self._unknown(call)}")

    def _unknown(self, call: Call) -> str:
        same = sum(_content(one.call) == _content(call) for one in self._calls)
        if same:
            return f"the call was recorded {same} times and is made once more"
        if not self._calls:
            return "the recording holds no call"
        number, nearest = min(
            enumerate(self._calls, 1), key=lambda pair: _distance(pair[1].call, call)
        )
        return f"the call is not in the recording; the nearest, number {number}, differs in " + (
            "; ".join(_differences(nearest.call, call))
        )


def _steps(recorded: RecordedCall) -> list[int]:
    return [recorded.begun, *recorded.steps, recorded.ended]


def _content(call: Call) -> tuple[object, ...]:
    return tuple(getattr(call, name) for name in _CONTENT)


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Length of the common beginning."""
    length = min(len(first), len(second))
    return next((place for place in range(length) if first[place] != second[place]), length)


def _distance(recorded: Call, call: Call) -> tuple[int, int]:
    others = sum(getattr(recorded, name) != getattr(call, name) for name in _CONTENT)
    return others, -_common(recorded.ids, call.ids)


def _differences(recorded: Call, call: Call) -> Iterable[str]:
    for name in _CONTENT:
        then, now = getattr(recorded, name), getattr(call, name)
        if then == now:
            continue
        if name == "ids":
            same = _common(then, now)
            yield (
                f"the prompt from token {same} on ({len(then)} tokens were recorded, "
                f"{len(now)} are asked)"
            )
        else:
            yield f"{name} ({then!r} was recorded, {now!r} is asked)"
