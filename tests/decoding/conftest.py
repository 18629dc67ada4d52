"""A character tokenizer and a scripted model which behaves as a well-made engine does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from anabranch.decoding import Cancel, Event, Machine, Setup, Start, Wake
from anabranch.dialects import get_dialect
from anabranch.engines import Call, Chunk
from anabranch.errors import EngineError
from anabranch.records import Limits, Sampling, Trajectory

EOS = 0


class Characters:
    """One token a character; 0 ends the text and has none."""

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token != EOS)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def bos_id(self) -> int | None:
        return None


def answer(call: Call, text: str) -> list[Chunk]:
    """What an engine that honours stops and caps returns for a model that would write ``text``."""
    ends = [(text.find(stop) + len(stop), stop) for stop in call.stop if stop in text]
    end, stop = min(ends, default=(len(text), None))
    ids = [ord(char) for char in text[:end]] + ([] if stop else [EOS])
    kept = ids[: call.max_tokens]
    chunks = [Chunk((token,), chr(token) if token else "", (-0.5,)) for token in kept]
    if len(kept) < len(ids):
        return [*chunks, Chunk(finish="length")]
    return [*chunks, Chunk(finish="stop" if stop else "eos", stop=stop)]


@dataclass
class Play:
    """Runs a machine on scripted outputs, in turns: one chunk of each call per round."""

    setup: Setup
    main: list[str] = field(default_factory=list)
    branches: dict[int, list[str | EngineError]] = field(default_factory=dict)
    merges: list[str] = field(default_factory=list)
    answer: Callable[[Call, str], list[Chunk]] = answer
    starts: list[Start] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    pace: float = 0.0
    now: float = 0.0
    wakes: list[float] = field(default_factory=list)
    running: deque[tuple[Start, deque[Chunk | EngineError]]] = field(default_factory=deque)

    def run(self, expire_after: int | None = None) -> Trajectory:
        machine = Machine(self.setup)
        self.take(machine.start())
        rounds = 0
        while self.running:
            if self.wakes and min(self.wakes) <= self.now:
                self.wakes.remove(min(self.wakes))
                self.take(machine.wake(self.now))
                continue
            start, chunks = self.running.popleft()
            item = chunks.popleft()
            if chunks:
                self.running.append((start, chunks))
            if isinstance(item, EngineError):
                self.take(machine.fail(start.request, item, self.now))
            else:
                self.take(machine.feed(start.request, item, self.now))
            rounds += 1
            self.now += self.pace
            if rounds == expire_after:
                self.take(machine.expire(self.now))
        assert machine.done and machine.trajectory is not None
        assert not machine.budget.held and not machine.calls.live
        return machine.trajectory

    def take(self, outputs: list[object]) -> None:
        for output in outputs:
            if isinstance(output, Start):
                self.starts.append(output)
                self.running.append((output, deque(self.script(output))))
            elif isinstance(output, Wake):
                self.wakes.append(output.at)
            elif isinstance(output, Cancel):
                self.cancelled.append(output.request)
                kept = [item for item in self.running if item[0].request != output.request]
                self.running = deque(kept)
            else:
                assert isinstance(output, Event)
                self.events.append(output)

    def script(self, start: Start) -> list[Chunk | EngineError]:
        if start.kind == "branch":
            item = self.branches[start.branch or 0].pop(0)
        else:
            item = (self.main if start.kind == "main" else self.merges).pop(0)
        if isinstance(item, EngineError):
            return [Chunk((ord("?"),), "?", (-1.0,)), item]
        return list(self.answer(start.call, item))


def make_setup(dialect: str = "parason:compact", **changes: object) -> Setup:
    prompt = str(changes.pop("prompt", "Q"))
    limits = Limits(**changes.pop("limits", {}))  # type: ignore[arg-type]
    base = Setup(
        dialect=get_dialect(dialect),
        tokenizer=Characters(),
        prompt=prompt,
        prompt_ids=tuple(ord(char) for char in prompt),
        limits=limits,
        sampling=Sampling(seed=7),
        id="t",
    )
    return replace(base, **changes)


@pytest.fixture
def setup() -> Callable[..., Setup]:
    return make_setup


@pytest.fixture(scope="session")
def play() -> type[Play]:
    return Play


@pytest.fixture(scope="session")
def setup_factory() -> Callable[..., Setup]:
    """``setup`` for property tests, which may not use a fixture of function scope."""
    return make_setup
