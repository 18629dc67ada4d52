"""The values that a text derives and those that it uses: what leaks and repetitions are found by.

Values are numbers (not the trivial ones: whole numbers up to 10), named values such as `a5`, and
equations. A value is a *result* where it stands behind `=` or a word like "gives"; behind a word
like "is" it may be one or be given; any other occurrence *uses* it. Words are known in English and
a few in Chinese; signs and digits of any script are read. This reads maths as it is written, not
what it means: a value said in words, or the same value in another form, is not seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

#: Whole numbers up to this are everywhere and say nothing.
TRIVIAL = 10

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_FRACTION = rf"\\[dt]?frac\s*\{{\s*-?{_NUMBER}\s*\}}\s*\{{\s*-?{_NUMBER}\s*\}}"
_VALUE = re.compile(
    rf"(?P<frac>{_FRACTION})|(?P<name>(?<![A-Za-z\\\d])[A-Za-z]\d+(?![\w(]))"
    # Other scripts have no spaces around numbers, so that only Latin letters make a word of one.
    rf"|(?P<num>(?<![A-Za-z\d_.,]){_NUMBER}(?:\s*/\s*{_NUMBER})?)"
)
_GAP = r"[\s：$\\({:*!\[]*(?:boxed\{|text\{|mathbf\{)?[\s$€£-]*$"
_NAMED = re.compile(r"[A-Za-z]\d+")
#: Words and signs behind which a result stands.
_RESULT = re.compile(
    r"(?:=|＝|≈|≡|→|⇒|⟹|等于|得到?|一?共有?|总共|答案是?|\\(?:approx|to|implies|Rightarrow|equiv)\b|\b(?:equals?|gives?|giving|gets?|got"
    r"|makes?|made|making|totals?|totall?ing|yield(?:s|ing)?|becom(?:es?|ing)|leaves?|leaving"
    r"|therefore|thus|answer|result|results? in|resulting in|or|at"
    r"|(?:sum(?:s|ming)?|adds? up|adding up|comes?|amounts?|reduces?|simplif(?:y|ies)) to"
    r"|(?:answer|result|total|sum|cost) (?:is|of|be|at)))" + _GAP,
    re.I,
)
#: What is there for a reason is used.
_REASON = re.compile(r"\b(?:since|because|as|given|knowing)\s[^.,;:=]*$", re.I)
_WORKED = re.compile(r"[-+*/×·(]")
#: Behind a number that is a factor: 2G, 3(4 + 5).
_FACTOR = re.compile(r"[A-Z(]")
#: What is there is given.
_COUNTED = re.compile(r"\bthere (?:is|are|was|were)\b\W*$", re.I)
#: Behind a sign of equality, further into what is worked out there.
_WITHIN = re.compile(
    r"[=＝][\s\d.,+\-−*/×·÷()$€£%{}\\]*(?:\b[a-zA-Z]\b[\s\d.,+\-−*/×·÷()$%]*){0,3}$"
)
#: A quotient that is worked out right behind it.
_WORKED_OUT = re.compile(r"\s*\)?\s*[=*×·]")
#: Words behind which a result may stand, or something given.
_STATED = re.compile(
    r"(?:[是为有剩]|\b(?:is|are|was|were|has|have|of|about|approximately|exactly|so|earns?|spends?|costs?|needs?"
    r"|pays?|sells?|takes?|only|another|remaining)\b)" + _GAP,
    re.I,
)
_EQUATION = re.compile(
    r"(?<![^\s=,;:.!?<>$])([^\s=,;:.!?<>$]{1,40}(?:\s?[-+*/×·]\s?[^\s=,;:.!?<>$]{1,20}){0,6})"
    rf"\s?=\s?[$€£]?(-?{_NUMBER})(?![\d.,]*[A-Z(])"
)


@dataclass(frozen=True, slots=True)
class Value:
    """One occurrence.

    Attributes:
        text: the value in one form (`1,200.50` is `1200.5`).
        start, end: offsets.
        result: whether it stands where a result stands.
        stated: whether it does, or stands where it may be a result or something given.
    """

    text: str
    start: int
    end: int
    result: bool
    stated: bool


# A block has up to 50 branches, and each check looks at all of them; more would only hold memory.
@lru_cache(maxsize=64)
def values(text: str) -> tuple[Value, ...]:
    """All values of a text but the trivial ones, in order; parts of fractions by themselves too."""
    found = []
    for match in _VALUE.finditer(text):
        if match.end() - match.start() == 1:
            continue
        name = _normal(match)
        if not trivial(name):
            found.append(_value(match, name))
        if "/" in name:
            found += _parts(match)
    for match in _EQUATION.finditer(text):
        left, right = "".join(match[1].split()), match[2].replace(",", "")
        if len(left) > 1 and _WORKED.search(left):
            found.append(Value(f"{left}={right}", match.start(), match.end(), True, True))
    found.sort(key=lambda value: value.start)
    return tuple(found)


def conclusions(text: str) -> Iterator[Value]:
    """Where numbers are stated, in order, the trivial ones too, not how many there are."""
    for match in _VALUE.finditer(text):
        if match["name"] is None:
            value = _value(match, _normal(match))
            if trivial(value.text) and _FACTOR.match(text, match.end()):
                continue
            before = text[max(0, match.start() - 24) : match.start()]
            if value.stated and (value.result or not _COUNTED.search(before)):
                yield value


def trivial(name: str) -> bool:
    """Whether a value is a whole number that is everywhere."""
    return len(name) <= 2 and name.isdigit() and int(name) <= TRIVIAL


def _value(match: re.Match[str], name: str) -> Value:
    if match["name"] is not None:
        return Value(name, match.start(), match.end(), False, False)
    before = match.string[max(0, match.start() - 48) : match.start()]
    result = _RESULT.search(before) is not None
    stated = result or _is_stated(match, name, before)
    return Value(name, match.start(), match.end(), result, stated)


def _parts(match: re.Match[str]) -> Iterator[Value]:
    before = match.string[max(0, match.start() - 48) : match.start()]
    stated = any(sign.search(before) for sign in (_RESULT, _STATED, _WITHIN))
    for part in re.finditer(_NUMBER, match[0]):
        name = _plain(part[0])
        if not trivial(name):
            start = match.start() + part.start()
            yield Value(name, start, start + len(part[0]), False, stated)


def _is_stated(match: re.Match[str], name: str, before: str) -> bool:
    if _WITHIN.search(before) or (_STATED.search(before) and not _REASON.search(before)):
        return True
    return "/" in name and _WORKED_OUT.match(match.string, match.end()) is not None


@lru_cache(maxsize=64)
def first_uses(text: str) -> Mapping[str, Value]:
    """The first occurrence of each value."""
    found: dict[str, Value] = {}
    for value in values(text):
        found.setdefault(value.text, value)
    return found


def names(text: str) -> frozenset[str]:
    """All values that occur in a text."""
    return frozenset(value.text for value in values(text))


def derived(text: str, known: Container[str] = ()) -> dict[str, Value]:
    """Values that a text brings in: new to it, and derived or named where they first stand."""
    return {
        name: value
        for name, value in first_uses(text).items()
        if (value.result or named(name)) and name not in known
    }


def named(name: str) -> bool:
    """Whether a value is a name with a number, such as `a5`."""
    return name[0].isalpha() and _NAMED.fullmatch(name) is not None


def _normal(match: re.Match[str]) -> str:
    if match["name"]:
        return match["name"]
    if match["frac"]:
        numbers = re.findall(_NUMBER, match["frac"])
        return "/".join(_plain(number) for number in numbers)
    return "/".join(_plain(part.strip()) for part in match["num"].split("/"))


def _plain(number: str) -> str:
    text = number.replace(",", "")
    if not text.isascii():
        text = "".join(str(unicodedata.digit(c)) if c.isdigit() else c for c in text)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    text = text.lstrip("0")
    return text if text[:1].isdigit() else f"0{text}"
