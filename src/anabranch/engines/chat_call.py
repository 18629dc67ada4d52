"""What a chat engine is asked, and what comes back: messages, tools, pieces of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.engines.base import Chunk

#: A message as the protocol has it: role, content, and what goes with the role.
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as the model wrote it. ``arguments`` is JSON, or was meant to be."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One request to a chat engine.

    Attributes:
        messages: the conversation so far.
        max_tokens: cap on sampled tokens; always sent.
        tools: descriptions of tools that the model may call; none: it can call none.
        tool_choice: the name of a tool that it must call; "": as it likes.
        temperature, top_p, top_k, seed, affinity: as in :class:`anabranch.engines.base.Call`.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class ChatChunk(Chunk):
    """A piece of a chat answer.

    ``text`` is the answer in one form whatever the server calls its parts: reasoning between
    ``<think>`` and ``</think>``, then the content. The last chunk has the tool calls, the text of
    content alone, and the server's count of sampled tokens where it gives one.
    """

    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    content: str = ""
    counted_tokens: int | None = None
    notes: tuple[str, ...] = field(default=())
