"""Errors that a user is meant to read: one clear sentence, no traceback.

Every failure caused by input, configuration or an outside service derives from
:class:`AnabranchError`; the command line prints its message on one line and exits with its
``exit_code``. Programming errors are not wrapped: they keep their traceback.
"""

from __future__ import annotations

from pathlib import Path


class AnabranchError(Exception):
    """Base of all errors whose message is the whole story for the reader."""

    exit_code = 1


class UsageError(AnabranchError):
    """The call itself is wrong: an unknown name, a missing option, an impossible combination."""

    exit_code = 2


class RecordError(AnabranchError):
    """A line of a JSON Lines file cannot be read as the record it should be.

    Args:
        message: what is wrong and what to do.
        path: the file, if there is one.
        line: the line's number, counted from 1.
        field: dotted name of the offending field.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path | str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.path, self.line, self.field, self.reason = path, line, field, message
        where = ":".join(str(part) for part in (path, line) if part is not None)
        parts = [where, f"field {field!r}" if field else "", message]
        super().__init__(": ".join(part for part in parts if part))


class DialectError(AnabranchError):
    """A dialect is unknown, or a text cannot be read or written in it."""


class TokenizerError(AnabranchError):
    """A tokenizer cannot represent what the dialect needs."""


class ModelError(AnabranchError):
    """A checkpoint cannot be loaded or used for what was asked."""


class EngineError(AnabranchError):
    """An engine failed.

    Args:
        message: what happened, naming the engine.
        retryable: whether sending the same request again is safe and may help.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ContextWindowError(EngineError):
    """The prompt and the token cap together exceed the model's window.

    Args:
        message: what the engine said.
        window: the engine's window in tokens, where it said so.
        prompt_tokens: the prompt's length as the engine counts it, where it said so.
    """

    def __init__(
        self, message: str, *, window: int | None = None, prompt_tokens: int | None = None
    ) -> None:
        super().__init__(message, retryable=False)
        self.window, self.prompt_tokens = window, prompt_tokens
