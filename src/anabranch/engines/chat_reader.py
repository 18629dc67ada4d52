"""The events of one streamed chat completion, turned into chunks. No socket here.

Servers name a model's reasoning differently (`reasoning`, `reasoning_content`, `<think>` in the
content, with its opening tag perhaps in the prompt): here it comes in one form. Tool calls are put
together from their pieces. The server's count of tokens is taken over and its cap is checked.
"""

from __future__ import annotations

from typing import Any

from anabranch.engines.chat_call import ChatChunk, ToolCall
from anabranch.engines.failures import error_message, status_error
from anabranch.engines.sse import SseReader, json_objects
from anabranch.errors import EngineError
from anabranch.records import FinishReason

THINK, END_THINK = "<think>", "</think>"
_FINISHES: dict[str, FinishReason] = {
    "stop": "eos",
    "length": "length",
    "tool_calls": "eos",
    "function_call": "eos",
}


class ChatReader:
    """Feeds on bytes, gives chunks; :meth:`last` gives the one that ends the answer.

    Attributes:
        done: the answer is complete: read no further and call :meth:`last`.
    """

    def __init__(self, where: str, cap: int) -> None:
        self._where, self._cap = where, cap
        self._sse = SseReader()
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._calls: dict[int, dict[str, str]] = {}
        self._ids: list[int] = []
        self._new = ""
        self._thinking = False
        self._previous = ""
        self.reasoning = ""
        self.content = ""
        self.done = False
        self.cut = False

    def feed(self, data: bytes) -> ChatChunk | None:
        """Takes bytes of the body; gives new text, None if there is none.

        Raises:
            EngineError: the server reports an error or sends what is no chat completion.
        """
        try:
            events = self._sse.feed(data)
        except ValueError as error:
            raise self._broken(f"sent a broken stream: {error}") from None
        for event in events:
            self._event(event)
        return self._take()

    def end(self) -> ChatChunk | None:
        """The body has ended.

        Raises:
            EngineError: it ended before the answer did.
        """
        for event in self._sse.close() if not self.done else ():
            self._event(event)
        if self._reason is None:
            raise self._broken("closed the stream before the answer was finished")
        self.done = True
        return self._take()

    def last(self) -> ChatChunk:
        """The chunk that ends the answer.

        Raises:
            EngineError: the answer ended for a reason that is no end, such as a content filter.
        """
        self._close_thinking()
        counted = self._usage.get("completion_tokens")
        finish = self._finish(counted)
        reasoning, content = (
            split_reasoning(self.content)
            if not self.reasoning
            else (
                self.reasoning,
                self.content,
            )
        )
        notes: tuple[str, ...] = ()
        if counted is not None and counted > self._cap:
            notes = (f"the server counts {counted} tokens where the cap was {self._cap}",)
        details = self._usage.get("prompt_tokens_details") or {}
        text, self._new = self._new, ""
        return ChatChunk(
            text=text,
            finish=finish,
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            tool_calls=self._tool_calls(),
            reasoning=reasoning,
            content=content,
            counted_tokens=counted or None,
            notes=notes,
        )

    def _event(self, event: str) -> None:
        if event == "[DONE]":
            self.done = True
            return
        if self.done:
            return
        try:
            values = json_objects(event)
        except ValueError:
            raise self._broken(f"sent an event that is not JSON: {event[:80]!r}") from None
        for value in values:
            self._object(value)

    def _object(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise self._broken(f"sent an event that is not an object: {str(value)[:80]!r}")
        if value.get("error"):
            raise self._reported(value["error"])
        usage = value.get("usage")
        if usage:
            self._usage = usage
        choices = value.get("choices")
        if not choices:
            self.done = self.done or bool(usage and self._reason)
            return
        choice = choices[0]
        delta = choice.get("delta") or choice.get("message") or {}
        self._delta(delta)
        if choice.get("finish_reason") is not None and self._reason is None:
            self._reason = choice["finish_reason"]

    def _delta(self, delta: dict[str, Any]) -> None:
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        if isinstance(thought, str) and thought:
            if not self._thinking:
                self._thinking = True
                self._new += THINK
            self.reasoning += thought
            self._new += thought
        content = delta.get("content")
        if isinstance(content, str) and content:
            self._close_thinking()
            self.content += content
            self._new += content
        for place, piece in enumerate(delta.get("tool_calls") or ()):
            self._tool_piece(piece.get("index", place), piece)

    def _tool_piece(self, index: int, piece: dict[str, Any]) -> None:
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        name = function.get("name") or ""
        # Some servers repeat the whole name with every piece, none cuts it.
        call["name"] = name or call["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["arguments"] += arguments

    def _close_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self._new += END_THINK

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(call["id"] or f"call_{index}", call["name"], call["arguments"])
            for index, call in sorted(self._calls.items())
        )

    def _take(self) -> ChatChunk | None:
        if not self._new:
            return None
        text, self._new = self._new, ""
        return ChatChunk(text=text)

    def _finish(self, counted: int | None) -> FinishReason:
        reason = self._reason or ""
        finish = _FINISHES.get(reason)
        if finish is None:
            raise self._broken(f"ended the answer with finish_reason {reason!r}")
        # Some servers say "stop" when the cap was hit.
        if finish == "eos" and counted is not None and counted >= self._cap:
            return "length"
        return finish

    def _reported(self, error: Any) -> EngineError:
        code = error.get("code") if isinstance(error, dict) else None
        text = error if isinstance(error, str) else error_message(str(error.get("message", error)))
        if isinstance(code, int) and 400 <= code < 500:
            return status_error(code, text, self._where)
        return self._broken(f"broke off the stream: {text}")

    def _broken(self, what: str) -> EngineError:
        return EngineError(f"{self._where} {what}", retryable=True)


def split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and answer of a text that holds both.

    ``<think>`` may be missing where the prompt's template opened it, ``</think>`` where the cap
    came first: then there is no answer.
    """
    before, closed, answer = text.partition(END_THINK)
    if closed:
        return before.partition(THINK)[2] if THINK in before else before, answer
    lead, opened, thought = text.partition(THINK)
    return (thought, lead.strip()) if opened else ("", text)
