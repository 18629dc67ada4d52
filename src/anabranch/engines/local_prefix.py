"""Which finished sequence shares the longest prefix with a prompt: a radix tree with an LRU bound.

The tree maps token sequences to opaque payloads (the in-process engine keeps their keys and values
there). It knows no tensors and copies nothing; it only finds, counts and forgets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Payload = TypeVar("Payload")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix, by doubling and halving slices of the two."""
    limit = min(len(first), len(second))
    low, size = 0, 16
    while low < limit:
        high = min(limit, low + size)
        if first[low:high] == second[low:high]:
            low, size = high, size * 2
        elif high - low == 1:
            return low
        else:
            size = (high - low) // 2
    return limit


@dataclass(eq=False)
class Entry(Generic[Payload]):
    """One kept sequence: its tokens and what belongs to them."""

    tokens: tuple[int, ...]
    payload: Payload


@dataclass(eq=False)
class _Node(Generic[Payload]):
    """An edge of the tree with everything below it; ``entries`` are all that pass through."""

    tokens: tuple[int, ...] = ()
    children: dict[int, _Node[Payload]] = field(default_factory=dict)
    entries: dict[Entry[Payload], None] = field(default_factory=dict)


class PrefixStore(Generic[Payload]):
    """Kept sequences by prefix, the least recently used forgotten first.

    Args:
        max_tokens: bound on the sum of the lengths of all kept sequences.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0
        self._recent: OrderedDict[Entry[Payload], None] = OrderedDict()
        self._root: _Node[Payload] = _Node()

    def __len__(self) -> int:
        return len(self._recent)

    def __iter__(self) -> Iterator[Entry[Payload]]:
        """Kept sequences, the least recently used first."""
        return iter(tuple(self._recent))

    def find(self, tokens: Sequence[int]) -> tuple[int, Entry[Payload] | None]:
        """The length of the longest known prefix of ``tokens``, and a sequence that has it."""
        matched, node = self._walk(tuple(tokens))
        if matched == 0:
            return 0, None
        entry = next(reversed(node.entries))
        self._recent.move_to_end(entry)
        return matched, entry

    def add(self, tokens: Sequence[int], make: Callable[[], Payload]) -> None:
        """Keeps a sequence, unless a kept one begins with it or it is longer than the bound.

        Kept sequences that it begins with are dropped: it serves them.

        Args:
            make: makes the payload; called only if the sequence is kept.
        """
        key = tuple(tokens)
        if not key or len(key) > self.max_tokens or self.find(key)[0] == len(key):
            return
        entry = Entry(key, make())
        for shorter in self._insert(entry):
            self._remove(shorter)
        self._recent[entry] = None
        self.tokens += len(key)
        while self.tokens > self.max_tokens:
            self._remove(next(iter(self._recent)))

    def clear(self) -> None:
        """Forgets everything."""
        self.tokens = 0
        self._recent.clear()
        self._root = _Node()

    def _walk(self, key: tuple[int, ...]) -> tuple[int, _Node[Payload]]:
        """Matched length and the deepest node entered; the root if nothing matched."""
        node, position = self._root, 0
        while position < len(key):
            child = node.children.get(key[position])
            if child is None:
                break
            node, edge = child, child.tokens
            if key[position : position + len(edge)] == edge:
                position += len(edge)
                continue
            return position + common_prefix(key[position : position + len(edge)], edge), node
        return position, node

    def _insert(self, entry: Entry[Payload]) -> list[Entry[Payload]]:
        """Puts an entry into the tree; gives the entries that end on its way."""
        node, position, key = self._root, 0, entry.tokens
        shorter: list[Entry[Payload]] = []
        while position < len(key):
            child = node.children.get(key[position])
            if child is None:
                leaf: _Node[Payload] = _Node(key[position:], {}, {entry: None})
                node.children[key[position]] = leaf
                return shorter
            same = common_prefix(key[position : position + len(child.tokens)], child.tokens)
            if same < len(child.tokens):
                child = self._split(node, child, same)
            position += same
            child.entries[entry] = None
            shorter.extend(old for old in child.entries if len(old.tokens) == position)
            node = child
        return [old for old in shorter if old is not entry]

    def _split(self, parent: _Node[Payload], child: _Node[Payload], at: int) -> _Node[Payload]:
        head: _Node[Payload] = _Node(child.tokens[:at], {child.tokens[at]: child})
        head.entries = dict(child.entries)
        parent.children[child.tokens[0]] = head
        child.tokens = child.tokens[at:]
        return head

    def _remove(self, entry: Entry[Payload]) -> None:
        del self._recent[entry]
        self.tokens -= len(entry.tokens)
        node, position = self._root, 0
        while position < len(entry.tokens):
            first = entry.tokens[position]
            child = node.children[first]
            del child.entries[entry]
            if not child.entries:  # nothing else passes here: the rest was this entry's own
                del node.children[first]
                return
            position += len(child.tokens)
            node = child
