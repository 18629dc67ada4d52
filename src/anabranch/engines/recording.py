"""The file in which an engine's calls are recorded: its lines, and their way to and from JSON.

JSON Lines: one line about the engine, then one line for each call when it has ended, with its
chunks and their times. Numbers in order of happening (``steps``) run through the whole file, so
the order of events of different calls is kept exactly, whatever the clock says. Recording and
replaying are :mod:`anabranch.engines.replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from anabranch.engines.base import Call, Capabilities, Chunk
from anabranch.engines.failures import StatusError, UnreachableError
from anabranch.errors import (
    AnabranchError,
    ContextWindowError,
    EngineError,
    RecordError,
    UsageError,
)
from anabranch.jsonl import read_rows

FORMAT = 1

#: How a call ended: with its last chunk, with an error, or because the caller left.
Ending = Literal["done", "error", "left"]

_ERRORS: dict[str, type[AnabranchError]] = {
    kind.__name__: kind
    for kind in (EngineError, ContextWindowError, StatusError, UnreachableError, UsageError)
}
_DETAILS = ("retryable", "window", "prompt_tokens", "status")


@dataclass(slots=True)
class RecordedCall:
    """One call and what came of it.

    Attributes:
        begun: the step at which the call was made; ``at`` the second.
        chunks, steps, times: the chunks, and of each its step and its seconds since the call.
        ending: how it ended, at step ``ended``, ``seconds`` after the call.
        error: what was raised, as data.
    """

    call: Call
    begun: int
    at: float
    chunks: list[Chunk]
    steps: list[int]
    times: list[float]
    ending: Ending = "left"
    ended: int = -1
    seconds: float = 0.0
    error: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "call": asdict(self.call),
            "begun": self.begun,
            "at": self.at,
            "chunks": [_chunk_to_json(chunk) for chunk in self.chunks],
            "steps": self.steps,
            "times": self.times,
            "ending": self.ending,
            "ended": self.ended,
            "seconds": self.seconds,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RecordedCall:
        call = dict(row["call"], ids=tuple(row["call"]["ids"]), stop=tuple(row["call"]["stop"]))
        return cls(
            Call(**call),
            row["begun"],
            row["at"],
            [_chunk_from_json(chunk) for chunk in row["chunks"]],
            list(row["steps"]),
            list(row["times"]),
            row["ending"],
            row["ended"],
            row["seconds"],
            row["error"],
        )


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """What the recording says of the engine; ``tokenizer`` is where its tokenizer was read from."""

    name: str
    model: str
    capabilities: Capabilities
    tokenizer: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"anabranch_recording": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RecordedEngine:
        known = {field.name for field in fields(Capabilities)}
        found = {name: value for name, value in row["capabilities"].items() if name in known}
        found["notes"] = tuple(found.get("notes", ()))
        return cls(row["name"], row["model"], Capabilities(**found), row.get("tokenizer", ""))


def read_recording(path: Path | str) -> tuple[RecordedEngine, list[RecordedCall]]:
    """The engine and its calls, in the order in which they were made.

    Raises:
        RecordError: the file is not a recording, or one of another format.
    """
    engine, *calls = _lines(path)
    assert isinstance(engine, RecordedEngine)
    recorded = [call for call in calls if isinstance(call, RecordedCall)]
    return engine, sorted(recorded, key=lambda call: call.begun)


def read_header(path: Path | str) -> RecordedEngine:
    """What a recording says of its engine. Errors as in :func:`read_recording`."""
    engine = next(_lines(path))
    assert isinstance(engine, RecordedEngine)
    return engine


def _lines(path: Path | str) -> Iterator[RecordedEngine | RecordedCall]:
    """The engine, which is always there, then its calls."""
    headed = False
    for number, row in read_rows(path):
        try:
            if headed:
                yield RecordedCall.from_json(row)
            elif row.get("anabranch_recording") == FORMAT:
                headed = True
                yield RecordedEngine.from_json(row)
            else:
                raise RecordError(f"not a recording of format {FORMAT}", path=path, line=number)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"not a recorded call: {error!r}", path=path, line=number) from None
    if not headed:
        raise RecordError("the recording is empty", path=path)


def error_to_json(error: AnabranchError) -> dict[str, Any]:
    """An error as data; of a type that is not known, the nearest that is."""
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS)
    details = {name: getattr(error, name) for name in _DETAILS if hasattr(error, name)}
    return {"type": kind, "message": str(error), **details}


def error_from_json(data: Mapping[str, Any]) -> AnabranchError:
    """The error that :func:`error_to_json` was given, of the same type and message."""
    kind = _ERRORS.get(data["type"], EngineError)
    if kind is StatusError:
        return StatusError(data["message"], status=data["status"], retryable=data["retryable"])
    if kind is ContextWindowError:
        window, prompt_tokens = data.get("window"), data.get("prompt_tokens")
        return ContextWindowError(data["message"], window=window, prompt_tokens=prompt_tokens)
    error = kind(data["message"])
    if isinstance(error, EngineError):
        error.retryable = bool(data.get("retryable"))
    return error


def _chunk_to_json(chunk: Chunk) -> dict[str, Any]:
    """Only what differs from an empty chunk: most have ids, text and log-probs alone."""
    return {
        field.name: value
        for field in fields(Chunk)
        if (value := getattr(chunk, field.name)) != field.default
    }


def _chunk_from_json(data: Mapping[str, Any]) -> Chunk:
    values = dict(data)
    for name in ("ids", "logprobs"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return Chunk(**values)
