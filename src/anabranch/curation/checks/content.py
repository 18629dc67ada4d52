"""Checks of what branches say: leaks, repetition, duplicates, plans that give results away.

All of them go by :mod:`anabranch.curation.checks.values`, so they find what is written in figures
and named values, not what is said in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from anabranch.curation.checks.findings import Finding, Sample
from anabranch.curation.checks.values import derived, first_uses, names

#: Branches that share more of their runs of words than this say nearly the same.
ALIKE = 0.7
#: Words in a run.
RUN = 3
#: A block whose results were known to this share before it only repeats them.
KNOWN = 0.99

_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def leaks(sample: Sample) -> Iterator[Finding]:
    """Values that a branch uses and that only a sibling found.

    A value counts as found by a branch where it stands there first as a result, and neither the
    problem nor the text before the block has it. A branch that works it out for itself does not
    leak, whatever its siblings found.
    """
    for number, block, before in sample.blocks():
        known = names(sample.problem) | names(before)
        texts = [branch.text for branch in block.branches]
        for place, branch in enumerate(block.branches):
            uses = first_uses(branch.text)
            others = [*texts[:place], "", *texts[place + 1 :]]
            for name, sibling in taken_from(branch.text, others, known):
                value, begin = uses[name], branch.body[0]
                other = block.branches[sibling].number
                yield Finding(
                    "leak",
                    number,
                    branch.number,
                    begin + value.start,
                    begin + value.end,
                    f"{name!r} is used here and found in branch {other}",
                )


def taken_from(text: str, siblings: Sequence[str], known: frozenset[str]) -> list[tuple[str, int]]:
    """Values that a branch uses and that one of some siblings found, with that one's place.

    Args:
        text: of the branch.
        siblings: texts of the others.
        known: values that all of them could see.
    """
    own = derived(text, known)
    found = [derived(sibling, known) for sibling in siblings]
    taken = []
    for name, value in first_uses(text).items():
        if name in known or value.stated:
            continue
        for place, theirs in enumerate(found):
            # A name such as a5 has no sign of a result: it is the work of whoever ends with it.
            if name in theirs and (name not in own or _borrowed(name, text, siblings[place])):
                taken.append((name, place))
                break
    return taken


def _borrowed(name: str, text: str, other: str) -> bool:
    """Whether a named value ends the other's work and begins or lies within this one's."""
    return other.rstrip(" .!").endswith(name) and not text.rstrip(" .!").endswith(name)


def answer_first(sample: Sample) -> Iterator[Finding]:
    """Blocks whose results all stood in the text before them, or behind the final answer."""
    given = names(sample.problem)
    for number, block, before in sample.blocks():
        known = names(before)
        new: set[str] = set()
        for branch in block.branches:
            new |= set(derived(branch.text, given))
        told = new & known
        if new and len(told) >= KNOWN * len(new):
            yield Finding(
                "answer_first",
                number,
                0,
                *block.span,
                f"all {len(new)} results of the block stand before it",
            )
            continue
        if _answered(sample, before, given, new):
            message = f"the final answer {sample.answer} stands before the block"
            yield Finding("answer_first", number, 0, *block.span, message)


def _answered(sample: Sample, before: str, given: frozenset[str], new: set[str]) -> bool:
    """Whether the final answer stands before a block that finds it, as a result or as a text.

    Answers of one character are everywhere and say nothing.
    """
    answer = (sample.answer or "").strip()
    found = names(answer)
    if len(found) == 1:
        (value,) = found
        return value not in given and value in new and value in derived(before, given)
    return len(answer) > 1 and not answer.isdigit() and answer in before.replace(sample.problem, "")


def near_duplicates(sample: Sample) -> Iterator[Finding]:
    """Pairs of branches that share most of their runs of words and their results."""
    for number, block, _ in sample.blocks():
        runs = [_runs(branch.text) for branch in block.branches]
        for later, branch in enumerate(block.branches):
            for earlier in range(later):
                if _alike(runs[earlier], runs[later]) >= ALIKE:
                    yield Finding(
                        "near_duplicate",
                        number,
                        branch.number,
                        *branch.span,
                        f"nearly the same as branch {block.branches[earlier].number}",
                    )
                    break


def _runs(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return frozenset(tuple(words[at : at + RUN]) for at in range(max(1, len(words) - RUN + 1)))


def _alike(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other)


def outlines_reveal(sample: Sample) -> Iterator[Finding]:
    """Entries of a plan that have a value which only the branches find."""
    for number, block, before in sample.blocks():
        known = names(sample.problem) | names(before)
        results = set().union(*(derived(branch.text, known) for branch in block.branches))
        for item in block.plan:
            told = [name for name in first_uses(item.title) if name in results]
            if told:
                message = f"{told[0]!r} is a result of the block's branches"
                yield Finding("outline_reveals", number, item.number, *item.span, message)
