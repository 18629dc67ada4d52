r"""Finds the final answer in a text: boxes, closing phrases, last numbers.

The text is what a model wrote after the prompt, as :mod:`anabranch.grading.sources` cuts it. A step
either finds an answer, finds nothing (the next step is tried), or finds one that was cut off, which
ends the search: half an answer is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from anabranch.grading.latex import closing_of
from anabranch.grading.rules import Rules, Step

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_FINAL = re.compile(r"\**\s*final\s+answer\s*(?:\**\s*:\s*\**|\*\*)", re.I)
_THE_ANSWER = re.compile(
    r"(?:final\s+)?answer(?:\s+(?:is|was|would\s+be|will\s+be|equals|=)\s*:?|\s*:)\s*", re.I
)
_HOPE = re.compile(r"[.\s]*I hope (?:it|this) is correct.*$", re.S | re.I)
_HASHES = re.compile(r"^\s*####[ \t]*(.*)$", re.M)
_TAIL_TOKEN = re.compile(r"<\|[a-z_]+\|>.*$", re.S)
_MATH = re.compile(
    r"(?<!\\)\$\$(?P<a>.+?)(?<!\\)\$\$|(?<!\\)\$(?P<b>(?:\\.|[^$\\\n])+?)\$"
    r"|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]",
    re.S,
)
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:\\?\$|€|£)?\s?[-+]?(?:\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d)|\d+)?"
    r"(?:[.,]\d+)?(?:\s*/\s*\d+)?(?:\s*\\?%)?"
)
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z][A-Za-z'’]+(?!\w*\s*[=(\[_^])")
_TEXT = re.compile(r"\\[a-z]*text[a-z]*\s*\{[^{}]*\}|\\[a-zA-Z]+")
_JOINING = re.compile(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|,|;")
_RETHINKING = re.compile(
    r"(?<![A-Za-z])(?:wait|no|not|so|thus|hence|rather|instead|actually|then|finally|but|therefore|"
    r"correct|answer|check\w*)(?![A-Za-z])",
    re.I,
)
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "ln",
        "log",
        "exp",
        "sqrt",
        "pi",
        "frac",
        "and",
        "or",
        "inf",
        "infty",
    ]
)
_MAX_GAP_WORDS = 4


@dataclass(frozen=True)
class Extracted:
    """An answer and the step that found it; ``answer`` None where there is none, and why."""

    answer: str | None
    step: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Box:
    r"""One ``\boxed{…}``: its place and content; ``content`` None where it is never closed."""

    start: int
    end: int
    content: str | None


def boxes(text: str) -> list[Box]:
    r"""All boxes, in order; nested ones count as the outer. A ``\boxed`` without brace is none."""
    found: list[Box] = []
    at = 0
    while match := _BOX.search(text, at):
        at = match.end()
        if not text.startswith("{", at):
            continue
        end = closing_of(text, at)
        if end is None:
            found.append(Box(match.start(), len(text), None))
            break
        found.append(Box(match.start(), end + 1, text[at + 1 : end]))
        at = end + 1
    return found


def extract(text: str, rules: Rules) -> Extracted:
    """The final answer of a text.

    Args:
        text: what the model wrote, or a bare answer.
        rules: which steps are tried, in order.
    """
    text = _TAIL_TOKEN.sub("", text)
    if not text.strip():
        return Extracted(None, reason="the answer is empty")
    for step in _order(text, rules.steps):
        found = _STEPS[step](text)
        if found is not None:
            return found
    return Extracted(None, reason=f"no answer found by {', '.join(rules.steps)}")


def _order(text: str, steps: tuple[Step, ...]) -> list[Step]:
    """The steps as given, but of a box and a closing phrase the later in the text comes first, and
    of the last formula and the last number likewise."""
    order = list(steps)
    pairs: tuple[tuple[Step, Step, re.Pattern[str], re.Pattern[str]], ...] = (
        ("boxed", "final_answer", _BOX, _FINAL),
        ("math", "last_number", _MATH, _DIGIT),
    )
    for one, other, pattern, rival in pairs:
        if one not in order or other not in order or order.index(one) > order.index(other):
            continue
        ends = [match.end() for match in pattern.finditer(text)]
        if ends and rival.search(text, ends[-1]):
            first, second = order.index(one), order.index(other)
            order[first], order[second] = other, one
    return order


def _boxed(text: str) -> Extracted | None:
    found = boxes(text)
    if not found:
        return None
    if found[-1].content is None:
        return Extracted(None, "boxed", "the last box is never closed")
    whole = [box for box in found if box.content is not None]
    group = [whole[-1]]
    for box in reversed(whole[:-1]):
        if not _joined(text[box.end : group[0].start]):
            break
        group.insert(0, box)
    contents = [str(box.content).strip() for box in group]
    contents = list(dict.fromkeys(contents))
    if not any(contents):
        return Extracted(None, "boxed", "the last box is empty")
    suffix = _percent_behind(text, group[-1].end) if len(contents) == 1 else ""
    return Extracted(", ".join(c for c in contents if c) + suffix, "boxed")


def _joined(gap: str) -> bool:
    """Whether the text between two boxes makes them one list."""
    if "\n\n" in gap.strip() or re.search(r"[.!?]\s", gap):
        return False
    plain = re.sub(r"\\text[a-z]*\s*\{([^{}]*)\}|\\[a-zA-Z]+", r" \1 ", gap)
    if not plain.strip(" $\\()[]{}\n"):
        return len(gap.strip()) < 12
    words = re.findall(r"[A-Za-z]{2,}", plain)
    return (
        len(words) <= _MAX_GAP_WORDS
        and bool(_JOINING.search(plain))
        and not _RETHINKING.search(plain)
    )


def _percent_behind(text: str, at: int) -> str:
    match = re.compile(r"[$\s]{0,3}(?:\\?%|percent|pct)(?![a-z])", re.I).match(text, at)
    return "%" if match else ""


def _final_answer(text: str) -> Extracted | None:
    found = list(_FINAL.finditer(text))
    if not found:
        return None
    rest = _HOPE.sub("", text[found[-1].end() :]).strip().lstrip("*").strip()
    line = next((line for line in rest.split("\n") if line.strip()), "")
    if not line:
        return Extracted(None, "final_answer", "nothing follows the final answer's mark")
    if match := list(re.finditer(r"\bis:?\s+", line)):
        line = line[match[-1].end() :]
    return _settled(line, "final_answer")


def _answer_is(text: str) -> Extracted | None:
    text = _HOPE.sub("", text)
    found = list(_THE_ANSWER.finditer(text))
    if not found:
        return None
    rest = text[found[-1].end() :].strip()
    paragraph = re.split(r"\n\s*\n", rest)[0].strip()
    if not paragraph or len(paragraph) > 400:
        return None
    sentence = re.split(r"(?<=[^\d\s])\.\s+(?=[A-Z])|\.\s*$|\n", paragraph)[0]
    return _settled(sentence, "answer_is")


def _settled(line: str, step: str) -> Extracted | None:
    """The answer in a line that is known to hold it."""
    line = re.sub(r"\\?[\"“”]", "", line).strip().strip("*").strip()
    found = list(_MATH.finditer(line))
    if found:
        pieces = [_inner(m) for m in found]
        gaps = [line[a.end() : b.start()] for a, b in pairwise(found)]
        alone = not (line[: found[0].start()] + line[found[-1].end() :]).strip(" .,")
        if alone and len(pieces) == 1:
            return Extracted(pieces[0], step)
        if gaps and all(_joined(gap) and gap.strip() for gap in gaps):
            return Extracted(", ".join(pieces), step)
        if len(_words(_MATH.sub(" ", line))) <= 3:
            return Extracted(line, step) if _starts_with_math(line) else Extracted(pieces[-1], step)
        return Extracted(pieces[-1] if step == "final_answer" else pieces[0], step)
    if len(_words(line)) <= 3:
        return Extracted(line.rstrip("."), step)
    number = _numbers(line)
    if number:
        return Extracted(number[0] if step == "answer_is" else number[-1], step)
    return Extracted(line.rstrip("."), step) if len(line) <= 80 else None


def _starts_with_math(line: str) -> bool:
    return bool(re.match(r"\s*(?:\$|\\|[\d(\[+-])", line))


def _hashes(text: str) -> Extracted | None:
    found = _HASHES.findall(text)
    if not found:
        return None
    if not found[-1].strip():
        return Extracted(None, "hashes", "nothing follows ####")
    return Extracted(found[-1].strip(), "hashes")


def _bare(text: str) -> Extracted | None:
    """A text that is nothing but an answer, perhaps with a unit or one word before it."""
    stripped = text.strip().strip("*").strip()
    if "\n\n" in stripped:
        return None
    spans = list(_MATH.finditer(stripped))
    if spans:
        before = _words(stripped[: spans[0].start()])
        outside = _words(_MATH.sub(" ", stripped))
        return Extracted(stripped, "bare") if not before and len(outside) <= 4 else None
    words = _words(stripped)
    if len(words) > 3:
        return None
    leading = re.match(r"[A-Za-z]{2,}(?![\w\\]*\s*[=(\[_^{])", stripped)
    if leading and re.search(r"\d", stripped) and leading[0].casefold() not in _FUNCTIONS:
        return None if re.search(r"\s", stripped) else Extracted(stripped, "bare")
    return Extracted(stripped, "bare")


def _words(text: str) -> list[str]:
    plain = _TEXT.sub(" ", text)
    return [w for w in _WORD.findall(plain) if w.casefold() not in _FUNCTIONS]


def _math(text: str) -> Extracted | None:
    found = [m for m in _MATH.finditer(_HOPE.sub("", text)) if _inner(m).strip()]
    return Extracted(_inner(found[-1]), "math") if found else None


def _inner(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _last_number(text: str) -> Extracted | None:
    found = _numbers(text)
    return Extracted(found[-1], "last_number") if found else None


def _numbers(text: str) -> list[str]:
    """Numbers with their money sign, fraction and percent; a lone comma or point is none."""
    plain = text.replace("**", " ").replace("\\!", "")
    found = (m[0].strip() for m in _NUMBER.finditer(plain) if any(c.isdigit() for c in m[0]))
    return [number for number in found if number]


_STEPS: dict[Step, Callable[[str], Extracted | None]] = {
    "boxed": _boxed,
    "final_answer": _final_answer,
    "hashes": _hashes,
    "answer_is": _answer_is,
    "bare": _bare,
    "math": _math,
    "last_number": _last_number,
}


def gold_answer(text: str) -> str:
    """The answer in a gold: whole solutions are read like predictions, anything else is kept."""
    found = _boxed(text) or _hashes(text)
    if found is not None and found.answer is not None:
        return found.answer
    if found is not None and found.step == "boxed" and text.rstrip()[-1] != "}":
        # A gold may have lost its end; what a model cut off is no answer, what a file lost is.
        return text[text.rindex("boxed{") + 6 :] if "boxed{" in text else text
    return text
