"""Steps of a sequential trace without a model: by paragraphs, cue phrases and values.

A paragraph is a step. It is a trial where it begins like an attempt or a check ("Alternatively",
"Wait", "let me verify"), a subtask where it begins a part of its own (an enumeration, a case,
"Next, compute …") and uses no result of the step before; what continues such a step ("= 12") is of
its kind. All else is serial. It needs those steps whose results it uses, and the step before unless
it begins something of its own.

An attempt that is not taken up again is over after a few paragraphs.

This reads cues of English maths; other languages are serial to it (:func:`is_english`). How often
it is right is measured by :mod:`anabranch.analysis.agreement`, and stated beside every figure.
"""

from __future__ import annotations

import re

from anabranch.analysis.structure import Kind, Step, Structure
from anabranch.annotation.traces import read_trace

NAME = "offline classifier"

_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_MARKUP = re.compile(r"^(?:[\s>*_#-]|\\\[|</?think>|<\|\w+\|>)+")

_TRIAL = re.compile(
    r"(?:hmm+|well|ok(?:ay)?|so|but|and|now|then|actually|also|just|or|given (?:that|this))?[,.\s]*"
    r"(?:alternatively|another (?:way|approach|method|idea|thought|possibility)|wait\b|hold on"
    r"|maybe\b|perhaps\b|what if|instead\b"
    r"|let me (?:think (?:differently|again)|re-?(?:check|think|consider|calc|comput|do|exam|eval"
    r"|visit|count)|check|verify"
    r"|double|make sure|try|confirm|test)|let'?s (?:check|verify|double|try|confirm|test|see if)"
    r"|(?:just )?to (?:be (?:thorough|sure|safe|certain)|verify|confirm|double)|i (?:could|might)"
    r"|we could|is there (?:any|another)|but wait|or maybe|one (?:way|idea|approach)"
    r"|first (?:attempt|idea)"
    r"|let me consider that|let'?s consider (?:the )?possib"
    r"|(?:i|we) (?:can|should) (?:also )?(?:verify|check|double|try))",
    re.I,
)
_PART = re.compile(
    r"(?:(?:case|step|part|option|method)\s*\(?[\divx]+|\(?[\divx]{1,3}[.)]\s"
    r"|(?:first|second|third|fourth|fifth|next|finally|similarly|likewise|also)(?:ly)?\b[,\s]"
    r"|for (?:the )?(?:first|second|third|next|other|n\s*=|case|x\s*=|k\s*=|example|each)"
    r"|if (?:the |we |it )|now,? (?:the|for|compute)"
    r"|now,? let'?s (?:compute|find|calculate|consider|look at)"
    r"|(?:(?:from|in|at|on) (?:the )?)?(?:left|right|real|imaginary)[- ](?:hand )?(?:side|part)\b"
    r"|(?:the )?(?:numerator|denominator)\b"
    r"|(?:compute|calculate|find|determine|identify|count|consider)\b)",
    re.I,
)
_CONCLUDES = re.compile(
    r"(?:so|therefore|thus|hence|then|this (?:means|gives|implies|is)|which|setting|substitut"
    r"|combin"
    r"|adding|subtracting|simplif|putting|plugging|solving|dividing|multiplying|taking|since|because"
    r"|given|(?:from|using) (?:this|these|the)(?! (?:real|imag|left|right|first|second))"
    r"|in (?:total|conclusion|summary)|finally"
    r"|the (?:final|total|answer|result|probability)|both|all (?:these|together)|factor)\b",
    re.I,
)
#: What ends an attempt; other conclusions are drawn inside it.
_ENDS = re.compile(
    r"(?:so|then|and|now|okay|,|\s)*(?:therefore|thus|hence|finally|in (?:total|conclusion|summary)"
    r"|putting|the (?:final|total|answer|result|probability|number)|both|all (?:these|together))\b",
    re.I,
)
#: Letters of any script; neither LaTeX commands nor single letters.
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")
_COMMON = frozenset(
    """
    the is of to and that this it in for so if we be are have can let as with but not then on or
    need which by at from will all what now there first would each since also my no wait
    """.split()  # noqa: SIM905 - readable as words
)
_LOOKED_AT, _ENOUGH = 20_000, 20
_WRAPPER = re.compile(r"<\|?/?\w+\|?>")
#: An attempt that is not taken up again is over after as many paragraphs.
_ATTEMPT = 4
_BULLET = re.compile(r"[-•*]\s")
_FORMULA = re.compile(r"^(?:\\\[|\$\$|=|\\begin)")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def classify(text: str) -> Structure:
    """The structure of a sequential trace; the answer behind the reasoning is left out.

    An empty trace has no steps. Loops and unfinished traces are taken as they are; of several
    thoughts all from the first to the last is the reasoning.
    """
    trace = read_trace(text)
    begin = trace.start
    spans = [(begin + m.start(), begin + m.end()) for m in _PARAGRAPH.finditer(trace.thought)]
    return Structure(text, classify_spans(text, spans))


