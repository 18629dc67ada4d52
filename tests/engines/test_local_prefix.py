"""The store of kept sequences: always the longest prefix, never more than its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.engines.local_prefix import PrefixStore, common_prefix

tokens = st.lists(st.integers(0, 2), max_size=12)


def shared(first: list[int], second: list[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


@given(
    first=st.lists(st.integers(0, 1), max_size=80), second=st.lists(st.integers(0, 1), max_size=80)
)
def test_common_prefix(first: list[int], second: list[int]) -> None:
    assert common_prefix(first, second) == shared(first, second)
    assert common_prefix(first + second, first + first) == shared(first + second, first + first)


@given(kept=st.lists(tokens, max_size=12), wanted=tokens)
def test_finds_the_longest_prefix_of_all_that_was_kept(
    kept: list[list[int]], wanted: list[int]
) -> None:
    store: PrefixStore[tuple[int, ...]] = PrefixStore(10_000)
    for sequence in kept:
        store.add(sequence, lambda sequence=sequence: tuple(sequence))
    length, entry = store.find(wanted)
    assert length == max((shared(sequence, wanted) for sequence in kept), default=0)
    if length:
        assert entry is not None
        assert entry.payload == entry.tokens
        assert entry.tokens[:length] == tuple(wanted[:length])
    assert store.tokens == sum(len(entry.tokens) for entry in store)


@given(kept=st.lists(tokens, max_size=12))
def test_keeps_nothing_that_a_longer_one_serves(kept: list[list[int]]) -> None:
    store: PrefixStore[None] = PrefixStore(10_000)
    for sequence in kept:
        store.add(sequence, lambda: None)
    left = [entry.tokens for entry in store]
    for one in left:
        assert not any(other[: len(one)] == one for other in left if other is not one)


@given(kept=st.lists(tokens, max_size=30), bound=st.integers(0, 20), wanted=tokens)
def test_the_bound_holds_and_the_tree_stays_whole(
    kept: list[list[int]], bound: int, wanted: list[int]
) -> None:
    store: PrefixStore[None] = PrefixStore(bound)
    for sequence in kept:
        store.add(sequence, lambda: None)
        assert store.tokens <= bound
    alive = [list(entry.tokens) for entry in store]
    assert store.find(wanted)[0] == max((shared(one, wanted) for one in alive), default=0)
    store.clear()
    assert len(store) == store.tokens == store.find(wanted)[0] == 0


def test_the_least_recently_used_goes_first() -> None:
    store: PrefixStore[str] = PrefixStore(6)
    store.add([1, 1], lambda: "one")
    store.add([2, 2], lambda: "two")
    store.add([3, 3], lambda: "three")
    store.find([1])
    store.add([4, 4], lambda: "four")
    assert [entry.payload for entry in store] == ["three", "one", "four"]


def test_a_payload_is_made_only_if_it_is_kept() -> None:
    made: list[str] = []
    store: PrefixStore[None] = PrefixStore(3)
    store.add([1, 2, 3], lambda: made.append("first"))
    store.add([1, 2], lambda: made.append("covered"))
    store.add([1, 2, 3, 4], lambda: made.append("too long"))
    store.add([], lambda: made.append("empty"))
    assert made == ["first"]
