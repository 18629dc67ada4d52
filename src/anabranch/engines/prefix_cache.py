"""Which prefixes an engine with a prefix cache would have at hand: a model of it, without tensors.

Blocks of tokens are known by a chain of hashes, as in vLLM; eviction takes the block that was used
longest ago. Used by the simulated engine and by the loopback server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class PrefixCache:
    """A bounded set of token prefixes.

    Args:
        block: tokens per block; only whole blocks are kept.
        capacity: most tokens kept, None for no limit.
    """

    def __init__(self, block: int = 16, capacity: int | None = None) -> None:
        self.block = block
        self._most = None if capacity is None else capacity // block
        self._known: OrderedDict[int, None] = OrderedDict()

    def cached(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``ids`` that need no prefill.

        Never all of them: the last token is always computed, for its logits.
        """
        found = 0
        for key in self._chain(ids):
            if key not in self._known:
                break
            self._known.move_to_end(key)
            found += self.block
        if found >= len(ids):
            found -= self.block
        return max(0, found)

    def add(self, ids: Sequence[int]) -> None:
        """Keeps the whole blocks of ``ids``."""
        known = self._known
        for key in self._chain(ids):
            known[key] = None
            known.move_to_end(key)
        while self._most is not None and len(known) > self._most:
            known.popitem(last=False)

    def _chain(self, ids: Sequence[int]) -> Iterator[int]:
        key, block = 0, self.block
        for start in range(0, len(ids) - block + 1, block):
            key = hash((key, *ids[start : start + block]))
            yield key
