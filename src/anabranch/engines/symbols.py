"""A tokenizer without files: one token per character, and one per word that is named.

For simulation and tests, where a vocabulary should not get in the way. Every text round-trips,
also lone surrogates. It is no model's tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_FIRST = 0x110000


class CharTokenizer:
    """Ids are code points; the named words, the start and the end have ids above them.

    Args:
        words: texts that are one token each, such as tags; longer ones win.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.bos_id: int | None = _FIRST
        self._eos = _FIRST + 1
        self._symbols = {_FIRST: "<bos>", self._eos: "<eos>"}
        ordered = sorted({word for word in words if word}, key=lambda word: (-len(word), word))
        for number, word in enumerate(ordered, _FIRST + 2):
            self._symbols[number] = word
        self._numbers = {word: number for number, word in self._symbols.items()}
        pattern = "|".join(re.escape(word) for word in [*ordered, "<bos>", "<eos>"])
        self._pattern = re.compile(f"({pattern})")

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self._eos})

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``."""
        ids: list[int] = []
        for place, piece in enumerate(self._pattern.split(text)):
            if place % 2:
                ids.append(self._numbers[piece])
            else:
                ids.extend(map(ord, piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; ids that do not exist have none."""
        symbols = self._symbols
        return "".join([chr(i) if i < _FIRST else symbols.get(i, "") for i in ids])

    @property
    def pieces(self) -> CharTokenizer:
        return self

    def stream(self) -> CharTokenizer:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def close(self) -> str:
        return ""
