"""One request of the in-process engine: its tokens so far, their text, and when it ends."""

from __future__ import annotations

from typing import Any

from anabranch.engines.base import Call, Chunk, Tokenizer
from anabranch.engines.detokenizer import StreamDecoder
from anabranch.engines.stops import StopMatcher
from anabranch.errors import EngineError
from anabranch.records import FinishReason


class Job:
    """One request: its tokens, its row's length, and the output not yet fetched.

    Args:
        call: the request; its prompt is not empty.
        tokenizer: for the text of new tokens.
        eos_ids: ids that end the output.
        matcher: of the call's grammar.
    """

    __slots__ = (
        "_eos_ids",
        "_ids",
        "_logprobs",
        "_matcher",
        "_pieces",
        "_stream",
        "cached",
        "call",
        "cancelled",
        "failure",
        "finish",
        "length",
        "matcher",
        "tokens",
    )

    def __init__(
        self,
        call: Call,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        matcher: Any = None,
    ) -> None:
        self.call = call
        self.matcher = matcher
        self.tokens = list(call.ids)
        self.length = 0
        self.cached = 0
        self.cancelled = False
        self.finish: FinishReason | None = None
        self.failure: EngineError | None = None
        self._eos_ids = eos_ids
        self._stream = StreamDecoder(tokenizer)
        self._matcher = StopMatcher(call.stop)
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._pieces: list[str] = []

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - len(self.call.ids)

    @property
    def done(self) -> bool:
        return self.finish is not None or self.failure is not None or self.cancelled

    @property
    def has_output(self) -> bool:
        return bool(self._ids) or self.finish is not None

    def accept(self, token: int, logprob: float) -> None:
        """Takes the next sampled token."""
        if logprob != logprob:
            self.failure = EngineError("the model's logits are not numbers (NaN)")
            return
        if self.matcher is not None and not self.matcher.accept_token(token):
            self.failure = EngineError("no token of the vocabulary writes what the grammar demands")
            return
        self.tokens.append(token)
        self._ids.append(token)
        self._logprobs.append(logprob)
        matcher = self._matcher
        ended = token in self._eos_ids
        text = "" if ended else matcher.feed(self._stream.push((token,)))
        if matcher.stop is None and (ended or self.sampled >= self.call.max_tokens):
            self.finish = "eos" if ended else "length"
            text += matcher.feed(self._stream.close())
            text += matcher.close()
        if matcher.stop is not None:
            self.finish = "stop"
        if text:
            self._pieces.append(text)

    def fetch(self) -> Chunk:
        """The output since the last fetch."""
        chunk = Chunk(
            ids=tuple(self._ids),
            text="".join(self._pieces),
            logprobs=tuple(self._logprobs) if self.call.logprobs else None,
            finish=self.finish,
            stop=self._matcher.stop,
            prompt_tokens=len(self.call.ids),
            cached_tokens=self.cached,
        )
        self._ids, self._logprobs, self._pieces = [], [], []
        return chunk
