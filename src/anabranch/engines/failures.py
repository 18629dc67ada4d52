"""What a completions server's refusal means: HTTP statuses and error bodies to one-line errors.

Knows the wordings of vLLM, SGLang and llama.cpp for a prompt that does not fit the window. Pure
functions; when to try again is in :mod:`anabranch.engines.retry`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from anabranch.errors import ContextWindowError, EngineError

LONGEST_MESSAGE = 300

_WINDOW = (
    re.compile(r"(?:context (?:length|window|size)|model length)[^\d,}]{0,24}(\d+)", re.I),
    re.compile(r'"n_ctx"\s*:\s*(\d+)'),
)
_PROMPT = (
    re.compile(r"(\d+) (?:input tokens|tokens from the input|in the (?:messages|prompt))", re.I),
    re.compile(r"(?:decoder prompt|prompt|input)[^.;]{0,24}?\(?(?:length|has|contains)?\s*(\d+)"),
    re.compile(r'"n_prompt_tokens"\s*:\s*(\d+)'),
)
_OVERFLOW = re.compile(
    r"context (?:length|size|window)|maximum model length|exceed_context_size|max_model_len", re.I
)


class StatusError(EngineError):
    """A server answered with a status other than 200.

    Args:
        status: that status.

    Attributes:
        retry_after: seconds that it asked to wait, where it did.
    """

    def __init__(self, message: str, *, status: int, retryable: bool = False) -> None:
        super().__init__(message, retryable=retryable)
        self.status = status
        self.retry_after: float | None = None


class UnreachableError(EngineError):
    """A server cannot be reached, or the connection to it broke: the fault of no request."""


def error_message(body: str) -> str:
    """The server's own words from an error body, on one line and not too long."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        value = body
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if key in value), None)
        if value is None:
            value = body
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    if len(text) > LONGEST_MESSAGE:
        text = text[: LONGEST_MESSAGE - 1] + "…"
    return text or "no message"


def _number(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return int(match.group(1))
    return None


def window_error(body: str, where: str) -> ContextWindowError | None:
    """The error of a prompt and cap that exceed the window, None if the body is about others."""
    message = error_message(body)
    if not _OVERFLOW.search(body):
        return None
    return ContextWindowError(
        f"{where}: the prompt and the cap exceed the model's window: {message}",
        window=_number(_WINDOW, body),
        prompt_tokens=_number(_PROMPT, body),
    )


def status_error(
    status: int, body: str, where: str, retry_after: float | None = None
) -> EngineError:
    """The error for a response that is not 200; ``where`` is the URL asked."""
    if status in (400, 413, 422):
        overflow = window_error(body, where)
        if overflow is not None:
            return overflow
    hint = {
        401: " (is the API key right?)",
        403: " (is the API key right?)",
        404: " (is this the base URL of an OpenAI-compatible server, and the model's name right?)",
        405: " (is this the base URL of an OpenAI-compatible server?)",
    }.get(status, "")
    error = StatusError(f"{where} answered {status}: {error_message(body)}{hint}", status=status)
    error.retry_after = retry_after
    return error
