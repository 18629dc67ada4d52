"""What the engine must compute of prompts, by our own accounting: a prefix tree of token ids.

A request's context costs the tokens that no earlier request of the trajectory has put into a
perfect prefix cache, by its own context or by what it sampled. Real caches keep whole pages and
evict, so an engine's own count may be higher; prefixes shared with other trajectories, lower.
"""

from __future__ import annotations

from collections.abc import Sequence


class Prefill:
    """The tokens computed so far, and how many more may be.

    Args:
        limit: most tokens in all; every prompt counts, the first one too.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._next: dict[tuple[int, int], int] = {}

    @property
    def left(self) -> int:
        return self.limit - self.used

    def cost(self, ids: Sequence[int]) -> int:
        """Tokens of a context that have to be computed."""
        node, known = 0, 0
        for token in ids:
            following = self._next.get((node, token))
            if following is None:
                break
            node, known = following, known + 1
        return len(ids) - known

    def compute(self, ids: Sequence[int]) -> int:
        """A call with this context begins; the node at its end, for :meth:`sampled`."""
        self.used += self.cost(ids)
        return self._walk(0, ids)

    def sampled(self, node: int, ids: Sequence[int]) -> None:
        """What a call has sampled behind its context stands in the cache without further cost."""
        self._walk(node, ids)

    def _walk(self, node: int, ids: Sequence[int]) -> int:
        for token in ids:
            node = self._next.setdefault((node, token), len(self._next) + 1)
        return node
