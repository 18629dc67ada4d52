"""What a completions server can do, found by asking it: its models, and two requests of 4 tokens.

The first request shows whether token ids and log-probs come back (asked again where they come only
together) and whether the local tokenizer is the server's; the second repeats it with a stop string
taken from the first answer, which shows what the server does with stop strings and whether it
reports a prefix cache. More is asked, on demand, in :mod:`anabranch.engines.abilities`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anabranch.engines.base import Capabilities, Tokenizer
from anabranch.engines.failures import StatusError
from anabranch.engines.reader import NO_IDS, ids_in_scores, scores_in
from anabranch.engines.sse import SseReader, json_objects
from anabranch.engines.transport import Transport
from anabranch.errors import EngineError, UsageError

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"

#: What to do where a server gives no token ids: refuse it, or encode its text.
Ids = Literal["require", "retokenize"]

_PROBE_TEXT = "1 + 2 = 3\n" * 40
#: Longer than the 128-token cache blocks of vLLM on CPU, so that a repetition can hit one.
_PROBE_TOKENS = 192
PROBE_OUTPUT = 4


#: Fields of every request. Sampling fields that a server may take from the model's own
#: `generation_config.json`, or from its own defaults, are always set.
REQUEST: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
}


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a server after opening.

    Attributes:
        model: the model's name at the server.
        server_stops: whether stop strings are left to the server. They are not where its answer
            would not tell a stop string from the model's own end.
        logprobs: value of the request field that brings log-probs, None if there is none.
        always_score: ids come only together with log-probs: they are always asked for.
    """

    model: str
    capabilities: Capabilities
    server_stops: bool
    logprobs: int | None
    always_score: bool = False


