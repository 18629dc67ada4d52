r"""One spelling for answers: LaTeX, Unicode and markdown variants become the same text.

Only spelling is changed, never meaning: what a piece of text stands for is read in
:mod:`anabranch.grading.values`. Every pattern is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "≤": r"\le ",
        "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "±": r"\pm ", "∪": r"\cup ",
        "∈": r"\in ", "°": r"^\circ ", "²": "^2", "³": "^3", "\u00a0": " ", "\u202f": " ",
        "\u2009": " ", "’": "'", "√": r"\sqrt ", "≈": r"\approx ", "∅": r"\emptyset ",
        "θ": r"\theta ",
        "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "μ": r"\mu ", "ω": r"\omega ",
    }
)  # fmt: skip
_ENVIRONMENT = re.compile(r"\\begin\{(?:[a-zA-Z]*matrix|array|cases|aligned)\}")
_RENAMED = (
    (re.compile(r",\s*\\!\s*(?=\d)|\{,\}\s*(?=\d)"), ""),
    (
        re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|limits|mathstrut)(?![a-zA-Z])\.?"),
        "",
    ),
    (re.compile(r"(?<!\\)\\[,!;:> ]|\\q?quad(?=[a-z]?_?\b)|\\qq?uad|~|\\hspace\{[^{}]*\}"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(r"\\(?:mbox|hbox|text[a-z]+|mathrm|mathbf|mathit|mathsf|operatorname\*?)\s*\{"),
        r"\\text{",
    ),
    (re.compile(r"\{\\rm\s+"), r"\\text{"),
    (re.compile(r"\\(?:leqslant|leq)(?![a-zA-Z])|<=|=<"), r"\\le "),
    (re.compile(r"\\(?:geqslant|geq)(?![a-zA-Z])|>=|=>"), r"\\ge "),
    (re.compile(r"\\neq(?![a-zA-Z])|!=(?!=)"), r"\\ne "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"(?<=\d)\^\{?\s*\\text\{\s*(?:st|nd|rd|th)\s*\}\s*\}?"), ""),
    (
        re.compile(r"\\degree(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])"),
        r"^\\circ ",
    ),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\cdotp|\\ast(?![a-zA-Z])"), r"\\cdot "),
    (re.compile(r"\\text\{\s*([A-Za-z])\s*\}"), r" \1"),
    (re.compile(r"([_^])\s+(?=[A-Za-z0-9\\{])"), r"\1"),
    (re.compile(r"([_^])\{\s*([A-Za-z0-9])\s*\}"), r"\1\2"),
    (re.compile(r"\s+([_^])"), r"\1"),
)
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*(?=\{))")
_FRAC_TAIL = re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)")
_SHORT_SQRT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")
_CALLED_SQRT = re.compile(r"(?<![a-zA-Z])\\?sqrt\s*\(([^()]*)\)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


def normalised(text: str) -> str:
    """The text in one spelling, without outer dollar signs, markdown and closing punctuation."""
    text = text.translate(_UNICODE) if not text.isascii() else text
    if "\\\\" in text and not _ENVIRONMENT.search(text):
        text = re.sub(r"\\\\+(?=[a-zA-Z({\[)}\]])", r"\\", text)
    text = unwrapped(text)
    if text.count("$") - text.count("\\$") in (2, 4, 6, 8):
        # Pairs of dollars are delimiters; a single one is money.
        text = unwrapped(re.sub(r"(?<!\\)\$", " ", text))
    if "\\" in text or any(char in text for char in "<>=!^_{~"):
        for pattern, replacement in _RENAMED:
            text = pattern.sub(replacement, text)
        text = _fractions(text)
    elif "sqrt" in text:
        text = _fractions(text)
    text = text.replace("\\$", "$") if "\\$" in text else text
    return unwrapped(" ".join(text.split()))


def _fractions(text: str) -> str:
    if "\\frac" in text:
        text = _SHORT_FRAC.sub(
            lambda m: rf"\frac{{{m[1]}}}{{{m[2]}}}" if m[1] else rf"\frac{{{m[3]}}}", text
        )
        text = _FRAC_TAIL.sub(r"\1{\2}", text)
    if "sqrt" in text:
        text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
        text = _CALLED_SQRT.sub(r"\\sqrt{\1}", text)
    return text


def unwrapped(text: str) -> str:
    """Without what stands around an answer in prose: dollars, emphasis, a full stop, a box."""
    while True:
        before = text
        text = text.strip().rstrip(".,;:").strip() if not text.endswith("\\,") else text[:-2]
        for opening, closing in _WRAPPERS:
            size = len(opening)
            if (
                len(text) >= 2 * size
                and text.startswith(opening)
                and text.endswith(closing)
                and opening not in text[size : len(text) - size]
                and (len(text) > 2 * size)
            ):
                text = text[size:-size]
                break
        if text.startswith(("\\boxed{", "\\fbox{")) and text.endswith("}"):
            start = text.index("{")
            if closing_of(text, start) == len(text) - 1:
                text = text[start + 1 : -1]
        if text.startswith("\\text{") and closing_of(text, 5) == len(text) - 1:
            text = text[6:-1]
        if text == before:
            return text


def closing_of(text: str, start: int) -> int | None:
    r"""Where the brace at ``start`` is closed; ``\{`` and ``\}`` do not count. None: nowhere."""
    depth, at = 0, start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def top_level(text: str) -> Iterator[int]:
    """The places that stand inside no bracket and no environment."""
    depth, at, size = 0, 0, len(text)
    while at < size:
        char = text[at]
        if char == "\\":
            if text.startswith("\\begin{", at):
                depth += 1
            elif text.startswith("\\end{", at):
                depth -= 1
            elif text.startswith("\\{", at):
                depth += 1
            elif text.startswith("\\}", at):
                depth -= 1
            if depth == 0:
                yield at
            at += 2
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        elif depth == 0:
            yield at
        at += 1


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """The pieces between separators that stand inside no bracket."""
    found: list[str] = []
    begin = end = 0
    for at in top_level(text):
        if at < end:
            continue
        match = separator.match(text, at)
        if match and match.end() > at:
            found.append(text[begin:at])
            begin = end = match.end()
    found.append(text[begin:])
    return found


def enclosed(text: str) -> bool:
    """Whether the first bracket is closed by the last character, half-open intervals included."""
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return False
    depth = 0
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return at == len(text) - 1
        at += 1
    return False
