"""The output of one call while it grows: stop strings, the cap and the text kept in step with ids.

Two forms of one interface: :class:`IdOutput` where the engine gives token ids (the text is decoded
here, so text and ids cannot disagree), :class:`TextOutput` where it gives only text (the ids are
encoded here). Neither knows where the tokens come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.engines.base import Tokenizer
from anabranch.engines.detokenizer import StreamDecoder
from anabranch.engines.stops import StopMatcher


class IdOutput:
    """Cuts a stream of ids behind the token that completes a stop string, or at the cap.

    Ids and text are given in step: a token comes when all of its text is settled, so what a
    caller has when it cancels is still a text and its ids. An end token has no text, unless more
    follows it.

    Args:
        tokenizer: decodes the ids.
        stops: stop strings; the text is cut behind the one that matches, the token stays whole.
        cap: most ids to keep.

    Attributes:
        count: ids kept so far, also those not given yet.
        last: the last id kept, None before the first.
        full: nothing more is kept: a stop string matched, or the cap is reached.
    """

    __slots__ = (
        "_cap",
        "_decoder",
        "_eos",
        "_matcher",
        "_sizes",
        "_text",
        "_waiting",
        "count",
        "full",
        "last",
    )

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], cap: int) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._matcher = StopMatcher(stops)
        self._eos = tokenizer.eos_ids
        self._cap = cap
        self._waiting: list[int] = []
        self._sizes: list[int] = []
        self._text = ""
        self.count = 0
        self.full = cap <= 0
        self.last: int | None = None

    @property
    def stop(self) -> str | None:
        """The stop string that matched, None so far."""
        return self._matcher.stop

    @property
    def held(self) -> str:
        """Text held back because it may become a stop string."""
        return self._matcher.held

    def push(self, ids: Sequence[int]) -> tuple[Sequence[int], str]:
        """Takes new ids; gives those whose text is settled, and that text."""
        matcher = self._matcher
        for token in ids:
            if self.full:
                break
            piece = self._piece(token)
            delivered = matcher.feed(piece)
            self.count += 1
            self.last = token
            if matcher.stop is not None or self.count >= self._cap:
                self.full = True
            elif len(ids) == 1 and not self._waiting and len(delivered) == len(piece):
                return ids, piece  # nearly always: one token, and no tag in sight
            self._waiting.append(token)
            self._sizes.append(len(piece))
            self._text += piece
        return self._settled()

    def _piece(self, token: int) -> str:
        if token in self._eos:
            return ""
        if self.last in self._eos:
            return self._decoder.push((self.last, token))
        return self._decoder.push((token,))

    def _settled(self) -> tuple[list[int], str]:
        matcher = self._matcher
        held = len(matcher.held)
        if not held:
            size = len(self._text) - (matcher.dropped if matcher.stop is not None else 0)
            ids, text = self._waiting, self._text[:size]
            self._waiting, self._sizes, self._text = [], [], ""
            return ids, text
        room = len(self._text) - held
        number = size = 0
        while number < len(self._sizes) and size + self._sizes[number] <= room:
            size += self._sizes[number]
            number += 1
        ids, text = self._waiting[:number], self._text[:size]
        del self._waiting[:number], self._sizes[:number]
        self._text = self._text[size:]
        return ids, text

    def close(self) -> tuple[list[int], str]:
        """Ends the output: gives what was held back."""
        if self._matcher.stop is None:
            tail = self._decoder.close()
            self._text += tail
            self._matcher.feed(tail)
            if self._matcher.stop is None:
                self._matcher.close()
        return self._settled()


class TextOutput:
    """The same for text without ids. Each settled piece of text is encoded on its own.

    The ids are the local tokenizer's: they may differ from what the engine sampled.
    """

    __slots__ = ("_cap", "_clipped", "_matcher", "_tokenizer", "count")

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], cap: int) -> None:
        self._tokenizer = tokenizer
        self._matcher = StopMatcher(stops)
        self._cap = cap
        self._clipped = False
        self.count = 0

    @property
    def stop(self) -> str | None:
        """The stop string that matched, None so far."""
        return None if self._clipped else self._matcher.stop

    @property
    def held(self) -> str:
        """Text held back because it may become a stop string."""
        return self._matcher.held

    @property
    def full(self) -> bool:
        """Whether nothing more is kept: a stop string matched, or the cap is reached."""
        return self._matcher.stop is not None or self.count >= self._cap

    def push(self, text: str) -> tuple[list[int], str]:
        """Takes new text; gives the settled part of it as ids and as text."""
        return self._settle(self._matcher.feed(text)) if not self.full else ([], "")

    def close(self) -> tuple[list[int], str]:
        """Ends the output: gives what was held back."""
        return self._settle(self._matcher.close())

    def _settle(self, text: str) -> tuple[list[int], str]:
        ids = self._tokenizer.encode(text) if text else []
        room = self._cap - self.count
        if len(ids) > room:
            # The local tokenizer needs more tokens than the engine did; the cap still holds.
            ids, self._clipped = ids[:room], True
            text = self._tokenizer.decode(ids)
        self.count += len(ids)
        return ids, text
