"""Finds tags in a text that arrives in pieces.

The events do not depend on how the text was cut, apart from runs of text, which come as they
arrive: :func:`join_texts` makes them equal too. Only what may still become a tag is held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from anabranch.dialects.description import Dialect
from anabranch.dialects.tags import tag_table


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Plain text, at characters ``start`` to ``end`` of the whole stream."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TagEvent:
    """One tag. ``name`` is canonical (an alias is resolved), ``text`` is the tag as written."""

    kind: Literal["open", "close"]
    name: str
    number: int | None
    text: str
    start: int
    end: int


Event = TextEvent | TagEvent


class Scanner:
    """An incremental scanner for one dialect.

    Usage: events of :meth:`feed` for every piece, then those of :meth:`close`.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._table = tag_table(dialect)
        self._held = ""
        self._start = 0

    @property
    def held(self) -> str:
        """What was fed and not yet delivered: the possible beginning of a tag, often empty."""
        return self._held

    def feed(self, text: str) -> list[Event]:
        """The events that this piece completes."""
        return self._scan(self._held + text, final=False)

    def close(self) -> list[Event]:
        """The last events; what was held back is text after all."""
        return self._scan(self._held, final=True)

    def _scan(self, text: str, *, final: bool) -> list[Event]:
        events: list[Event] = []
        base, done = self._start, 0
        for match in self._table.pattern.finditer(text):
            start, end = match.span()
            if start > done:
                events.append(TextEvent(text[done:start], base + done, base + start))
            slash, name, number = match.groups()
            events.append(
                TagEvent(
                    "close" if slash else "open",
                    self._table.tags[name].name,
                    int(number) if number else None,
                    match.group(),
                    base + start,
                    base + end,
                )
            )
            done = end
        keep = len(text) if final else self._held_from(text, done)
        if keep > done:
            events.append(TextEvent(text[done:keep], base + done, base + keep))
        self._held, self._start = text[keep:], base + keep
        return events

    def _held_from(self, text: str, done: int) -> int:
        """Where the beginning of a possible tag stands at the end of ``text``."""
        # No tag holds a second `<`, so only the last one can begin it.
        start = text.rfind("<", max(done, len(text) - self._table.longest))
        if start >= 0 and self._table.partial.match(text, start):
            return start
        return len(text)


def scan(text: str, dialect: Dialect) -> list[Event]:
    """All events of a whole text."""
    scanner = Scanner(dialect)
    return scanner.feed(text) + scanner.close()


def join_texts(events: Iterable[Event]) -> Iterator[Event]:
    """The same events with adjoining runs of text made one."""
    pending: list[TextEvent] = []
    for event in events:
        if isinstance(event, TextEvent):
            pending.append(event)
            continue
        yield from _joined(pending)
        pending = []
        yield event
    yield from _joined(pending)


def _joined(texts: list[TextEvent]) -> Iterator[TextEvent]:
    if texts:
        whole = "".join(event.text for event in texts)
        yield TextEvent(whole, texts[0].start, texts[-1].end)
