r"""What an answer says: a number, words, a list, a tuple, an interval, a matrix, a named value.

:func:`readings` gives every sensible reading of a text, the most likely first: ``1,234`` is a
number and a list of two. Expressions are kept as text; their algebra is in
:mod:`anabranch.grading.algebra`, comparison in :mod:`anabranch.grading.compare`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from anabranch.grading.latex import closing_of, enclosed, normalised, split_top, top_level
from anabranch.grading.numbers import Number, read_number

SeqKind = Literal["list", "set", "tuple"]


@dataclass(frozen=True)
class Expression:
    """Something with variables, roots or operators, as normalised text."""

    text: str


@dataclass(frozen=True)
class Words:
    """A word, a name, a choice letter."""

    text: str


@dataclass(frozen=True)
class Sequence:
    """Several values. A ``list`` has no brackets of its own; only a ``tuple`` has an order."""

    kind: SeqKind
    items: tuple[Value, ...]


@dataclass(frozen=True)
class Interval:
    """An interval; a tuple of two in round brackets is read as a :class:`Sequence` first."""

    low: Value
    high: Value
    closed_low: bool
    closed_high: bool
    #: The inequality that it was read from.
    relation: str = field(default="", compare=False)


@dataclass(frozen=True)
class Union:
    """Several sets joined."""

    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Ratio:
    """``a:b``; ``clock`` where it may as well be a time of day."""

    items: tuple[Value, ...]
    clock: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Named:
    """``name = value``; a chain of equal signs counts by its last member."""

    name: str
    value: Value


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is no named value, as normalised text."""

    text: str


Value = (
    Number | Expression | Words | Sequence | Interval | Union | Matrix | Ratio | Named | Relation
)

