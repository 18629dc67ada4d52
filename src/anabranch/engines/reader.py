"""The events of one streamed completion, turned into chunks. No socket here.

Takes the bytes of the response body as they arrive and applies the client's own stop strings and
cap, whatever the server made of them: a stop string that the server cut off is put back, text
behind it is dropped, a server that runs on is reported so that the connection can be closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from anabranch.engines.base import Call, Chunk, Tokenizer
from anabranch.engines.failures import error_message, status_error
from anabranch.engines.output import IdOutput, TextOutput
from anabranch.engines.sse import SseReader, json_objects
from anabranch.errors import EngineError
from anabranch.records import FinishReason

NO_IDS = (
    "{where} returns no token ids: what was sampled can then not be trained on or continued "
    'exactly; use ids="retokenize" to encode its text with the local tokenizer instead'
)


def _usage_in(usage: Any) -> dict[str, Any]:
    """The counts of an event; raises TypeError where one is no number."""
    for name in ("prompt_tokens", "completion_tokens"):
        if type(usage.get(name)) not in (int, NoneType):
            raise TypeError(name)
    if not isinstance(usage.get("prompt_tokens_details"), dict | NoneType):
        raise TypeError("prompt_tokens_details")
    counts: dict[str, Any] = usage
    return counts


def ids_in_scores(logprobs: dict[str, Any]) -> list[int] | None:
    """Token ids among the log-probs, where llama.cpp has them; None if there are none."""
    content = logprobs.get("content")
    if not content or "id" not in content[0]:
        return None
    return [entry["id"] for entry in content]


def scores_in(logprobs: dict[str, Any]) -> list[float | None] | None:
    """The log-probs of the sampled tokens, in either of the two forms in use."""
    scores: list[float | None] | None = logprobs.get("token_logprobs")
    if scores is None and logprobs.get("content"):
        return [entry.get("logprob") for entry in logprobs["content"]]
    return scores


@dataclass(frozen=True, slots=True)
class Terms:
    """What one stream is read by.

    Attributes:
        call: the call; its prompt's length and stop strings are used.
        cap: tokens asked for.
        where: the URL, for messages.
        ids: whether the server gives token ids.
        server_stops: whether the stop strings were sent; if not, the stream is cut here.
    """

    call: Call
    cap: int
    where: str
    ids: bool = True
    server_stops: bool = True


class CompletionReader:
    """Feeds on bytes, gives chunks; :meth:`last` gives the one that ends the output.

    Attributes:
        done: the output is complete: read no further and call :meth:`last`.
        cut: the server goes on although the output has ended: close the connection.
    """

    __slots__ = (
        "_counted",
        "_new",
        "_output",
        "_previous",
        "_reason",
        "_scored",
        "_scores",
        "_sse",
        "_stop_reason",
        "_terms",
        "_text",
        "_tokenizer",
        "_usage",
        "cut",
        "done",
        "received",
    )

    def __init__(self, tokenizer: Tokenizer, terms: Terms) -> None:
        kind = IdOutput if terms.ids else TextOutput
        self._output = kind(tokenizer, terms.call.stop, terms.cap)
        self._tokenizer, self._terms = tokenizer, terms
        self._sse = SseReader()
        self._previous = ""
        self._counted: int | None = None
        self._reason: str | None = None
        self._stop_reason: Any = None
        self._usage: dict[str, Any] = {}
        self._new: list[int] = []
        self._text = ""
        self._scores: list[float | None] = []
        self._scored = terms.call.logprobs and terms.ids
        self.received = 0
        self.done = False
        self.cut = False

    def feed(self, data: bytes) -> Chunk | None:
        """Takes bytes of the body; gives what is new, None if nothing is.

        Raises:
            EngineError: the server reports an error or sends what is not a completion.
        """
        try:
            events = self._sse.feed(data)
        except ValueError as error:
            raise self._broken(f"sent a broken stream: {error}") from None
        for event in events:
            self._event(event)
        return self._take()

    def end(self) -> Chunk | None:
        """The body has ended; gives what an unfinished last event held.

        Raises:
            EngineError: it ended before the output did.
        """
        if self.done:
            return None
        for event in self._sse.close():
            self._event(event)
        if self._reason is None:
            raise self._broken("closed the stream before the output was finished")
        self.done = True
        return self._take()

    def last(self) -> Chunk:
        """The chunk that ends the output, with the finish reason and the token counts.

        Raises:
            EngineError: the server ended for a reason that is not an end of output, or its count
                of tokens shows that some arrived twice.
        """
        self._check_count()
        finish = self._finish()
        self._close(finish)
        chunk = self._take() or Chunk()
        details = self._usage.get("prompt_tokens_details") or {}
        return Chunk(
            ids=chunk.ids,
            text=chunk.text,
            logprobs=chunk.logprobs,
            finish=finish,
            stop=self._output.stop or (self._named_stop() if finish == "stop" else None),
            prompt_tokens=self._usage.get("prompt_tokens", len(self._terms.call.ids)),
            cached_tokens=details.get("cached_tokens"),
        )

    def _event(self, event: str) -> None:
        if event == "[DONE]":
            self.done = True
            return
        if self.done:
            return
        if event == self._previous and '"text_offset"' in event and '"text":""' not in event:
            return  # the same place in the text twice: a repeated event, not a repeated token
        self._previous = event
        try:
            values = json_objects(event)
        except ValueError:
            raise self._broken(f"sent an event that is not JSON: {event[:80]!r}") from None
        for value in values:
            try:
                self._object(value)
            except (TypeError, AttributeError, KeyError, IndexError, ValueError):
                # Fields are not checked one by one on the hot path; a wrong type shows here.
                raise self._broken(f"sent an event of another shape: {event[:80]!r}") from None

    def _object(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise self._broken(f"sent an event that is not an object: {str(value)[:80]!r}")
        if value.get("error"):
            raise self._reported(value["error"])
        usage = value.get("usage")
        if usage:
            self._usage = _usage_in(usage)
        choices = value.get("choices")
        if not choices:
            # The chunk with the counts comes behind the end of the output and is the last.
            self.done = self.done or bool(usage and self._reason)
            return
        choice = choices[0]
        if usage and choice.get("token_ids"):
            # The count in every event tells a repeated event from a repeated token.
            counted = usage.get("completion_tokens")
            if counted is not None and counted == self._counted:
                return
            self._counted = counted
        self._tokens(choice)
        reason = choice.get("finish_reason")
        if reason is not None and self._reason is None:
            self._reason, self._stop_reason = reason, choice.get("stop_reason")
        if self._reason is None and self._output.stop and not self._terms.server_stops:
            self.cut = self.done = True

    def _tokens(self, choice: dict[str, Any]) -> None:
        ids: Sequence[int] | None = choice.get("token_ids")
        logprobs = choice.get("logprobs")
        if ids is None and logprobs:
            ids = ids_in_scores(logprobs)
        text: str = choice.get("text") or ""
        if not ids and not text:
            return
        output = self._output
        if output.full:
            self.received += len(ids or ())
            if choice.get("finish_reason") is None and self._reason is None:
                self.cut = self.done = True
            return
        if isinstance(output, TextOutput):
            self._settle(*output.push(text))
            return
        if ids is None:
            raise EngineError(NO_IDS.format(where=self._terms.where))
        self.received += len(ids)
        before = output.count
        new, settled = output.push(ids)
        self._new += new
        self._text += settled
        if self._scored:
            self._score(logprobs, len(ids), output.count - before)

    def _score(self, logprobs: Any, given: int, kept: int) -> None:
        scores = scores_in(logprobs) if logprobs else None
        if scores and len(scores) == given:
            self._scores += scores if kept == given else scores[:kept]
        else:
            self._scores += [None] * kept

    def _settle(self, ids: Sequence[int], text: str) -> None:
        self._new += ids
        self._text += text

    def _take(self) -> Chunk | None:
        new = self._new
        if not new and not self._text:
            return None
        scores: tuple[float, ...] | None = None
        if self._scored:
            known = self._scores[: len(new)]
            del self._scores[: len(new)]
            if len(known) == len(new) and None not in known:
                scores = tuple(known)  # type: ignore[arg-type]
        chunk = Chunk(tuple(new), self._text, scores)
        self._new, self._text = [], ""
        return chunk

    def _close(self, finish: FinishReason) -> None:
        """Settles held text, and puts back a stop string that the server has cut off."""
        output = self._output
        missing = ""
        if finish == "stop" and output.stop is None:
            stop = self._named_stop() or ""
            held = output.held
            missing = stop[len(held) :] if stop.startswith(held) else stop
        ids, text = output.close()
        if missing and isinstance(output, TextOutput):
            ids = self._tokenizer.encode(text + missing)
        elif missing:
            ids = [*ids, *self._tokenizer.encode(missing)]
        self._settle(ids, text + missing)

    def _named_stop(self) -> str | None:
        named = self._stop_reason
        return named if isinstance(named, str) and named in self._terms.call.stop else None

    def _finish(self) -> FinishReason:
        output, reason = self._output, self._reason
        if output.stop is not None:
            return "stop"
        if self.cut:
            return "length"
        if reason == "length":
            return "length"
        if reason != "stop":
            raise self._broken(f"ended the output with finish_reason {reason!r}")
        if self._named_stop():
            return "stop"
        if isinstance(output, IdOutput) and output.last in self._tokenizer.eos_ids:
            return "eos"
        # Some servers say "stop" when the cap was hit; without a stop string that cannot be.
        sampled = max(output.count, self._usage.get("completion_tokens") or 0)
        return "length" if sampled >= self._terms.cap else "eos"

    def _check_count(self) -> None:
        counted = self._usage.get("completion_tokens")
        if counted is None or not isinstance(self._output, IdOutput) or self.cut:
            return
        # A server may leave the end token out of its count.
        if self.received > counted + (self._output.last in self._tokenizer.eos_ids):
            raise self._broken(
                f"sent {self.received} tokens but counts {counted}: a part came twice"
            )

    def _reported(self, error: Any) -> EngineError:
        code = error.get("code") if isinstance(error, dict) else None
        text = error if isinstance(error, str) else error_message(str(error.get("message", error)))
        if isinstance(code, int) and 400 <= code < 500:
            return status_error(code, text, self._terms.where)
        return self._broken(f"broke off the stream: {text}")

    def _broken(self, what: str) -> EngineError:
        return EngineError(f"{self._terms.where} {what}", retryable=True)
