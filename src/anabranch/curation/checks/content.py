"""Checks of what branches say: leaks, repetition, duplicates, plans that give results away.

All of them go by :mod:`anabranch.curation.checks.values`, so they find what is written in figures
and named values, not what is said in words.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from anabranch.curation.checks.findings import Finding, Sample
from anabranch.curation.checks.places import Known, Place
from anabranch.curation.checks.values import (
    conclusions,
    derived,
    first_uses,
    named,
    names,
    trivial,
    values,
)
from anabranch.curation.checks.words import words

#: Branches that share more of their runs of words than this say nearly the same.
ALIKE = 0.7
#: Words in a run.
RUN = 3
#: More branches than any dialect allows are not compared with each other: the format is broken.
MOST = 100

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
#: Words before a value that is tried, and a value that is only named, not worked out: `x = 40`.
_TRIED = re.compile(
    r"\b(?:where|with|if|when|for|try\w*|test\w*|cases?|assum\w*|suppos\w*|let|tak\w+|pick\w*"
    r"|choos\w*|start\w*)\b[^.;:]*$",
    re.I,
)
_BARE = re.compile(r"(?<![\w+\-*/^)])\s*[A-Za-z][\w']*\s*=\s*[$€£-]*$")


def leaks(sample: Sample) -> Iterator[Finding]:
    """Values that a branch uses and that only a sibling found, and words about a sibling.

    A value counts as found by a branch where it stands there first as a result, and neither the
    problem nor the text before the block has it. A branch that works it out for itself does not
    leak, whatever its siblings found.
    """
    given = names(sample.problem)
    mention = _mentions(sample)
    for place in sample.places:
        known, branches = Known(given, place), place.block.branches
        if len(branches) > MOST:
            continue
        texts = [branch.text for branch in branches]
        found = [derived(text, known) for text in texts]
        for at, branch in enumerate(branches):
            uses, begin = first_uses(branch.text), branch.body[0]
            for name, sibling in _taken(at, texts, found, known):
                start, end = begin + uses[name].start, begin + uses[name].end
                message = f"{name!r} is used here and found in branch {branches[sibling].number}"
                yield Finding("leak", place.number, branch.number, start, end, message)
            if mention is not None and place.number == 1:
                yield from _mentioned(mention, place, at)


def _mentions(sample: Sample) -> re.Pattern[str] | None:
    """Words by which a branch is spoken of; none where the problem has such things itself."""
    word = sample.dialect.branch.name.casefold()
    # Steps are everywhere in mathematics.
    if word == "step" or word in sample.problem.casefold():
        return None
    which = "|".join((*_ORDINALS, "previous", "other"))
    return re.compile(rf"\b(?:{word} #?(\d+)|({which}) {word})\b", re.I)


def _mentioned(mention: re.Pattern[str], place: Place, at: int) -> Iterator[Finding]:
    """Where a branch of the first block speaks of another one.

    In later blocks the words may be about an earlier block, which can be seen. What a branch
    begins with is its own name.
    """
    branch = place.block.branches[at]
    for match in mention.finditer(branch.text):
        said = (match[2] or "").lower()
        number = int((match[1] or "0")[:4])
        if said in _ORDINALS:
            number = _ORDINALS.index(said) + 1
        own = number == at + 1 or number > len(place.block.branches)
        if own or (said == "previous" and at == 0) or _opens(branch.text, match.start()):
            continue
        start, end = branch.body[0] + match.start(), branch.body[0] + match.end()
        message = f"speaks of another branch, which it cannot see: {match[0]!r}"
        yield Finding("leak", place.number, branch.number, start, end, message)
        return


def _opens(text: str, offset: int) -> bool:
    return not re.search(r"[.!?:;\n]\s|[.!?]$", text[:offset]) and offset < 40


def taken_from(text: str, siblings: Sequence[str], known: Container[str]) -> list[tuple[str, int]]:
    """Values that a branch uses and that one of some siblings found, with that one's place.

    Args:
        text: of the branch.
        siblings: texts of the others.
        known: values that all of them could see.
    """
    texts = [*siblings, text]
    return _taken(len(siblings), texts, [derived(one, known) for one in texts], known)


def _taken(
    at: int, texts: Sequence[str], found: Sequence[Container[str]], known: Container[str]
) -> list[tuple[str, int]]:
    """The same for the branch at a place among its siblings, of which is known what they found."""
    taken = []
    for name, value in first_uses(texts[at]).items():
        if value.stated or name in known:
            continue
        own = name in found[at]
        for place, theirs in enumerate(found):
            # A name such as a5 has no sign of a result: it is the work of whoever ends with it.
            if place == at or name not in theirs:
                continue
            if not own or _borrowed(name, texts[at], texts[place]):
                taken.append((name, place))
                break
    return taken


def _borrowed(name: str, text: str, other: str) -> bool:
    """Whether a named value ends the other's work and begins or lies within this one's."""
    return _ends_with(other, name) and not _ends_with(text, name)


def _ends_with(text: str, name: str) -> bool:
    return text.rstrip(" .!").endswith(name)


def answer_first(sample: Sample) -> Iterator[Finding]:
    """Blocks that find nothing new: their results, or the final answer, stood before them.

    The results of a block are the values that its branches derive and the problem does not give;
    all of them must be stated before it, the trivial ones as results. The final answer stands
    before a block where it is stated there and the block, or what joins it, states it again. One
    that is
    trivial or given by the problem occurs everywhere, and must be what is stated last, both before
    the block and in one of its branches.
    """
    given = names(sample.problem)
    answer = (sample.answer or "").strip()
    number = _number(answer)
    written = None if number or len(answer) < 2 or answer.isdigit() else _outside(sample, answer)
    for place in sample.places:
        count = _repeated(place, given)
        if count:
            message = f"all {count} results of the block stand before it"
        elif (number and _concluded(place, number, given)) or (
            written is not None
            and written < place.block.span[0]
            and any(answer in branch.text for branch in place.block.branches)
        ):
            message = f"the final answer {answer} stands before the block"
        else:
            continue
        yield Finding("answer_first", place.number, 0, *place.block.span, message)


def _number(answer: str) -> str | None:
    """An answer that is one number, in the form of values."""
    found = [value.text for value in conclusions(f"= {answer}")]
    return found[0] if len(found) == 1 and not re.search(r"[^\W\d_]{2}", answer) else None


def _outside(sample: Sample, answer: str) -> int | None:
    """Where an answer in signs or words first stands; none where the problem has it."""
    if answer in sample.problem:
        return None
    inner = [r"(?<!\w)" if answer[0].isalnum() else "", r"(?!\w)" if answer[-1].isalnum() else ""]
    match = re.search(re.escape(answer).join(inner), sample.text)
    return match.start() if match else None


def _repeated(place: Place, given: frozenset[str]) -> int:
    """How many results a block has, where all of them stand before it; else 0."""
    texts = [branch.text for branch in place.block.branches]
    every = {name for text in texts for name in derived(text, given)}
    # Another way to a number is nothing new; but one number may be the same by chance.
    numbers = {name for name in every if "=" not in name}
    small_sums = {name for name in every - numbers if trivial(name.rpartition("=")[2].lstrip("-"))}
    new = numbers | small_sums if len(numbers) > 1 else every
    if not new or not all(_said(name, place) for name in new):
        return 0
    small = {v.text for text in texts for v in conclusions(text) if v.result and trivial(v.text)}
    return len(new) + len(small) if all(place.concluded(name) for name in small) else 0


def _said(name: str, place: Place) -> bool:
    return name in place and (named(name) or "=" in name or place.stated(name))


def _concluded(place: Place, number: str, given: frozenset[str]) -> bool:
    texts = [branch.text for branch in place.block.branches]
    if trivial(number) or number in given:
        return place.last() == number and any(_last(text) == number for text in texts)
    texts.append(place.block.merge or "")
    return place.stated(number) and any(
        value.text == number for text in texts for value in conclusions(text)
    )


def _last(text: str) -> str | None:
    return next((value.text for value in reversed([*conclusions(text)])), None)


def near_duplicates(sample: Sample) -> Iterator[Finding]:
    """Pairs of branches that share most of their runs of words and their results."""
    for place in sample.places:
        branches = place.block.branches
        if len(branches) > MOST:
            continue
        runs = [_runs(branch.text) for branch in branches]
        for later, branch in enumerate(branches):
            for earlier in range(later):
                if _alike(runs[earlier], runs[later]) >= ALIKE:
                    message = f"nearly the same as branch {branches[earlier].number}"
                    span = branch.span
                    yield Finding("near_duplicate", place.number, branch.number, *span, message)
                    break


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    said = words(text)
    return frozenset(tuple(said[at : at + RUN]) for at in range(max(1, len(said) - RUN + 1)))


def _alike(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other)


def outlines_reveal(sample: Sample) -> Iterator[Finding]:
    """Entries of a plan that have a value which only the branches find."""
    given = names(sample.problem)
    for place in sample.places:
        if not any(first_uses(item.title) for item in place.block.plan):
            continue
        results = found_by([branch.text for branch in place.block.branches], Known(given, place))
        for item in place.block.plan:
            told = given_away(item.title, results)
            if told:
                message = f"{told!r} is a result of the block's branches"
                yield Finding("outline_reveals", place.number, item.number, *item.span, message)


def found_by(texts: Sequence[str], known: Container[str] = ()) -> frozenset[str]:
    """What some branches find: not what one begins with by naming it, as a trial does (`x = 40`).

    A name with a number, such as `a5`, is found by the branch that ends with it.
    """
    found: set[str] = set()
    for text in texts:
        first = next((value for value in values(text) if value.result), None)
        for name, value in derived(text, known).items():
            if named(name) and not _ends_with(text, name):
                continue
            if value is first and _BARE.search(text[: value.start]):
                continue
            found.add(name)
    return frozenset(found)


def given_away(title: str, results: Container[str]) -> str | None:
    """A result that an entry of a plan has; not a value that it says is tried (`if x = 40`)."""
    for name, value in first_uses(title).items():
        before = title[: value.start]
        if name in results and not (_BARE.search(before) and _TRIED.search(before)):
            return name
    return None
