"""What a text holds once its tags are read: plain text and blocks of branches, with offsets.

A :class:`Document` comes from :func:`anabranch.dialects.parse` or is made by hand; two documents
are equal when their content is, wherever it stood (spans and diagnostics do not count). Offsets
count characters of the parsed text; the texts of branches, titles and merges are without the white
space around them. Token ids and requests are the matter of :mod:`anabranch.records`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.dialects.diagnostics import Diagnostic

#: ``(start, end)`` in characters; ``(0, 0)`` where the thing was not read from a text.
Span = tuple[int, int]
NOWHERE: Span = (0, 0)


@dataclass(slots=True)
class TextPart:
    """Text of the line that a block stands in, verbatim, reasoning tags included."""

    text: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(slots=True)
class PlanItem:
    """One entry of a plan. ``number`` is 0 where none could be read."""

    number: int
    kind: str
    title: str = ""
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(slots=True)
class Branch:
    """One branch of a block.

    Attributes:
        number: as written, or the branch's place (from 1) where the dialect has no numbers.
        kind: the kind of the plan's entry with this number.
        text: everything in the branch.
        parts: text and blocks of a branch that holds blocks, otherwise empty.
        span: from the opening to the closing tag, both included.
        body: of ``text``.
        closed: whether it has its own closing tag.
    """

    number: int
    kind: str
    text: str = ""
    parts: list[TextPart | Block] = field(default_factory=list)
    span: Span = field(default=NOWHERE, compare=False)
    body: Span = field(default=NOWHERE, compare=False)
    closed: bool = field(default=True, compare=False)


@dataclass(slots=True)
class Block:
    """A fork and its join. ``merge`` is the joining text of dialects that have one.

    ``span`` reaches from the block's opening tag to the end of the merge; ``merge_span`` includes
    the merge's tags, ``plan_span`` those of the plan.
    """

    plan: list[PlanItem] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    merge: str | None = None
    span: Span = field(default=NOWHERE, compare=False)
    plan_span: Span = field(default=NOWHERE, compare=False)
    merge_span: Span = field(default=NOWHERE, compare=False)


@dataclass(slots=True)
class Document:
    """A whole text: ``parts`` in order, and what was found to deviate from the dialect."""

    parts: list[TextPart | Block] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list, compare=False)

    @property
    def well_formed(self) -> bool:
        """Whether no diagnostic is an error."""
        return not any(finding.is_error for finding in self.diagnostics)

    @property
    def blocks(self) -> list[Block]:
        """The blocks of the main line."""
        return [part for part in self.parts if isinstance(part, Block)]

    def all_blocks(self) -> Iterator[Block]:
        """Every block, those inside branches included, outer before inner."""
        stack: list[Block] = self.blocks[::-1]
        while stack:
            block = stack.pop()
            yield block
            inner = [p for b in block.branches for p in b.parts if isinstance(p, Block)]
            stack.extend(reversed(inner))
