"""Runs the answers of one request and gives their text as it becomes certain.

The main line is given in the order in which it will be read: sampled text at once, a block's
branches when they are joined. What goes on inside branches is told in events, for those who asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from anabranch.decoding import (
    Answer,
    BlockOpened,
    BranchClosed,
    Event,
    Forced,
    Joined,
    LimitHit,
    Noted,
    Setup,
    Token,
    run,
)
from anabranch.engines.base import Engine
from anabranch.gateway.split import Delta, Splitter
from anabranch.records import Trajectory

_LENGTH = ("truncated", "context_exhausted")


@dataclass(slots=True)
class Choice:
    """One answer while it is made, and afterwards.

    ``stopped`` is whether a stop string of the client ended it.
    """

    index: int
    setup: Setup
    splitter: Splitter
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    trajectory: Trajectory | None = None
    stopped: bool = False

    @property
    def finish(self) -> str | None:
        """The API's ``finish_reason``; None where the engine failed."""
        if self.trajectory is None or self.trajectory.outcome == "failed":
            return None
        if self.stopped or self.trajectory.outcome == "answered":
            return "stop"
        return "length" if self.trajectory.outcome in _LENGTH else "stop"


@dataclass(frozen=True, slots=True)
class Item:
    """Something to send: new text, an event, a sign of life, or (none) the end of a choice."""

    choice: Choice
    delta: Delta | None = None
    event: dict[str, Any] | None = None
    pulse: bool = False


def choices_of(
    setups: Sequence[Setup], stops: tuple[str, ...], *, whole: bool = False
) -> list[Choice]:
    """The choices that the setups will become.

    Args:
        setups: one per choice.
        stops: the client's stop strings; they end the answer, never the reasoning.
        whole: the text is not to be split (the completions endpoint).
    """
    return [
        Choice(
            number,
            setup,
            Splitter(setup.dialect, setup.prompt, stops, plain=whole or _plain(setup)),
        )
        for number, setup in enumerate(setups)
    ]


def _plain(setup: Setup) -> bool:
    """Without tags around it, one line of text is an answer and not reasoning."""
    return setup.mode == "sequential" and setup.dialect.think is None


async def answer(
    choice: Choice, engine: Engine, *, events: bool = False, pulse: float | None = None
) -> AsyncGenerator[Item, None]:
    """Decode one choice; afterwards it has its trajectory.

    Args:
        choice: what to decode.
        engine: where tokens come from.
        events: give events too.
        pulse: seconds of silence after which a sign of life is given.

    Closing the iterator aborts every call in the engine, and the trajectory then holds what had
    been sampled by that time.
    """
    queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def hear(event: Event) -> None:
        if isinstance(event, Answer):
            choice.trajectory = event.trajectory
        queue.put_nowait(event)

    task = asyncio.ensure_future(run(choice.setup, engine, hear))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while not choice.stopped:
            try:
                async with asyncio.timeout(pulse if queue.empty() else None):
                    event = await queue.get()
            except TimeoutError:
                yield Item(choice, pulse=True)
                continue
            if event is None:
                break
            for item in _items(choice, event, events):
                yield item
        if not choice.stopped:
            await task  # raises what is a defect; failures of the engine are in the trajectory
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    yield Item(choice)


def _items(choice: Choice, event: Event, events: bool) -> Iterator[Item]:
    splitter = choice.splitter
    deltas = splitter.close() if isinstance(event, Answer) else splitter.feed(_line_text(event))
    for delta in deltas:
        (choice.content if delta.part == "content" else choice.reasoning).append(delta.text)
        yield Item(choice, delta)
    choice.stopped = splitter.stopped
    if events and (told := describe(event)) is not None:
        yield Item(choice, event=told)


def _line_text(event: Event) -> str:
    """What an event adds to the main line, in reading order."""
    match event:
        case Token(kind="main", text=text) | Forced(block=(), branch=None, text=text):
            return text
        case Token(kind="merge", block=(_,), text=text) | Joined(block=(_,), text=text):
            return text
    return ""


def describe(event: Event) -> dict[str, Any] | None:
    """An event as plain data for the stream; None for what the text itself says."""
    match event:
        case Token(kind="branch", block=block, branch=branch, text=text):
            return {"type": "token", "block": block, "branch": branch, "text": text}
        case BlockOpened(block=block, plan=plan):
            items = [{"number": n, "kind": kind, "title": title} for n, kind, title in plan]
            return {"type": "fork", "block": block, "branches": items}
        case BranchClosed(block=block, branch=branch, outcome=outcome, tokens=tokens):
            return {"type": "branch_closed", "block": block, "branch": branch,
                    "outcome": outcome, "tokens": tokens}  # fmt: skip
        case Joined(block=block):
            return {"type": "join", "block": block}
        case LimitHit(limit=limit, action=action):
            return {"type": "limit", "limit": limit, "action": action}
        case Noted(code=code, message=message):
            return {"type": "finding", "code": code, "message": message}
    return None


async def answer_all(
    choices: Sequence[Choice],
    engine: Engine,
    *,
    events: bool = False,
    pulse: float | None = None,
) -> AsyncGenerator[Item, None]:
    """Decode all choices at the same time, their items mixed as they come."""
    if len(choices) == 1:
        async with aclosing(answer(choices[0], engine, events=events, pulse=pulse)) as items:
            async for item in items:
                yield item
        return
    queue: asyncio.Queue[Item | None] = asyncio.Queue()

    async def pump(choice: Choice) -> None:
        async with aclosing(answer(choice, engine, events=events, pulse=pulse)) as items:
            async for item in items:
                queue.put_nowait(item)

    tasks = [asyncio.ensure_future(pump(choice)) for choice in choices]
    everything = asyncio.gather(*tasks)
    everything.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (one := await queue.get()) is not None:
            yield one
        await everything
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(everything, *tasks, return_exceptions=True)
