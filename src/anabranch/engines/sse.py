"""Server-sent events from bytes that arrive in any cutting: data fields and nothing else.

Written for the hot path of a streamed completion. Tolerated: LF, CRLF and CR line ends, comments,
fields other than `data`, data over several lines, several JSON objects in one event. Events
without data are dropped, as the standard says. Reading from a socket is not done here.
"""

from __future__ import annotations

import json
from typing import Any

_DECODER = json.JSONDecoder()


class SseReader:
    """Feeds on bytes, gives the data of each event that is complete.

    Args:
        limit: largest size in bytes of one unfinished event; a server that never ends a line must
            not fill the memory.

    Raises (from :meth:`feed`):
        ValueError: the limit is passed, or the bytes are not UTF-8.
    """

    __slots__ = ("_data", "_limit", "_tail")

    def __init__(self, limit: int = 16 * 2**20) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._limit = limit

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._tail.strip() or self._data)

    def feed(self, piece: bytes) -> list[str]:
        """The data of all events that ``piece`` completes."""
        if not self._tail and not self._data and self._is_one(piece):
            return [piece[6:-2].decode()]
        piece = self._tail + piece
        if b"\r" in piece:
            piece = self._one_line_end(piece)
        lines = piece.split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > self._limit:
            raise ValueError(f"an event is larger than {self._limit} bytes")
        events: list[str] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                events.append(b"\n".join(data).decode())
                data.clear()
        return events

    @staticmethod
    def _is_one(piece: bytes) -> bool:
        # The common case by far: one event per network read, in one line.
        return (
            piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and b"\r" not in piece
        )

    def close(self) -> list[str]:
        """The data of an event that the end of the stream cut off before its blank line."""
        tail, self._tail = self._tail, b""
        if tail == b"\r":  # the first half of a CRLF that never came
            tail = b""
        return self.feed(tail + b"\n\n") if tail or self._data else []

    @staticmethod
    def _one_line_end(piece: bytes) -> bytes:
        # A CR at the end may be the first half of a CRLF: it stays as it is for the next piece.
        last = b"\r" if piece.endswith(b"\r") else b""
        body = piece[:-1] if last else piece
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + last


def json_objects(data: str) -> list[Any]:
    """The JSON values in the data of one event; normally one.

    Raises:
        ValueError: something in it is not JSON.
    """
    try:
        value, end = _DECODER.raw_decode(data)
        if end == len(data):
            return [value]
    except ValueError:
        pass
    values: list[Any] = []
    position = 0
    while position < len(data):
        if data[position] in " \n\t":
            position += 1
            continue
        value, position = _DECODER.raw_decode(data, position)
        values.append(value)
    if not values:
        raise ValueError("no JSON")
    return values
