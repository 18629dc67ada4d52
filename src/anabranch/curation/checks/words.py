"""Words of a text, by which texts are compared: the same however it is encoded, in any script."""

from __future__ import annotations

import re
import unicodedata

# Scripts without spaces between words: each sign is one.
_SIGNS = "\u2e80-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words, numbers and single signs, without regard to case, in Unicode's NFKC."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold())
