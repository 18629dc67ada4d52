"""What a model is asked for: messages, the form of the answer, and how it is read.

An :class:`Ask` is data and a pure function, so that whoever makes it can be tested without a
server. Sending it, retries and costs are in :mod:`anabranch.annotation.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from anabranch.errors import AnabranchError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class AnswerError(AnabranchError):
    """An answer cannot be used. The message is shown to the model when it is asked again."""


class AskFailed(AnabranchError):
    """No usable answer came, however often it was asked.

    Args:
        reason: ``unusable_answer``, ``refused`` or ``unreachable``.
        detail: what was wrong at the last try.
        answer: the last answer, "" where there was none.
    """

    def __init__(self, reason: str, detail: str, answer: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.answer = reason, detail, answer


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """One question to a model.

    Attributes:
        kind: name for costs and logs, like ``steps``.
        messages: the conversation.
        read: from the parsed JSON (from the text, without a schema) to a value; raises
            :class:`AnswerError` where the answer will not do.
        schema: JSON Schema of the answer; None asks for plain text.
        max_tokens: cap on the answer.
        temperature: 0 for the most likely answer.
        sample: number of the sample where several answers to the same question are wanted.
    """

    kind: str
    messages: tuple[Message, ...]
    read: Callable[[Any], T]
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 4096
    temperature: float = 0.0
    sample: int = 0
