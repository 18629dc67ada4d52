"""Drives the fork-join machine with a live engine: one task per call in flight, nothing else.

The library's face for decoding: :func:`decode` streams events, :func:`solve` waits for the answer,
:func:`decode_many` works through many problems at once. Prompts are rendered in
:mod:`anabranch.decoding.prompts`; what happens at forks and joins is the machine's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial

from anabranch.decoding.constrained import with_grammar
from anabranch.decoding.events import Answer, Cancel, Event, Output, Start, Wake
from anabranch.decoding.machine import Machine
from anabranch.decoding.setup import Setup
from anabranch.decoding.tools_machine import ToolsMachine
from anabranch.decoding.width import LoadGate
from anabranch.engines.base import Chunk, Engine
from anabranch.engines.chat import ChatEngine
from anabranch.errors import EngineError, UsageError
from anabranch.records import Trajectory

Listener = Callable[[Event], None]
#: Where the output of a call comes from.
Source = Callable[[Start], AsyncGenerator[Chunk, None]]


class _Driver:
    """One machine and its source of output. Tasks feed the machine: all is one thread's work."""

    def __init__(
        self,
        machine: Machine,
        source: Source,
        listener: Listener | None,
        gate: LoadGate | None = None,
    ) -> None:
        self.machine = machine
        self.gate = gate
        self.source = source
        self.listener = listener
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.timers: list[asyncio.TimerHandle] = []
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.done: asyncio.Future[Trajectory] = self.loop.create_future()

    @property
    def now(self) -> float:
        return self.loop.time() - self.began

    async def run(self) -> Trajectory:
        deadline = self.machine.setup.limits.deadline
        if deadline:
            self.timers.append(self.loop.call_later(deadline, self._expire))
        try:
            self._dispatch(self.machine.start(self.now))
            return await self.done
        except asyncio.CancelledError:
            self._dispatch(self.machine.abort(self.now))
            raise
        finally:
            for timer in self.timers:
                timer.cancel()
            await self._settle()

    def _wake(self) -> None:
        self._dispatch(self.machine.wake(self.now))

    def _expire(self) -> None:
        self._dispatch(self.machine.expire(self.now))

    async def _settle(self) -> None:
        """No call outlives its trajectory: whatever still runs is cancelled and awaited."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Start):
                task = self.loop.create_task(self._call(output))
                self.tasks[output.request] = task
                task.add_done_callback(partial(self._forget, output.request))
            elif isinstance(output, Cancel):
                task_or_none = self.tasks.get(output.request)
                if task_or_none is not None and task_or_none is not asyncio.current_task():
                    task_or_none.cancel()
            elif isinstance(output, Wake):
                self.timers.append(self.loop.call_later(output.at - self.now, self._wake))
            else:
                if self.listener is not None:
                    self.listener(output)
                if isinstance(output, Answer) and not self.done.done():
                    self.done.set_result(output.trajectory)

    def _forget(self, request: int, _: asyncio.Task[None]) -> None:
        self.tasks.pop(request, None)

    async def _call(self, start: Start) -> None:
        if self.gate is None or start.kind != "branch":
            await self._output(start)
            return
        if await self.gate.enter():
            self.machine.note("held_back", f"branch {start.branch} waited: the engine had no room")
        try:
            await self._output(start)
        finally:
            self.gate.leave()

    async def _output(self, start: Start) -> None:
        machine, request = self.machine, start.request
        try:
            async with aclosing(self.source(start)) as chunks:
                async for chunk in chunks:
                    self._dispatch(machine.feed(request, chunk, self.now))
                    if not machine.waits_for(request):
                        return
            # A stream that ends without a finish has broken off.
            name = machine.setup.engine or "the engine"
            raise EngineError(f"{name}: the stream broke off", retryable=True)
        except EngineError as error:
            self._dispatch(machine.fail(request, error, self.now))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A defect, not an engine's failure: let the caller see it with its traceback.
            if not self.done.done():
                self.done.set_exception(error)


async def run(
    setup: Setup,
    engine: Engine,
    listener: Listener | None = None,
    *,
    gate: LoadGate | None = None,
) -> Trajectory:
    """Decode one trajectory.

    Args:
        setup: the prompt and everything that decides the decoding.
        engine: where tokens come from.
        listener: called with every event, in order, from the event loop.
        gate: holds branches back while the engine has no room; None: they start at once.

    Returns:
        the finished record; engine failures are in its ``outcome`` and ``findings``.

    Raises:
        UsageError: the mode needs a grammar and the engine takes none.
    """
    machine, source = await _prepare(setup, engine)
    return await _Driver(machine, source, listener, gate).run()


async def drive(setup: Setup, source: Source, *, gate: LoadGate | None = None) -> Trajectory:
    """:func:`run` with output from anywhere: simulations, records."""
    return await _Driver(Machine(setup), source, None, gate).run()


async def _prepare(setup: Setup, engine: Engine) -> tuple[Machine, Source]:
    if setup.messages:
        if not isinstance(engine, ChatEngine):
            raise UsageError(
                f"mode {setup.mode} over a conversation needs a chat engine, and {engine.name} is "
                "none: use chat+http://HOST:PORT"
            )
        chat = engine
        talks = ToolsMachine(setup)
        return talks, lambda start: chat.chat(talks.chats[start.request])
    setup = await with_grammar(setup, engine)
    return Machine(setup), lambda start: engine.generate(start.call)


async def decode(setup: Setup, engine: Engine) -> AsyncIterator[Event]:
    """Decode one trajectory as a stream of events; the last one is :class:`Answer`.

    Closing the iterator early aborts all calls in the engine; ``contextlib.aclosing`` does so at
    once, a bare ``break`` when the event loop next collects it.
    """
    queue: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.get_running_loop().create_task(run(setup, engine, queue.put_nowait))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
            if isinstance(event, Answer):
                return
        await task  # it ended without an answer: raise its error
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def decode_many(
    setups: Iterable[Setup],
    engine: Engine,
    *,
    concurrency: int = 16,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Decode many trajectories, ``concurrency`` at a time; results in the order of the setups."""
    source = enumerate(setups)
    results: dict[int, Trajectory] = {}

    async def worker() -> None:
        for index, setup in source:
            results[index] = await run(setup, engine)
            if on_done is not None:
                on_done(results[index])

    tasks = [asyncio.ensure_future(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[index] for index in sorted(results)]


def solve(setup: Setup, engine: Engine, *, close: bool = True) -> Trajectory:
    """:func:`run` for callers without an event loop.

    Args:
        close: close the engine at the end, inside the same event loop: connections cannot be used
            or closed in another one. An engine over HTTP opens itself anew in the next call. False
            keeps an engine without connections, such as the in-process one, for the next call.
    """

    async def main() -> Trajectory:
        try:
            return await run(setup, engine)
        finally:
            if close:
                await engine.close()

    return asyncio.run(main())