_SEPARATOR = re.compile(
    r"\s*(?:[,;]\s*(?:\\text\{\s*(?:and|or)\s*\}|(?:and|or)(?![a-zA-Z]))?"
    r"|\\text\{\s*[,;]?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"
    r"|(?<=\d)(?:and|or)(?![a-z]))\s*"
)
_SEMICOLON = re.compile(";")
_COMMA = re.compile(",")
_EQUALS = re.compile(r"(?<![<>!:])=(?!=)")
_LAST_EQUALS = re.compile(r"(?<![<>!:])=(?!=)|\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])")
_ORDER = re.compile(r"<|>|\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])")
_RELATIONS = re.compile(r"<|>|\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|\\equiv")
_IN = re.compile(r"^\s*\(?[A-Za-z](?:_\w)?\)?\s*\\in(?![a-zA-Z])\s*")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_COLON = re.compile(r":")
_CLOCK = re.compile(r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?")
_MATRIX = re.compile(
    r"^\(?\s*\\begin\{([a-zA-Z]*matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}\s*\)?$", re.S
)
_BRACKETED_MATRIX = re.compile(r"^\[\s*(\\begin\{array\}.*\\end\{array\})\s*\]$", re.S)
_WORDS = re.compile(r"(?:[A-Za-z][A-Za-z'’.-]*)(?:[\s,-]+[A-Za-z'’.-]+)*")
#: Letters and digits in one word, such as an encoded text: no product of variables.
_CODE = re.compile(r"(?=(?:\d*[A-Z]){4})(?=.*\d)[A-Z0-9]{5,}")
_CHOICE = re.compile(r"^\(?\s*(?:\\text\s*\{\s*)?\(?([A-Z])(?:\)|:|\.(?=\s))\s*\}?\s*(.*)$", re.S)
_QUANTIFIED = re.compile(r"\\(?:forall|exists)(?![a-zA-Z])")
#: ``1000,99`` and ``0,111``; ``1,234`` is a number with thousands.
_DECIMAL_COMMA = re.compile(r"[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))")
_MAX_ITEMS = 200
_MAX_DEPTH = 6


@lru_cache(maxsize=2048)
def readings(answer: str) -> tuple[Value, ...]:
    """Every sensible reading of an answer, the likeliest first; empty where nothing is said."""
    text = normalised(answer)
    if not text:
        return ()
    found = [_read(text, 0)]
    if "," in text and isinstance(found[0], Number):
        items = split_top(text, _SEPARATOR)
        found.append(Sequence("list", tuple(_read(item.strip(), 1) for item in items)))
    if _DECIMAL_COMMA.fullmatch(text) and (decimal := read_number(text.replace(",", "."))):
        found.append(decimal)
    if isinstance(found[0], Expression | Ratio) and (choice := _choice(text)):
        found.append(choice)
    return tuple(found)


def _choice(text: str) -> Words | None:
    match = _CHOICE.match(text)
    return Words(match[1]) if match and not _EQUALS.search(text) else None


def _read(text: str, depth: int) -> Value:
    text = text.strip()
    if (number := read_number(text)) is not None:
        return number
    if depth > _MAX_DEPTH or not text:
        return Expression(text)
    if text.startswith("{") and closing_of(text, 0) == len(text) - 1:
        # Plain braces are invisible in LaTeX.
        return _read(text[1:-1], depth + 1)
    if _QUANTIFIED.search(text):
        return Relation(text)
    for reader in (_matrix, _list, _membership, _relation, _brackets, _ratio):
        found = reader(text, depth)
        if found is not None:
            return found
    return _words_or_expression(text)


def _words_or_expression(text: str) -> Value:
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    if "\\" not in plain and (_WORDS.fullmatch(plain.strip()) or _CODE.fullmatch(plain.strip())):
        return Words(" ".join(plain.split()))
    choice = _choice(text)
    if choice is not None and "\\" not in plain and re.search(r"[A-Za-z]{3}|^\(.\)$", plain):
        return choice
    return Expression(text)


def _list(text: str, depth: int) -> Value | None:
    groups = split_top(text, _SEMICOLON)
    if len(groups) > 1 and all(len(split_top(group, _COMMA)) > 1 for group in groups):
        # p=5,q=2; p=7,q=2: one tuple a group.
        return Sequence("list", tuple(_grouped(group, depth) for group in groups))
    items = [item.strip() for item in split_top(text, _SEPARATOR)]
    items = [item for item in items if item]
    if len(items) < 2 or len(items) > _MAX_ITEMS:
        return _plus_minus(text, depth)
    values: list[Value] = []
    for item in items:
        value = _read(item, depth + 1)
        inner = value.value if isinstance(value, Named) else value
        if isinstance(inner, Sequence) and inner.kind == "list":
            values.extend(inner.items)
        else:
            values.append(value)
    return Sequence("list", tuple(values))


def _grouped(text: str, depth: int) -> Value:
    value = _read(text, depth + 1)
    if not isinstance(value, Sequence) or value.kind != "list":
        return value
    return Sequence("tuple", tuple(v.value if isinstance(v, Named) else v for v in value.items))


def _plus_minus(text: str, depth: int) -> Value | None:
    if "\\pm" not in text:
        return None
    pattern = re.compile(r"\\(pm|mp)(?![a-zA-Z])\s*")
    if "=" in text:
        return None
    if enclosed(text) or text.startswith("\\{"):
        return None
    plus = pattern.sub(lambda m: "+" if m[1] == "pm" else "-", text)
    minus = pattern.sub(lambda m: "-" if m[1] == "pm" else "+", text)
    both = [re.sub(r"^\+|(?<=\{)\+", "", sign) for sign in (plus, minus)]
    return Sequence("list", tuple(_read(sign, depth + 1) for sign in both))


def _matrix(text: str, depth: int) -> Value | None:
    if "\\begin" not in text:
        return None
    if match := _BRACKETED_MATRIX.match(text):
        text = match[1]
    match = _MATRIX.match(text)
    if not match or "\\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
    cells = [[cell.strip() for cell in row.replace("\\hline", "").split("&")] for row in rows]
    if not cells or sum(map(len, cells)) > _MAX_ITEMS:
        return None
    return Matrix(tuple(tuple(_read(normalised(cell), depth + 1) for cell in r) for r in cells))


def _membership(text: str, depth: int) -> Value | None:
    match = _IN.match(text)
    return _read(text[match.end() :], depth + 1) if match else None


def _relation(text: str, depth: int) -> Value | None:
    if not any(
        sign in text for sign in ("=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx", "\\equiv")
    ):
        return None
    places = set(top_level(text))
    if any(m.start() in places for m in _RELATIONS.finditer(text)):
        interval = _interval_of(text, depth)
        return replace(interval, relation=text) if interval else Relation(text)
    members = [part.strip() for part in split_top(text, _LAST_EQUALS)]
    if len(members) < 2:
        return None
    if not is_name(members[0]) and not _has_constant(members):
        return Relation(text)
    return Named(_name(members[0]), _read(members[-1], depth + 1))


def is_name(text: str) -> bool:
    """Whether the left side of an equation only names what the right side is."""
    text = re.sub(r"\\text\s*\{[^{}]*\}", "T", text.strip())
    stripped = re.sub(r"_\{[^{}]*\}|_\w|\\[A-Za-z]+|\([A-Za-z0-9, ]*\)|'", "", text)
    if re.search(r"[\d+*^-]", stripped):
        return False
    return bool(text) and not re.search(r"\\(?:sin|cos|tan|log|ln|sqrt|int|sum|cdot|times)", text)


def _has_constant(members: list[str]) -> bool:
    """Whether a chain of equal signs counts by its last member: ``1 = x = 0``, ``3 + 4 = 7``."""
    letters = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
    return any(map(is_name, members[1:-1])) or not any(map(letters.search, members))


def _name(text: str) -> str:
    text = re.sub(r"_\{\s*([^{}]*?)\s*\}", r"_\1", text)
    return re.sub(r"\s+", "", text.replace("\\text", "").replace("{", "").replace("}", ""))


def _interval_of(text: str, depth: int) -> Interval | None:
    """``a < x \\le b`` and ``x > a`` as intervals of one named value."""
    signs = [m[0] for m in _ORDER.finditer(text)]
    parts = [part.strip() for part in split_top(text, _ORDER)]
    if len(parts) != len(signs) + 1 or len(parts) > 3 or "=" in text or "\\ne" in text:
        return None
    up = {"<": False, "\\le": True}
    down = {">": False, "\\ge": True}
    if all(sign in down for sign in signs):
        parts, signs = parts[::-1], [{">": "<", "\\ge": "\\le"}[s] for s in signs[::-1]]
    if not signs or not all(sign in up for sign in signs):
        return None
    if len(parts) == 3:
        if not is_name(parts[1]):
            return None
        return _between(parts[0], parts[2], up[signs[0]], up[signs[1]], depth)
    if is_name(parts[0]) and not is_name(parts[1]):
        return _between("-\\infty", parts[1], False, up[signs[0]], depth)
    if is_name(parts[1]) and not is_name(parts[0]):
        return _between(parts[0], "\\infty", up[signs[0]], False, depth)
    return None


def _between(low: str, high: str, closed_low: bool, closed_high: bool, depth: int) -> Interval:
    return Interval(_read(low, depth + 1), _read(high, depth + 1), closed_low, closed_high)


def _brackets(text: str, depth: int) -> Value | None:
    if "\\cup" in text:
        parts = split_top(text, _CUP)
        if len(parts) > 1:
            return Union(tuple(_read(part, depth + 1) for part in parts))
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        if "\\{" not in inner and not re.search(r"\\mid|\||:", inner):
            return Sequence("set", _items(inner, depth))
    if not enclosed(text):
        return None
    items = [item.strip() for item in split_top(text[1:-1], re.compile(r"[,;]"))]
    square = (text[0] == "[", text[-1] == "]")
    if len(items) == 1:
        return _read(items[0], depth + 1) if square == (False, False) else None
    values = tuple(_read(item, depth + 1) for item in items)
    if len(items) == 2 and any(square):
        return Interval(values[0], values[1], *square)
    if square in ((False, False), (True, True)):
        return Sequence("tuple", values)
    return None


def _items(text: str, depth: int) -> tuple[Value, ...]:
    if not text.strip():
        return ()
    value = _read(text, depth + 1)
    if isinstance(value, Sequence) and value.kind == "list":
        found: list[Value] = []
        for item in value.items:
            found.extend(
                item.items if isinstance(item, Sequence) and item.kind == "list" else (item,)
            )
        return tuple(found)
    return (value,)


def _ratio(text: str, depth: int) -> Value | None:
    if ":" not in text:
        return None
    parts = split_top(text, _COLON)
    if len(parts) < 2 or not all(part.strip() for part in parts):
        return None
    return Ratio(tuple(_read(part, depth + 1) for part in parts), bool(_CLOCK.fullmatch(text)))
