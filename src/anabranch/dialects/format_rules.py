"""The format check of a dialect: what a data set, a reward or a report counts as right.

It holds for documents that were read and for those made by hand. It is stricter than reading: a
tag of another dialect inside a block counts as an error, although it parses as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from anabranch.dialects.builtin import BUILTIN
from anabranch.dialects.description import Dialect
from anabranch.dialects.diagnostics import Diagnostic
from anabranch.dialects.document import NOWHERE, Block, Document, Span
from anabranch.dialects.rules import block_findings, merge_findings, plan_findings, tolerated
from anabranch.dialects.tags import tag_table


def check_format(document: Document, dialect: Dialect) -> list[Diagnostic]:
    """All deviations of a document, errors and notes, in the order of their place.

    ThreadWeaver and Parason: tags balanced, blocks not nested, a plan in every block, as many
    branches as entries, 2 to 50, numbered 1 to n in order on both sides, titles without tags,
    nothing but white space between the parts, no foreign tags. Multiverse and NPR: the same in
    every block, those inside branches included, and a merge at its end; NPR has 1 to 5 branches.
    Parallel-R1: tags balanced, at least two paths in every block, each block followed by its
    summary. A text without any block is right.
    """
    found = [*document.diagnostics]
    for block in document.all_blocks():
        if block.span == NOWHERE:  # one that was read has been through this
            found += _structure(block, dialect)
        for text, span in _texts(block):
            found += _tags_in(text, span, dialect)
    distinct = dict.fromkeys(tolerated(found, dialect))
    return sorted(distinct, key=lambda finding: finding.start)


def _structure(block: Block, dialect: Dialect) -> Iterator[Diagnostic]:
    if block.plan:
        yield from plan_findings(block.plan, block.plan_span)
        if dialect.plan is None:
            yield Diagnostic("misplaced_tag", "the dialect has no plan", *block.plan_span)
    elif dialect.plan is not None:
        yield Diagnostic("plan_missing", "the block has no plan", *block.span)
    yield from block_findings(block, dialect)
    yield from merge_findings(block, dialect)
    for branch in block.branches:
        if branch.parts and not dialect.nesting:
            yield Diagnostic("nested_block", f"a block in branch {branch.number}", *branch.span)


def _texts(block: Block) -> Iterator[tuple[str, Span]]:
    yield from ((item.title, item.span) for item in block.plan)
    yield from ((branch.text, branch.body) for branch in block.branches if not branch.parts)
    if block.merge is not None:
        yield block.merge, block.merge_span


def _tags_in(text: str, span: Span, dialect: Dialect) -> Iterator[Diagnostic]:
    if "<" not in text:
        return
    if span == NOWHERE and (own := tag_table(dialect).marks.search(text)):
        yield Diagnostic("misplaced_tag", f"a text holds {own.group()}", *span)
    for match in _foreign(dialect).finditer(text):
        yield Diagnostic("foreign_tag", f"{match.group()} belongs to another dialect", *span)


@lru_cache(maxsize=64)
def _foreign(dialect: Dialect) -> re.Pattern[str]:
    names = {tag.name for other in BUILTIN for tag in other.tags()}
    foreign = sorted(names - set(dialect.tag_of), key=len, reverse=True)
    return re.compile(f"</?(?:{'|'.join(foreign)})>")
