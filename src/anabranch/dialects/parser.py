"""Reads a whole text into a Document, whatever it holds, and says how it deviates.

Lenient reading never fails: a deviation becomes a diagnostic and the nearest sensible structure is
kept. Strict reading raises at the first error. Text may hold ``<`` freely as long as it does not
spell a tag of the dialect, does not end in a cut tag, and has no ``</`` without a name behind it.
The work is done in :mod:`anabranch.dialects.reader`.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.dialects.description import Dialect
from anabranch.dialects.diagnostics import Diagnostic
from anabranch.dialects.document import Document, PlanItem
from anabranch.dialects.reader import Reader
from anabranch.errors import DialectError

#: What a plan read alone says of the rest of its block, which is not there to be read.
_BEYOND_PLAN = {"no_branches", "summary_missing", "unclosed_reasoning"}


def parse(text: str, dialect: Dialect, *, strict: bool = False) -> Document:
    """Read a text.

    Args:
        text: anything.
        dialect: the dialect to read it in.
        strict: whether a malformed text is refused.

    Returns:
        the parts and, in the order of their place, the diagnostics.

    Raises:
        DialectError: strict, and the text is malformed; names the first error and its offset.
    """
    document = Reader(text, dialect).read()
    if strict:
        for finding in document.diagnostics:
            if finding.is_error:
                raise DialectError(
                    f"not {dialect.name}: {finding.code} at character {finding.start}: "
                    f"{finding.message}"
                )
    return document


def read_plan(
    text: str, dialect: Dialect, owner: Sequence[int] = ()
) -> tuple[list[PlanItem], list[Diagnostic]]:
    """The plan of one block that has just come to its fork tag.

    Args:
        text: from behind the block's opening tag to the fork tag, with or without it.
        dialect: the dialect; without a plan in it the answer is empty.
        owner: the numbers of the branches that the block stands in, outermost first.

    Returns:
        the entries that a branch can be opened for, in the order of the text: those with a number,
        each number once; and what deviates, with offsets in ``text``. Empty when there is no plan
        (``plan_missing``, ``stale_outline``) or nothing in it (``empty_plan``).
    """
    if dialect.plan is None:
        return [], []
    head = "" if dialect.block is None else dialect.block.open
    tail = "" if dialect.block is None else dialect.block.close
    close = dialect.plan.tag.close
    inside = text if text.rstrip().endswith(close) else text + close
    document = Reader(head + inside + tail, dialect, owner).read()
    shift, size = len(head), len(text)

    def moved(start: int, end: int) -> tuple[int, int]:
        return max(0, min(start - shift, size)), max(0, min(end - shift, size))

    found = [
        Diagnostic(f.code, f.message, *moved(f.start, f.end), f.tolerated)
        for f in document.diagnostics
        if f.code not in _BEYOND_PLAN
    ]
    items: dict[int, PlanItem] = {}
    for block in document.blocks[-1:]:
        for item in block.plan:
            if item.number and item.number not in items:
                kept = PlanItem(item.number, item.kind, item.title, moved(*item.span))
                items[item.number] = kept
    return list(items.values()), found
