r"""Reads the JSON of a model's answer, LaTeX and all, or says why it cannot be read.

Models write JSON between fences, with words before and after it, with trailing commas, and with
LaTeX whose backslashes are not doubled. The last is the dangerous one: `\frac`, `\times`, `\nu`
and `\beta` are *valid* JSON escapes followed by letters, and would be read without an error as form
feed, tab, newline and backspace. A truncated answer is never completed by guessing.

The rule for a backslash in a string:

- `\"`, `\\`, `\/` and `\uXXXX` are JSON.
- `\b` and `\f` before a letter are LaTeX: no text holds those control characters.
- `\n`, `\t`, `\r` before letters are LaTeX where the letters make a known command
  (`\nu`, `\neq`, `\times`, `\text`, `\rho`), else JSON: a newline before a word.
- any other letter (`\alpha`, `\(`) is LaTeX: it is no JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

from anabranch.annotation.asking import AnswerError

#: LaTeX commands that begin like the escapes of newline, tab and carriage return.
_COMMANDS = frozenset(
    """
    nu ne neq neg nabla not notin newline newcommand nless nleq ngeq ngtr nmid nsim ncong natural
    nparallel nearrow nwarrow nexists nolimits nonumber normalsize null nsubseteq nsupseteq
    nRightarrow nLeftarrow nrightarrow nleftarrow
    text textbf textit textrm texttt textsf textstyle textcolor times to tau tan tanh theta top
    tfrac tbinom therefore tilde triangle triangleq triangleleft triangleright tiny tag thinspace
    thickspace thicksim thickapprox
    rho right rightarrow rightarrows rightharpoonup rangle rbrace rbrack rceil rfloor rm rmfamily
    Rightarrow rvert rVert ref root rtimes restriction raise rule
    nVdash nvdash nvDash nVDash ntriangleleft ntriangleright ntrianglelefteq ntrianglerighteq
    nleqslant ngeqslant nleqq ngeqq nprec nsucc npreceq nsucceq nsubseteqq nsupseteqq nshortmid
    nshortparallel nLeftrightarrow nleftrightarrow
    textnormal textup textmd textsl textsc textdegree textbackslash textasciitilde textgreater
    textless textbar textsubscript textsuperscript trianglelefteq trianglerighteq triangledown
    twoheadrightarrow twoheadleftarrow
    rightleftharpoons rightleftarrows rightrightarrows rightsquigarrow rightharpoondown
    rightthreetimes risingdotseq rmoustache rgroup rrbracket
    """.split()  # noqa: SIM905 - readable as words
)
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|[a-zA-Z]+|["\\/]|.|$)', re.S)
_UNICODE = re.compile(r"u[0-9a-fA-F]{4}")
_START = re.compile(r"[{\[]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.S)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_SUSPICIOUS = re.compile(r"[\x08\x0c\t](?=[a-z])")


def parse_json(text: str, want: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """The JSON value in an answer: the first object (or list) that can be read.

    Raises:
        AnswerError: there is none, or it is not complete; the message says which.
    """
    decoder = json.JSONDecoder(strict=False)
    first: json.JSONDecodeError | None = None
    after = 0
    for match in _START.finditer(text):
        if match.start() < after:
            continue
        try:
            value, _ = decoder.raw_decode(_repaired(text[match.start() :]))
        except json.JSONDecodeError as error:
            first = first or error
            # What stands inside a broken object is not the answer.
            after = match.start() + max(1, error.pos)
            continue
        except RecursionError:
            raise AnswerError("the JSON is nested too deeply") from None
        if isinstance(value, want):
            return value
    if first is None:
        name = "object" if want is dict else "list"
        raise AnswerError(f"no JSON {name} in the answer: answer with one and nothing else")
    if first.pos >= len(first.doc.rstrip()) or "Unterminated" in first.msg:
        raise AnswerError("the JSON breaks off before its end: answer again, shorter if need be")
    near = first.doc[max(0, first.pos - 20) : first.pos + 20]
    raise AnswerError(f"not valid JSON: {first.msg}, near {near!r}")


def suspicious_controls(text: str) -> list[int]:
    """Places where a control character stands right before a letter: LaTeX lost on the way."""
    return [match.start() for match in _SUSPICIOUS.finditer(text)]


def _repaired(text: str) -> str:
    pieces, end = [], 0
    for match in _STRING.finditer(text):
        pieces.append(_TRAILING_COMMA.sub(r"\1", text[end : match.start()]))
        pieces.append(_ESCAPE.sub(_escape, match[0]))
        end = match.end()
    pieces.append(_TRAILING_COMMA.sub(r"\1", text[end:]))
    return "".join(pieces)


def _escape(match: re.Match[str]) -> str:
    what = match[1]
    control = what in ("b", "f") or (what[:1] in ("n", "t", "r") and what not in _COMMANDS)
    if what in ('"', "\\", "/") or _UNICODE.fullmatch(what) or (what and control):
        return match[0]
    return "\\\\" + what
