"""Text from token ids that arrive one by one: the incremental side of decoding.

The text of a single token need not be text: byte-level vocabularies cut characters, and some
decoders look at neighbours. :class:`StreamDecoder` delivers only what later tokens cannot change,
in linear time. Loading a tokenizer and encoding are in :mod:`anabranch.engines.tokenizers`.
"""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anabranch.engines.base import Tokenizer

REPLACEMENT = "\ufffd"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
#: Tokens that the neighbour-dependent path waits for the rest of a character.
_PATIENCE = 16
#: Tokens that it keeps as left context.
_CONTEXT = 4


class _Strategy(Protocol):
    def push(self, ids: Sequence[int]) -> str: ...

    def close(self) -> str: ...


class Pieces(Protocol):
    """How one kind of vocabulary turns single ids into pieces; makes a fresh stream state."""

    def stream(self) -> _Strategy: ...


def _byte_table() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Bytes that print keep their own character; the others follow in order from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_BYTES = _byte_table()


class _BytePieces(dict[int, bytes]):
    """Byte-level vocabularies (GPT-2, Llama 3, Qwen): each id is a run of bytes."""

    def __init__(self, symbol: Callable[[int], str | None]) -> None:
        self._symbol = symbol

    def __missing__(self, token: int) -> bytes:
        symbol = self._symbol(token) or ""
        try:
            piece = bytes(_BYTES[character] for character in symbol)
        except KeyError:  # an added token with a character outside the table stands for itself
            piece = symbol.encode()
        self[token] = piece
        return piece

    def stream(self) -> _Strategy:
        return _ByteStream(self)


class _ByteStream:
    __slots__ = ("_decode", "_pieces")

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, ids: Sequence[int]) -> str:
        pieces = self._pieces
        return self._decode(b"".join([pieces[token] for token in ids]))

    def close(self) -> str:
        return self._decode(b"", True)


class _TextPieces(dict[int, "str | int | None"]):
    """Vocabularies of text, where a byte token such as `<0x0A>` stands for one byte (an int).

    An id outside the vocabulary has no piece (None). ``strip`` counts the spaces taken from the
    very beginning of the text.
    """

    def __init__(
        self,
        symbol: Callable[[int], str | None],
        replaced: Sequence[tuple[str, str]] = (),
        byte_fallback: bool = False,
        strip: int = 0,
    ) -> None:
        self._symbol, self._replaced = symbol, tuple(replaced)
        self._byte_fallback, self.strip = byte_fallback, strip

    def __missing__(self, token: int) -> str | int | None:
        symbol = self._symbol(token)
        piece: str | int | None = symbol
        if symbol is not None:
            for old, new in self._replaced:
                symbol = symbol.replace(old, new)
            match = _BYTE_TOKEN.fullmatch(symbol) if self._byte_fallback else None
            piece = int(match[1], 16) if match else symbol
        self[token] = piece
        return piece

    def stream(self) -> _Strategy:
        return _TextStream(self)


class _TextStream:
    """Bytes wait for the end of their run: one that is not UTF-8 becomes one U+FFFD a byte."""

    __slots__ = ("_pieces", "_run", "_strip")

    def __init__(self, pieces: _TextPieces) -> None:
        self._pieces, self._strip = pieces, pieces.strip
        self._run = bytearray()

    def push(self, ids: Sequence[int]) -> str:
        out = []
        for token in ids:
            piece = self._pieces[token]
            if isinstance(piece, int):
                self._run.append(piece)
            elif piece is not None:
                if self._run:
                    out.append(self._flush())
                out.append(piece)
        text = "".join(out)
        return self._without_margin(text) if self._strip else text

    def close(self) -> str:
        text = self._flush()
        return self._without_margin(text) if self._strip else text

    def _flush(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(run)

    def _without_margin(self, text: str) -> str:
        while self._strip and text.startswith(" "):
            text, self._strip = text[1:], self._strip - 1
        if text:
            self._strip = 0
        return text


class _WindowStream:
    """Any other tokenizer: decodes a short window again and delivers what is new in it."""

    __slots__ = ("_decode", "_ids", "_read")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._read = 0

    def push(self, ids: Sequence[int]) -> str:
        out = []
        for start in range(0, len(ids), _PATIENCE):
            self._ids.extend(ids[start : start + _PATIENCE])
            out.append(self._advance(len(self._ids) - self._read > _PATIENCE))
        return "".join(out)

    def _advance(self, force: bool) -> str:
        old = self._decode(self._ids[: self._read]) if self._read else ""
        new = self._decode(self._ids)
        if not force and (new.endswith(REPLACEMENT) or not new.startswith(old)):
            return ""
        self._ids = self._ids[max(0, min(self._read, len(self._ids) - _CONTEXT)) :]
        self._read = len(self._ids)
        return new[len(old) :]

    def close(self) -> str:
        return self._advance(True) if self._read < len(self._ids) else ""


class StreamDecoder:
    """Text of a growing sequence of ids, in pieces that never have to be taken back.

    The concatenation of everything given by :meth:`push` and :meth:`close` equals
    ``tokenizer.decode`` of all ids. That is exact for byte-level vocabularies, for plain symbols,
    and for text vocabularies with byte fallback, and checked for each tokenizer when it is
    loaded; for decoders that look further than a few tokens around it is best effort.

    Args:
        tokenizer: any :class:`Tokenizer`; a faster path is used if it has ``pieces``.
    """

    __slots__ = ("_strategy", "close", "push")

    #: Takes new ids, gives the text that is settled by them.
    push: Callable[[Sequence[int]], str]
    #: Ends the sequence, gives the text that was held back.
    close: Callable[[], str]

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces: Pieces | None = getattr(tokenizer, "pieces", None)
        strategy = pieces.stream() if pieces is not None else _WindowStream(tokenizer.decode)
        self.push, self.close = strategy.push, strategy.close


def pieces_of(
    decoder: Mapping[str, Any] | None,
    symbol: Callable[[int], str | None],
    decode: Callable[[Sequence[int]], str],
    size: int,
) -> Pieces | None:
    """The way to decode id by id for the decoder of a `tokenizer.json`, None if there is none.

    Args:
        decoder: its ``decoder`` object.
        symbol: the vocabulary's symbol of an id.
        decode: the tokenizer's own decoding, which the result is checked against.
        size: number of ids.
    """
    pieces = _recognise(decoder, symbol)
    if pieces is None or size == 0:
        return pieces
    chooser = random.Random(0)
    for length in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
        ids = [chooser.randrange(size) for _ in range(length)]
        stream = pieces.stream()
        text = "".join(stream.push([token]) for token in ids) + stream.close()
        if text != decode(ids):
            return None
    return pieces


def _recognise(
    decoder: Mapping[str, Any] | None, symbol: Callable[[int], str | None]
) -> Pieces | None:
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _BytePieces(symbol)
    replaced: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace":
        pattern = steps[0]["pattern"].get("String")
        if pattern is None:
            return None
        replaced.append((pattern, steps[0]["content"]))
        steps = steps[1:]
    fallback = bool(steps) and steps[0]["type"] == "ByteFallback"
    steps = steps[1:] if fallback else steps
    kinds = [step["type"] for step in steps]
    strip = 0
    if kinds == ["Fuse", "Strip"] and steps[1]["content"] == " " and steps[1]["stop"] == 0:
        strip = int(steps[1]["start"])
    elif kinds != ["Fuse"]:
        return None
    return _TextPieces(symbol, replaced, fallback, strip)