@dataclass(slots=True)
class Probe:
    """The answer to one request of the discovery, collected."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    scores: int = 0
    finish: str | None = None
    stop_reason: Any = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def find_model(transport: Transport, wanted: str | None) -> tuple[str, int | None]:
    """The model's name and its window in tokens, where the server says so.

    Raises:
        EngineError: the server is unreachable, or does not serve the model.
        UsageError: it serves several and none was named.
    """
    try:
        answer = await transport.get_json(MODELS)
    except StatusError as error:
        if wanted is not None and error.status in (404, 405, 501):
            return wanted, None
        raise
    entries = answer.get("data") if isinstance(answer, dict) else None
    models = {
        str(entry["id"]): entry
        for entry in entries or []
        if isinstance(entry, dict) and "id" in entry
    }
    if wanted is None:
        if len(models) != 1:
            names = ", ".join(models) or "none"
            raise UsageError(f"{transport.url} serves several models or none ({names}): name one")
        wanted = next(iter(models))
    elif models and wanted not in models:
        raise EngineError(f"{transport.url} does not serve {wanted!r}, only {', '.join(models)}")
    entry = models.get(wanted, {})
    window = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return wanted, window if isinstance(window, int) else None


async def discover(
    transport: Transport,
    wanted: str | None,
    tokenizer: Tokenizer,
    ids: Ids,
    extra: Mapping[str, Any],
) -> Found:
    """Asks the server for its models and makes the two requests.

    Args:
        wanted: the model's name, None for the only one.
        extra: fields to add to each request.

    Raises:
        EngineError: it gives no ids although ``ids`` is "require", or its tokenizer is another.
        UsageError: no model was named where several are served.
    """
    model, window = await find_model(transport, wanted)
    prompt = probe_prompt(tokenizer, window)
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": PROBE_OUTPUT,
        "temperature": 0.0,
        "logprobs": 0,
        "ignore_eos": True,
    }
    first = await ask(transport, encode_body(body, extra))
    where = transport.url + COMPLETIONS
    always_score = False
    if not first.ids and not first.scores:
        # llama.cpp takes 0 for "none", and its ids come among the log-probs.
        first = await ask(transport, encode_body({**body, "logprobs": 1}, extra))
        body["logprobs"] = 1
        always_score = bool(first.ids)
    ids_out = bool(first.ids)
    if not ids_out and ids == "require":
        raise EngineError(NO_IDS.format(where=where))
    notes = _check_prompt(first, len(prompt), where, ids)
    if ids_out:
        check_tokenizer(first, tokenizer, where)
    stop = stop_for(first)
    second = await ask(transport, encode_body(body | ({"stop": [stop]} if stop else {}), extra))
    include, told = False, ids_out
    if stop is None:
        notes.append("what it does with stop strings could not be seen")
    else:
        include, told = _stops(first, second, stop, tokenizer)
        if not told:
            notes.append(
                "stop strings are applied here: its answer does not show where one matched"
            )
    if not ids_out:
        notes.append("no token ids: its text is encoded with the local tokenizer")
    if always_score:
        notes.append("token ids come only with log-probs, which are asked for in every request")
    capabilities = Capabilities(
        ids_out=ids_out,
        logprobs=ids_out and bool(second.scores),
        include_stop=include,
        prefix_cache=second.cached > 0,
        window=window,
        notes=tuple(notes),
    )
    score = body["logprobs"] if second.scores else None
    return Found(model, capabilities, told, score, always_score)


def encode_body(body: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """A request as JSON, with the fields of every request; ``extra`` wins, None takes away."""
    whole = {**REQUEST, **body, **extra}
    return json.dumps({key: value for key, value in whole.items() if value is not None}).encode()


def probe_prompt(tokenizer: Tokenizer, window: int | None) -> list[int]:
    """A prompt that any model goes on from, not longer than the window allows."""
    room = _PROBE_TOKENS if window is None else min(_PROBE_TOKENS, window - PROBE_OUTPUT)
    ids = tokenizer.encode(_PROBE_TEXT)
    if tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    return ids[: max(1, room)]


async def ask(transport: Transport, body: bytes) -> Probe:
    """One streamed completion, collected.

    Raises:
        EngineError: as for :meth:`Transport.begin`, or the stream is broken.
    """
    stream = await transport.begin(COMPLETIONS, body)
    reader, probe = SseReader(), Probe()
    data = stream.first
    try:
        while data:
            for event in reader.feed(data):
                _collect(probe, event, stream.where)
            data = await stream.read()
    except ValueError as error:
        raise EngineError(f"{stream.where} sent a broken stream: {error}", retryable=True) from None
    finally:
        stream.abort()
    return probe


def _collect(probe: Probe, event: str, where: str) -> None:
    if event == "[DONE]":
        return
    for value in json_objects(event):
        if not isinstance(value, dict) or value.get("error"):
            raise EngineError(f"{where} broke off the stream: {str(value)[:200]}", retryable=True)
        probe.usage = value.get("usage") or probe.usage
        for choice in value.get("choices") or ():
            probe.text += choice.get("text") or ""
            logprobs = choice.get("logprobs") or {}
            probe.ids += choice.get("token_ids") or ids_in_scores(logprobs) or ()
            probe.scores += len(scores_in(logprobs) or ())
            probe.finish = choice.get("finish_reason") or probe.finish
            probe.stop_reason = choice.get("stop_reason") or probe.stop_reason


def _check_prompt(probe: Probe, sent: int, where: str, ids: Ids) -> list[str]:
    counted = probe.usage.get("prompt_tokens")
    if counted in (None, 0, sent):
        return []
    problem = f"counts {counted} prompt tokens where {sent} were sent: it changes the prompt"
    if ids == "require":
        raise EngineError(f"{where} {problem}")
    return [problem]


def check_tokenizer(probe: Probe, tokenizer: Tokenizer, where: str) -> None:
    """The server's own text must be the local text of its ids, as far as it is settled."""
    ours, theirs = tokenizer.decode(probe.ids).strip(), probe.text.strip().rstrip("\ufffd")
    if not ours.startswith(theirs):
        raise EngineError(
            f"{where} has another tokenizer: it reads its tokens {probe.ids} as {theirs!r}, "
            f"the local tokenizer as {ours!r}; name the tokenizer of the served model"
        )


def stop_for(probe: Probe) -> str | None:
    """A stop string that the repeated answer must meet: its first visible character."""
    visible = probe.text.replace("\ufffd", "").split()
    return visible[0][0] if visible else None


def _stops(plain: Probe, stopped: Probe, stop: str, tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether the text holds the stop string, and whether the answer shows that it matched."""
    _, found, behind = stopped.text.partition(stop)
    if found and behind:
        return False, False  # it ran on
    seen = tokenizer.decode(stopped.ids) if plain.ids else stopped.text
    return bool(found), stop in seen or stopped.stop_reason == stop
