"""Stop strings found in text that arrives in pieces, and nothing else.

An engine delivers text up to and including the stop string where generation ended. Text that
might still turn into a stop string is held back, so nobody ever sees half a stop string and
nobody trims at a first occurrence by hand. The matcher knows neither tokens nor dialects.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from anabranch.errors import UsageError


class _Automaton:
    """The Aho-Corasick automaton of a set of stop strings, over characters.

    State 0 is the root. ``depth[s]`` is the length of the longest suffix of the text so far that
    is a prefix of a stop string; ``found[s]`` the longest stop string ending there, if any.
    """

    __slots__ = ("depth", "fail", "found", "next", "start")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        self.found: list[str | None] = [None]
        self.fail: list[int] = [0]
        for stop in stops:
            self._add(stop)
        self._link()
        first = "".join(re.escape(character) for character in self.next[0])
        self.start = re.compile(f"[{first}]") if first else None

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            known = self.next[state].get(character)
            if known is None:
                known = len(self.next)
                self.next[state][character] = known
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
                self.fail.append(0)
            state = known
        self.found[state] = stop

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self.next[state].items():
                self.fail[child] = self.step(self.fail[state], character)
                # The stop that is the whole path is longer than any found through the fail link.
                self.found[child] = self.found[child] or self.found[self.fail[child]]
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character; amortised constant time along a text."""
        while True:
            after = self.next[state].get(character)
            if after is not None:
                return after
            if state == 0:
                return 0
            state = self.fail[state]


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    return _Automaton(stops)


class StopMatcher:
    """Cuts a stream of text behind the first stop string.

    The match that *ends* first wins (so of `ab` and `abc` always `ab`); of several that end at
    the same character the longest. The result does not depend on how the text is cut into
    pieces, and the time is linear in the text.

    Args:
        stops: the stop strings; none of them empty.

    Attributes:
        stop: the stop string that matched, None so far.
        dropped: characters seen behind the stop string and thrown away.

    Raises:
        UsageError: a stop string is empty.
    """

    __slots__ = ("_automaton", "_held", "_state", "dropped", "stop")

    def __init__(self, stops: Iterable[str]) -> None:
        wanted = tuple(stops)
        if "" in wanted:
            raise UsageError("a stop string is empty: it would end every output at once")
        self._automaton = _automaton(wanted)
        self._state = 0
        self._held = ""
        self.stop: str | None = None
        self.dropped = 0

    @property
    def held(self) -> str:
        """Text held back because it may be the beginning of a stop string."""
        return self._held

    def feed(self, text: str) -> str:
        """Takes the next piece of text; gives what may be delivered now.

        Once a stop string has matched the delivered text ends with it and :attr:`stop` names it;
        everything fed after it is dropped.
        """
        if self.stop is not None:
            self.dropped += len(text)
            return ""
        automaton = self._automaton
        if automaton.start is None:
            return text
        state, position, size = self._state, 0, len(text)
        while position < size:
            if state == 0:
                candidate = automaton.start.search(text, position)
                if candidate is None:
                    break
                position = candidate.start()
            state = automaton.step(state, text[position])
            position += 1
            stop = automaton.found[state]
            if stop is not None:
                delivered = self._held + text[:position]
                self.stop, self.dropped = stop, size - position
                self._held, self._state = "", 0
                return delivered
        self._state = state
        whole = self._held + text if self._held else text
        cut = len(whole) - automaton.depth[state]
        self._held = whole[cut:]
        return whole[:cut]

    def close(self) -> str:
        """Ends the text: gives what was held back, now that it cannot become a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
