"""Steps of a sequential trace without a model: by paragraphs, cue phrases and values.

A paragraph is a step. It is a trial where it begins like an attempt or a check ("Alternatively",
"Wait", "let me verify"), a subtask where it begins a part of its own (an enumeration, a case,
"Next, compute …") and uses no result of the step before; what continues such a step ("= 12") is of
its kind. All else is serial. It needs those steps whose results it uses, and the step before unless
it begins something of its own.

This reads cues of English maths, so other languages are serial to it. How often it is right is
measured by :mod:`anabranch.analysis.agreement`, and stated beside every figure made with it.
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
    r"|maybe\b|perhaps\b|what if|instead\b|let me (?:think (?:differently|again)|re|check|verify"
    r"|double|make sure|try|confirm|test)|let'?s (?:check|verify|double|try|confirm|test|see if)"
    r"|(?:just )?to (?:be (?:thorough|sure|safe|certain)|verify|confirm|double)|i (?:could|might)"
    r"|we could|is there any|but wait|hmm|or maybe|one (?:way|idea|approach)|first (?:attempt|idea)"
    r"|let me consider that|let'?s consider (?:the )?possib"
    r"|(?:i|we) (?:can|should) (?:also )?(?:verify|check|double|try))",
    re.I,
)
_PART = re.compile(
    r"(?:(?:case|step|part|option|method)\s*\(?[\divx]+|\(?[\divx]{1,3}[.)]\s|[-•]\s"
    r"|(?:first|second|third|fourth|fifth|next|finally|similarly|likewise|also)(?:ly)?\b[,\s]"
    r"|for (?:the )?(?:first|second|third|next|other|n\s*=|case|x\s*=|k\s*=|example|each)"
    r"|if (?:the |we |it )|now,? (?:the|for|compute)"
    r"|now,? let'?s (?:compute|find|calculate|consider|look at)"
    r"|(?:left|right)[- ](?:hand )?side|numerator|denominator"
    r"|(?:compute|calculate|find|determine|identify|count|consider)\b)",
    re.I,
)
_CONCLUDES = re.compile(
    r"(?:so|therefore|thus|hence|then|this (?:means|gives|implies|is)|which|setting|substitut"
    r"|combin"
    r"|adding|subtracting|simplif|putting|plugging|solving|dividing|multiplying|taking|since|because"
    r"|given|(?:from|using) (?:this|these|the)|in (?:total|conclusion|summary)|finally"
    r"|the (?:final|total|answer|result|probability)|both|all (?:these|together)|factor)\b",
    re.I,
)
_FORMULA = re.compile(r"^(?:\\\[|\$\$|=|\\begin)")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def classify(text: str, *, whole: bool = False) -> Structure:
    """The structure of a sequential trace.

    An empty trace has no steps. Loops and unfinished traces are taken as they are.

    Args:
        text: the trace.
        whole: with the answer behind the reasoning; else that is left out.
    """
    trace = read_trace(text)
    begin, content = (0, text) if whole else (trace.start, trace.thought)
    spans = [(begin + m.start(), begin + m.end()) for m in _PARAGRAPH.finditer(content)]
    return Structure(text, classify_spans(text, spans))


def classify_spans(text: str, spans: list[tuple[int, int]]) -> tuple[Step, ...]:
    """The steps for given places."""
    made: list[Step] = []
    results: dict[str, int] = {}
    #: Where what is being worked on began, and the step before that.
    root = -1
    for place, (start, end) in enumerate(spans):
        content = text[start:end]
        uses = _uses(content, results)
        kind, own = _kind(content, made, place - 1 in uses)
        needs = set(uses)
        if own:
            # It stands beside what was worked on, behind what that stood behind.
            needs.discard(place - 1)
            if root >= 0:
                needs.add(root)
        elif place:
            needs.add(place - 1)
        if not own and kind == "serial":
            root = place
            needs |= _loose_ends(made)
        made.append(Step(start, end, kind, tuple(sorted(needs))))
        for number in _found(content):
            results[number] = place
    return _with_first_siblings(made)


def _kind(content: str, made: list[Step], uses_last: bool) -> tuple[Kind, bool]:
    """The kind of a step, and whether it begins something of its own."""
    plain = _MARKUP.sub("", content)
    last: Kind = made[-1].kind if made else "serial"
    if _TRIAL.match(plain):
        return "trial", True
    if _FORMULA.match(content) and last != "serial":
        return last, False
    if _PART.match(plain) and not uses_last and not _CONCLUDES.match(plain):
        return ("trial" if last == "trial" else "subtask"), True
    if _CONCLUDES.match(plain) or not made:
        return "serial", False
    # What goes on in an attempt belongs to it.
    return ("trial" if last == "trial" else "serial"), False


def _loose_ends(made: list[Step]) -> set[int]:
    """Steps that nothing needs yet: what is concluded rests on all of them."""
    needed = {one for step in made for one in step.needs}
    return {place for place in range(len(made)) if place not in needed}


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
