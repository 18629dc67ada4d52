"""What every block must satisfy: numbers, counts, merge. The same rules for read and made blocks.

Rules which a whole data set is filtered by are in :mod:`anabranch.dialects.format_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from anabranch.dialects.description import Dialect
from anabranch.dialects.diagnostics import Diagnostic
from anabranch.dialects.document import Block, PlanItem, Span


def tolerated(findings: Iterable[Diagnostic], dialect: Dialect) -> list[Diagnostic]:
    """The findings, with those marked that the dialect tolerates."""
    if not dialect.tolerates:
        return list(findings)
    return [
        replace(finding, tolerated=True) if finding.code in dialect.tolerates else finding
        for finding in findings
    ]


def plan_findings(items: Sequence[PlanItem], span: Span) -> Iterator[Diagnostic]:
    """Deviations of a plan that was read."""
    if not items:
        yield Diagnostic("empty_plan", "the plan has no entries", *span)
    yield from _number_findings([(item.number, item.span) for item in items], "entry", span)
    for item in items:
        if not item.title:
            yield Diagnostic("empty_title", f"entry {item.number} has no text", *item.span)


def block_findings(block: Block, dialect: Dialect) -> Iterator[Diagnostic]:
    """Deviations in the branches of a block, and between them and its plan."""
    count = len(block.branches)
    yield from _count_findings(count, dialect, block.span)
    if dialect.numbered:
        numbers = [(branch.number, branch.span) for branch in block.branches]
        yield from _number_findings(numbers, "branch", block.span)
    for branch in block.branches:
        if not branch.text and not branch.parts:
            yield Diagnostic("empty_branch", f"branch {branch.number} is empty", *branch.span)
    if block.plan and count and len(block.plan) != count:
        message = f"{len(block.plan)} entries in the plan, {count} branches"
        yield Diagnostic("count_mismatch", message, *block.span)
    elif dialect.numbered:
        for item, branch in zip(block.plan, block.branches, strict=False):
            if item.number != branch.number:
                message = f"branch {branch.number} stands for entry {item.number}"
                yield Diagnostic("number_mismatch", message, *branch.span)


def merge_findings(block: Block, dialect: Dialect) -> Iterator[Diagnostic]:
    """Deviations of the merge, once it is known whether there is one."""
    if dialect.merge is not None and block.merge is None:
        message = f"no {dialect.merge.open} joins the branches"
        yield Diagnostic("summary_missing", message, block.span[1], block.span[1])
    if block.merge == "":
        yield Diagnostic("empty_summary", "the merge is empty", *block.merge_span)


def _count_findings(count: int, dialect: Dialect, span: Span) -> Iterator[Diagnostic]:
    if not count:
        yield Diagnostic("no_branches", "the block has no branch", *span)
    elif count < dialect.min_branches:
        message = f"{count} of at least {dialect.min_branches} branches"
        yield Diagnostic("one_branch", message, *span)
    elif count > dialect.max_branches:
        message = f"{count} branches; the dialect allows {dialect.max_branches}"
        yield Diagnostic("too_many_branches", message, *span)


def _number_findings(
    numbers: Sequence[tuple[int, Span]], what: str, span: Span
) -> Iterator[Diagnostic]:
    seen: set[int] = set()
    for number, place in numbers:
        if not number:
            yield Diagnostic("number_missing", f"{what} without a number", *place)
        elif number in seen:
            yield Diagnostic("duplicate_number", f"{what} {number} was already given", *place)
        seen.add(number)
    given = [number for number, _ in numbers if number]
    distinct = list(dict.fromkeys(given))
    if distinct != list(range(1, len(distinct) + 1)):
        shown = ", ".join(map(str, given[:8])) + (", …" if len(given) > 8 else "")
        yield Diagnostic("number_gap", f"numbers are {shown}", *span)
