"""The events of one output, as a server would stream them. No socket here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch.engines.base import Tokenizer
from anabranch.engines.detokenizer import StreamDecoder
from anabranch.engines.loopback.data import Manners, Reply
from anabranch.engines.stops import StopMatcher


class Generation:
    """The events of one output: sampling by script, stop strings and cap as the manners say."""

    def __init__(
        self, tokenizer: Tokenizer, manners: Manners, body: dict[str, Any], reply: Reply
    ) -> None:
        self.sampled: list[int] = []
        self._tokenizer, self._manners, self._reply, self._body = tokenizer, manners, reply, body
        stops = body.get("stop") or () if manners.stops else ()
        self._matcher = StopMatcher((stops,) if isinstance(stops, str) else stops)
        self._decoder = StreamDecoder(tokenizer)
        self._include = manners.include_stop and bool(body.get("include_stop_str_in_output"))
        self._cap = int(body.get("max_tokens", 16)) if manners.cap else 10**9
        self._stop_ids = frozenset(body.get("stop_token_ids") or () if manners.stop_ids else ())
        self._offset = 0

    def _steps(self) -> Iterable[tuple[int, ...]]:
        if self._reply.steps is not None:
            yield from self._reply.steps
            return
        ids = [*self._tokenizer.encode(self._reply.text), min(self._tokenizer.eos_ids)]
        size = self._manners.tokens_per_event
        for start in range(0, len(ids), size):
            yield tuple(ids[start : start + size])

    def choices(self) -> Iterable[dict[str, Any]]:
        reason: str | None = None
        for step in self._steps():
            ids = step[: self._cap - len(self.sampled)]
            self.sampled += ids
            text = self._text(ids)
            ends = self._tokenizer.eos_ids | self._stop_ids
            if self._matcher.stop is not None or (ids and ids[-1] in ends):
                reason = "stop"
            elif len(self.sampled) >= self._cap:
                reason = "length" if self._manners.honest else "stop"
            if reason and not self._include and self._matcher.stop is None:
                text += self._matcher.close()
            yield self._choice(ids, text, reason)
            if reason:
                return
        yield self._choice((), "", "stop")

    def _text(self, ids: tuple[int, ...]) -> str:
        ends = ids and ids[-1] in self._tokenizer.eos_ids
        piece = self._decoder.push(ids[:-1] if ends else ids)
        settled = self._matcher.feed(piece)
        stop = self._matcher.stop
        if not self._include:
            return settled.removesuffix(stop) if stop else settled
        return piece[: len(piece) - self._matcher.dropped] if stop else piece

    def _choice(self, ids: tuple[int, ...], text: str, reason: str | None) -> dict[str, Any]:
        manners, body = self._manners, self._body
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason}
        if manners.names_stop:
            choice["stop_reason"] = self._matcher.stop if reason else None
        if manners.ids_out and body.get("return_token_ids"):
            choice["token_ids"] = list(ids)
        if manners.logprobs and body.get("logprobs") is not None:
            choice["logprobs"] = {
                "text_offset": [self._offset] * len(ids),
                "token_logprobs": [self._reply.logprob] * len(ids),
                "tokens": [self._tokenizer.decode([token]) for token in ids],
                "top_logprobs": None,
            }
        self._offset += len(text)
        return choice
