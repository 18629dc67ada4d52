"""The events of SGLang's `/generate`, turned into those of a completion. No socket here.

By default SGLang sends all of the output so far in every event; started with
`--incremental-streaming-output` (or `--stream-output` in older versions) it sends what is new. Both
are understood, event by event, from its count of tokens. Stop strings, the cap and the text are
the business of :class:`~anabranch.engines.reader.CompletionReader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.engines.failures import error_message, status_error, window_error
from anabranch.engines.reader import CompletionReader
from anabranch.errors import EngineError

NO_IDS = "{where} sends no output_ids: this version of SGLang is too old, or its tokenizer is off"


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event adds: token ids, their log-probs (None if one is missing), server's text."""

    ids: Sequence[int]
    scores: Sequence[float] | None
    text: str


class Deltas:
    """Finds what is new in each event of one output.

    Args:
        where: the URL, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.count = 0
        self._text = 0

    def push(self, event: dict[str, Any]) -> Delta:
        """What ``event`` adds to the events before it; nothing if it came twice.

        Raises:
            EngineError: it has no token ids.
        """
        ids: list[int] | None = event.get("output_ids")
        text: str = event.get("text") or ""
        meta = event.get("meta_info") or {}
        if ids is None:
            raise EngineError(NO_IDS.format(where=self._where))
        before, total = self.count, meta.get("completion_tokens")
        if not isinstance(total, int):
            total = before + len(ids)
        if before == 0 or len(ids) >= total:
            # All so far. The server may have added ids since it wrote the counts: they come again.
            new, fresh = ids[before:total], text[self._text :]
            self._text = len(text)
        else:
            new, fresh = ids[-(total - before) :] if total > before else [], text
            self._text += len(fresh)
        self.count += len(new)
        return Delta(new, _scores(meta.get("output_token_logprobs"), new, before), fresh)


def _scores(given: Any, ids: Sequence[int], before: int) -> list[float] | None:
    """The log-probs of ``ids``, wherever they are: entries are (log-prob, id, text)."""
    if not given or not ids:
        return None
    # Behind those of earlier tokens, or alone; some versions mix cumulative with incremental.
    for entries in (given[before : before + len(ids)], given[-len(ids) :]):
        if [entry[1] for entry in entries] == list(ids):
            values = [entry[0] for entry in entries]
            return None if None in values else values
    return None


class SGLangReader(CompletionReader):
    """Feeds on the bytes of one answer; see :class:`CompletionReader`."""

    __slots__ = ("_deltas",)

    _deltas: Deltas

    def _object(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("error"):
            super()._object(value)
            return
        if not self.received:
            self._deltas = Deltas(self._terms.where)
        super()._object(self._as_completion(value))

    def _as_completion(self, event: dict[str, Any]) -> dict[str, Any]:
        meta = event.get("meta_info") or {}
        delta = self._deltas.push(event)
        choice: dict[str, Any] = {"text": delta.text, "token_ids": delta.ids}
        if delta.scores is not None:
            choice["logprobs"] = {"token_logprobs": delta.scores}
        finish = meta.get("finish_reason")
        if finish:
            choice |= self._ending(finish)
        usage = {
            "prompt_tokens": meta.get("prompt_tokens", len(self._terms.call.ids)),
            "completion_tokens": meta.get("completion_tokens"),
            "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")},
        }
        return {"choices": [choice], "usage": usage}

    def _ending(self, finish: Any) -> dict[str, Any]:
        kind = finish.get("type") if isinstance(finish, dict) else finish
        if kind == "abort":
            status, message = finish.get("status_code"), str(finish.get("message") or "aborted")
            if isinstance(status, int) and 400 <= status < 500:
                raise status_error(status, message, self._terms.where)
            raise self._broken(f"aborted the request: {error_message(message)}")
        matched = finish.get("matched") if isinstance(finish, dict) else None
        return {"finish_reason": kind, "stop_reason": matched}

    def _reported(self, error: Any) -> EngineError:
        text = error if isinstance(error, str) else str(error.get("message", error))
        overflow = window_error(text, self._terms.where)
        if overflow is not None:
            return overflow
        if isinstance(error, dict) and not self.received and error.get("code") is None:
            return status_error(
                400, text, self._terms.where
            )  # what it found wrong with the request
        return super()._reported(error)
