"""Raw continuation over a chat endpoint: a conversation and the answer so far as one prompt text.

The fork-join machine continues text in the middle. Servers that continue an assistant's message
(vLLM's `continue_final_message`) can be driven so: the prompt's text is the conversation as one
line of JSON, what follows it is the assistant's message so far.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from anabranch.engines.chat_call import Message
from anabranch.engines.reader import CompletionReader
from anabranch.errors import UsageError


def chat_prompt(messages: Sequence[Message]) -> str:
    """The prompt text for a conversation whose next message is the assistant's."""
    return json.dumps([dict(one) for one in messages], ensure_ascii=False) + "\n"


def read_chat_prompt(text: str) -> tuple[list[dict[str, Any]], str]:
    """The conversation, and the assistant's message so far.

    Raises:
        UsageError: the text does not begin with a conversation.
    """
    line, _, so_far = text.partition("\n")
    try:
        messages = json.loads(line)
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise UsageError("a chat engine needs a prompt made by chat_prompt: use make_setup")
    return messages, so_far


class ContinuationReader(CompletionReader):
    """Reads the events of a chat stream as those of a completion."""

    __slots__ = ()

    def _tokens(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        text = thought + (delta.get("content") or "")
        super()._tokens({**choice, "text": text, "token_ids": None})