def is_english(text: str) -> bool:
    """Whether cues can be read: no if a text has words, but hardly any of the common English ones.

    A text with few words (formulas alone) is taken as readable.
    """
    runs = _WORD.findall(text[:_LOOKED_AT])
    words = [word for word in runs if word < "\u0250"]
    if len(words) < _ENOUGH:
        # Other scripts, of which some have no spaces between words.
        return 2 * sum(map(len, words)) >= sum(map(len, runs))
    return sum(word.lower() in _COMMON for word in words) >= 0.08 * len(words)


def classify_spans(text: str, spans: list[tuple[int, int]]) -> tuple[Step, ...]:
    """The steps for given places."""
    made: list[Step] = []
    results: dict[str, int] = {}
    #: Steps that nothing needs yet.
    loose: set[int] = set()
    #: Where what is being worked on began, and the step before that; where the attempt began.
    root = attempt = -1
    for place, (start, end) in enumerate(spans):
        content = text[start:end]
        uses = _uses(content, results)
        last: Kind = made[-1].kind if made else "serial"
        if last == "trial" and place - attempt > _ATTEMPT:
            last = "serial"
        kind, own = _kind(content, last, first=not made, uses_last=place - 1 in uses)
        needs = set(uses)
        if own:
            # It stands beside what was worked on, behind what that stood behind.
            needs.discard(place - 1)
            if root >= 0:
                needs.add(root)
        elif place:
            needs.add(place - 1)
        if kind == "trial" and (own or made[-1].kind != "trial"):
            attempt = place
        if not own and kind == "serial":
            root = place
            # What is concluded rests on all that was found.
            needs |= loose
        loose = (loose - needs) | {place}
        made.append(Step(start, end, kind, tuple(sorted(needs))))
        for number in _found(content):
            results[number] = place
    return _with_first_siblings(made)


def _kind(content: str, last: Kind, *, first: bool, uses_last: bool) -> tuple[Kind, bool]:
    """The kind of a step, and whether it begins something of its own."""
    plain = _MARKUP.sub("", content)
    if _WRAPPER.match(content):
        return "serial", False
    if _TRIAL.match(plain):
        return "trial", True
    if _FORMULA.match(content) and last != "serial":
        return last, False
    begins = bool(_PART.match(plain) and not _CONCLUDES.match(plain)) or _BULLET.match(content)
    if begins and not uses_last:
        return ("trial" if last == "trial" else "subtask"), True
    if first or (_CONCLUDES.match(plain) and (last != "trial" or _ENDS.match(plain))):
        return "serial", False
    # What goes on in an attempt belongs to it.
    return ("trial" if last == "trial" else "serial"), False


def _with_first_siblings(made: list[Step]) -> tuple[Step, ...]:
    """A serial step is the first sibling of the part behind it where both stand alike."""
    found = list(made)
    for place in range(1, len(found)):
        step, before = found[place], found[place - 1]
        beside = step.kind == "subtask" and place - 1 not in step.needs
        if beside and before.kind == "serial" and before.needs == step.needs:
            found[place - 1] = Step(before.start, before.end, "subtask", before.needs)
    return tuple(found)


def _found(content: str) -> list[str]:
    """Numbers that a step brings in: those behind its signs of equality."""
    return [number.replace(",", "") for number in _NUMBER.findall(_behind_equals(content))]


def _behind_equals(content: str) -> str:
    return " ".join(re.findall(r"(?:=|≈|\bis\b|\bare\b|gives|get)([^=.\n]{0,40})", content))


def _uses(content: str, results: dict[str, int]) -> set[int]:
    """Earlier steps whose results stand in a step, numbers up to 10 left out."""
    numbers = {number.replace(",", "") for number in _NUMBER.findall(content)}
    telling = {one for one in numbers if not (one.isdigit() and int(one[:9]) <= 10)}
    return {results[one] for one in telling if one in results}
