r"""Reads plain numbers exactly: integers, decimals, fractions, mixed numbers, powers of ten, with
what stands around them (money, percent, degrees, units, a base).

A :class:`Number` keeps how it was written, because a decimal is a rounded value and an integer is
not. Expressions (roots, variables) are no numbers here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_PLAIN = re.compile(rf"([+-]?)\s*({_DIGITS})?(?:\.(\d*))?")
_SCIENCE = re.compile(
    r"([+-]?\s*\d+(?:\.\d*)?)\s*(?:(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*"
    r"(?:\{\s*([+-]?\d{1,3})\s*\}|([+-]?\d{1,3}))|[eE]([+-]?\d{1,3})(?![\d.]))"
)
_POWER = re.compile(r"([+-]?)10\^\{?([+-]?\d{1,3})\}?")
_FRACTION = re.compile(
    r"([+-]?)\s*(?:\\frac\s*\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}|(\d+)\.?\s*/\s*(\d+)\.?)"
)
_MIXED = re.compile(r"([+-]?)\s*(\d+)\s*(?:\\frac\s*\{(\d+)\}\s*\{(\d+)\}|\s(\d+)/(\d+))")
_MONEY = re.compile(r"^([+-]?)\s*(?:\$|€|£|USD\s|US\$)\s*(?=[\d.])")
_MONEY_AFTER = re.compile(r"\s*(?:\$|€|£)$")
_PERCENT = re.compile(r"\s*(?:%|\\?text\{\s*(?:percent|pct)\.?\s*\}|percent|pct)$", re.I)
_DEGREE = re.compile(r"\s*\^\s*\\circ\s*([CF]?)$")
_BASE = re.compile(r"^([0-9A-Z]+)_(?:\{\s*(\d+)\s*\}|(\d+)|\{?\\text\{\s*(\w+)\s*\}\}?)$")
_UNIT = re.compile(
    r"\s*(?:\\text\{([^{}]*)\}|(?<=[\s\d})])((?:[A-Za-z]{3,}|cm|mm|km|kg|mg|ml|mL|ft|in|st|nd|rd|th)"
    r"(?:[ /-][A-Za-z]+){0,4}|m(?=\^)|(?<=\s)m(?=\s*$)))\s*(\^\s*\{?[-\d]+\}?)?\s*$"
)
_NOT_UNITS = frozenset(
    [
        "pi",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "sqrt",
        "alpha",
        "beta",
        "gamma",
        "delta",
        "theta",
        "phi",
        "omega",
        "lambda",
        "mu",
        "sigma",
        "tau",
        "rho",
        "max",
        "min",
        "and",
        "or",
        "mod",
        "if",
        "for",
        "where",
    ]
)
_ALIASES = {
    "in": "inch", "inches": "inch", "ft": "foot", "feet": "foot", "cm": "centimeter",
    "mm": "millimeter", "km": "kilometer", "m": "meter", "kg": "kilogram", "g": "gram",
    "hr": "hour", "hrs": "hour", "min": "minute", "sec": "second", "s": "second",
    "metre": "meter", "centimetre": "centimeter", "kilometre": "kilometer", "degrees": "degree",
    "dollar": "$", "dollars": "$", "usd": "$",
}  # fmt: skip
#: Numbers with more digits are left to string identity.
MAX_DIGITS = 400


@dataclass(frozen=True)
class Number:
    """A number with the way it was written.

    Attributes:
        value: exact, of the digits as written; a percentage keeps its own figure (28 % is 28).
        places: the power of ten of the last digit written, where it was written as a decimal or
            with a power of ten; None for integers and fractions, which are exact.
        digits: how many significant digits were written, for decimals.
        measured: whether it was written with a power of ten.
        percent, unit, base: what stood around it; empty where nothing did.
    """

    value: Fraction
    places: int | None = None
    digits: int = 0
    measured: bool = False
    percent: bool = False
    unit: str = ""
    base: str = ""


def read_number(text: str) -> Number | None:
    """The number that a normalised text is, wholly; None where it is something else."""
    if len(text) > MAX_DIGITS:
        return None
    bare, percent, unit, base = _surroundings(text)
    found = _exact(bare)
    if found is None:
        return None
    value, places, digits, measured = found
    return Number(value, places, digits, measured, percent, unit, base)


def _surroundings(text: str) -> tuple[str, bool, str, str]:
    """The text without money signs, percent, degrees, units and base; and those."""
    unit = ""
    percent = False
    while text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1].strip()
    if match := _BASE.match(text):
        return match[1], False, "", match[2] or match[3] or match[4]
    if match := _MONEY.match(text):
        text, unit = match[1] + text[match.end() :], "$"
    if match := _PERCENT.search(text):
        text, percent = text[: match.start()], True
    elif match := _DEGREE.search(text):
        text, unit = text[: match.start()], "degree" + match[1]
    elif match := _MONEY_AFTER.search(text):
        text, unit = text[: match.start()], "$"
    elif text and text[0] in "+-.0123456789\\({" and (match := _UNIT.search(text)):
        words = (match[1] or match[2] or "").strip().strip(".")
        if words.casefold() not in _NOT_UNITS and not any(c.isdigit() for c in words):
            text, unit = text[: match.start()], unit or _unit(words, match[3] or "")
            if match := _MONEY_AFTER.search(text):
                text = text[: match.start()]
    return text.replace("$", "").strip(), percent, unit, ""


def _unit(words: str, power: str) -> str:
    names = [_ALIASES.get(w, w.rstrip("s") or w) for w in words.casefold().split()]
    return " ".join(_ALIASES.get(n, n) for n in names) + re.sub(r"[\s{}]", "", power)


def unit_matches(one: str, other: str) -> bool:
    """Whether two units may stand for each other: equal, or one was left out."""
    return not one or not other or one == other


@lru_cache(maxsize=4096)
def _exact(text: str) -> tuple[Fraction, int | None, int, bool] | None:
    if match := _PLAIN.fullmatch(text):
        return _decimal(match)
    if not any(char.isdigit() for char in text):
        return None
    if match := _SCIENCE.fullmatch(text):
        mantissa = match[1].replace(" ", "")
        plain = _PLAIN.fullmatch(mantissa)
        inner = _decimal(plain) if plain else None
        if inner is None:
            return None
        power = int(match[2] or match[3] or match[4])
        digits = len(re.sub(r"\D", "", mantissa).lstrip("0")) or 1
        places = (inner[1] if inner[1] is not None else 0) + power
        return inner[0] * Fraction(10) ** power, places, digits, True
    if match := _POWER.fullmatch(text):
        value = Fraction(10) ** int(match[2])
        return (-value if match[1] == "-" else value), None, 0, False
    if match := _FRACTION.fullmatch(text):
        below = int(match[3] or match[5])
        if below == 0:
            return None
        value = Fraction(int(match[2] or match[4]), below)
        return (-value if match[1] == "-" else value), None, 0, False
    if match := _MIXED.fullmatch(text):
        below = int(match[4] or match[6])
        if below == 0:
            return None
        value = int(match[2]) + Fraction(int(match[3] or match[5]), below)
        return (-value if match[1] == "-" else value), None, 0, False
    return None


def _decimal(match: re.Match[str]) -> tuple[Fraction, int | None, int, bool] | None:
    whole, part = (match[2] or "").replace(",", ""), match[3]
    if not whole and not part:
        return None
    value = Fraction(int((whole or "0") + (part or "")), 10 ** len(part or ""))
    if match[1] == "-":
        value = -value
    if not part or not part.strip("0"):
        # 36.00 is the integer 36 with its cents, not a rounded value.
        return value, None, 0, False
    return value, -len(part), len((whole + part).lstrip("0")), False
