"""What a loopback server is told, and what it tells: replies, manners, faults, served requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request generates.

    Attributes:
        text: encoded to the sampled ids; an end token follows.
        steps: instead of ``text``: the ids of each event; nothing is added.
        raw: instead of both: bodies of events, sent as they are (a dict becomes JSON).
        logprob: of every token.
    """

    text: str = ""
    steps: tuple[tuple[int, ...], ...] | None = None
    raw: tuple[dict[str, Any] | str, ...] | None = None
    logprob: float = -0.5


@dataclass(frozen=True, slots=True)
class Manners:
    """How much of the protocol the server knows; by default what vLLM knows.

    Attributes:
        ids_out: returns token ids when asked.
        logprobs: returns log-probs when asked.
        stops: obeys stop strings at all; if not, it runs on to its end.
        include_stop: obeys ``include_stop_str_in_output``; else the stop is cut off the text.
        names_stop: says which stop string matched.
        stop_ids: obeys ``stop_token_ids``.
        tokenise: answers `/tokenize`.
        usage: sends token counts at the end; ``running_usage`` in every event too, when asked.
        cap: obeys ``max_tokens``.
        honest: says "length" when the cap ended the output; else "stop".
        window: of the model, told and kept to; ``told_window`` where it tells another.
        tokens_per_event: sampled tokens in one event.
        pace: seconds of one step; each event takes one, all requests step together.
        line_end: of the event stream.
        comments: sends a comment before each event.
    """

    ids_out: bool = True
    logprobs: bool = True
    stops: bool = True
    include_stop: bool = True
    names_stop: bool = True
    stop_ids: bool = True
    tokenise: bool = True
    usage: bool = True
    running_usage: bool = True
    cap: bool = True
    honest: bool = True
    window: int | None = 32_768
    told_window: int | None = None
    tokens_per_event: int = 1
    pace: float = 0.0
    line_end: str = "\n"
    comments: bool = False


FaultKind = Literal[
    "status",  # answers with ``status``, ``headers`` and ``body``
    "reset",  # resets the connection
    "stall",  # falls silent until the client leaves
    "end",  # ends the body properly, but too early
    "torn",  # ends the body in the middle of an event
    "double",  # sends an event twice
    "joined",  # sends all events from there in one write
    "merged",  # sends two events as one with two data lines
    "garbage",  # sends an event that is not JSON
    "error",  # sends an error event, then ends
    "type",  # answers 200 with a page
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure, behind ``after`` events of output."""

    kind: FaultKind
    after: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = '{"error": {"message": "busy", "code": 503}}'


@dataclass(slots=True)
class Served:
    """A request and what became of it.

    Attributes:
        body: the JSON sent by the client.
        prompt: the prompt's ids.
        text: the prompt as text.
        headers: of the request.
        events: events of output written.
        outcome: "running", "done", "failed" (by a fault), or "left" (the client closed).
        seconds: how long it ran.
    """

    body: dict[str, Any]
    prompt: tuple[int, ...]
    text: str
    headers: dict[str, str]
    events: int = 0
    outcome: str = "running"
    seconds: float = 0.0


Script = Callable[[Served], "Reply | str"]
