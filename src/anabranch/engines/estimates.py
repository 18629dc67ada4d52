"""Token counts for models whose tokenizer is not at hand: pieces of text of up to four characters.

For hosted APIs. Every text round-trips; the ids are of no model and mean nothing in another
process. A record made with it says ``retokenized``, and keeps the server's own counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PIECE = re.compile(r" ?[A-Za-z]{1,4}| ?\d{1,3}|\s+|.", re.S)


class EstimatedTokens:
    """A tokenizer that makes about as many tokens of English text as common vocabularies do."""

    name = "estimate"
    bos_id: int | None = None

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pieces: list[str] = []

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset()

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``."""
        ids = []
        for piece in _PIECE.findall(text):
            number = self._numbers.setdefault(piece, len(self._pieces))
            if number == len(self._pieces):
                self._pieces.append(piece)
            ids.append(number)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` that this object has given out."""
        return "".join(self._pieces[token] for token in ids)
