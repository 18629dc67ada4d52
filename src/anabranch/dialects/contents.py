"""What the open parts of a text hold once they end: entries, branches, blocks, merges.

:class:`Contents` is the half of the reader that makes the document's parts and notes their
deviations; which tag opens and closes what is the other half, :mod:`anabranch.dialects.reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.dialects.description import Dialect
from anabranch.dialects.diagnostics import Diagnostic
from anabranch.dialects.document import Block, Branch, PlanItem, TextPart
from anabranch.dialects.numbers import Counted, counted, counted_lines, leading_number, stripped
from anabranch.dialects.rules import block_findings, merge_findings, plan_findings
from anabranch.dialects.tags import Role, tag_table

MERGES = ("merge", "legacy")


@dataclass(slots=True)
class Line:
    """Where text and blocks follow one another: the main line, or the inside of a branch.

    ``text`` is where the running text begins; ``done`` is a block whose outside merge may come.
    """

    text: int
    parts: list[TextPart | Block] = field(default_factory=list)
    done: Block | None = None


@dataclass(slots=True)
class Open:
    """A part that is open: its role, where its tag begins and ends, what was gathered for it."""

    role: Role | None
    start: int
    body: int
    name: str = ""
    number: str | None = None
    line: Line | None = None
    block: Block | None = None
    items: list[PlanItem] = field(default_factory=list)
    kept: bool = True
    planned: bool = False


class Contents:
    """The open parts of one text, innermost last, and the document made so far."""

    def __init__(self, text: str, dialect: Dialect, owner: Sequence[int] = ()) -> None:
        self.text, self.dialect, self.owner = text, dialect, tuple(owner)
        self.table = tag_table(dialect)
        self.found: list[Diagnostic] = []
        self.mark = 0  # the end of the last tag
        self.depth = 0
        self.root = Line(0)
        self.stack = [Open(None, 0, 0, line=self.root)]

    # What is said.

    def add(self, code: str, message: str, start: int, end: int) -> None:
        self.found.append(Diagnostic(code, message, start, end))

    def misplaced(self, start: int, end: int) -> None:
        role = self.stack[-1].role
        where = f"inside a {role}" if role else "here"
        self.add("misplaced_tag", f"{self.text[start:end]} means nothing {where}", start, end)

    def check_cut(self, end: int) -> None:
        """A cut tag directly before ``end``. (``</`` alone is found as a mark of its own.)"""
        start = self.text.rfind("<", max(self.mark, end - self.table.longest), end)
        if start >= 0:
            piece = self.text[start:end]
            if piece != "</" and self.table.partial.match(piece):
                self.add("half_tag", f"`{piece}` is a cut tag", start, end)

    def check_stray(self, end: int) -> None:
        """Between the parts of a block, only white space may precede ``end``."""
        inside, low, high = stripped(self.text, self.mark, end)
        if inside:
            shown = inside if len(inside) <= 40 else inside[:37] + "…"
            self.add("stray_text", f"text between the parts of a block: {shown!r}", low, high)

    # What a part holds, once it ends.

    def end_item(self, part: Open, end: int, after: int) -> None:
        read = counted(self.text, part.body, end, part.number)
        self.check_label(read, part.start, after)
        kind = self.dialect.kind_of[part.name]
        self.stack[-1].items.append(PlanItem(read.number, kind, read.text, (part.start, after)))

    def end_plan(self, part: Open, end: int, after: int) -> None:
        plan, block = self.dialect.plan, part.block
        assert plan is not None and block is not None
        items = part.items
        if not items:
            for read in counted_lines(self.text, part.body, end):
                span = (read.start, read.end)
                self.check_label(read, *span)
                items.append(PlanItem(read.number, plan.default_kind, read.text, span))
            if items:
                self.add("bare_outline", "entries without tags", part.body, end)
            else:
                inside, low, high = stripped(self.text, part.body, end)
                if inside:
                    self.add("stray_text", "text in a plan without entries", low, high)
        self.found.extend(plan_findings(items, (part.start, after)))
        if part.kept:
            block.plan, block.plan_span = items, (part.start, after)

    def end_branch(self, part: Open, end: int, after: int) -> None:
        block, line = self.stack[-1].block, part.line
        assert block is not None and line is not None
        if self.dialect.numbered:
            read = counted(self.text, part.body, end, part.number)
            self.check_label(read, part.start, part.body)
        else:
            inside, low, high = stripped(self.text, part.body, end)
            read = Counted(len(block.branches) + 1, low, high, inside, "")
        branch = Branch(read.number, self.dialect.branch_kind, read.text)
        branch.span, branch.body = (part.start, after), (read.start, read.end)
        branch.closed = after > end
        if line.parts:
            self.end_line(line, end)
            branch.parts = _trimmed(line.parts, read.start, read.end)
        block.branches.append(branch)

    def end_block(self, part: Open, after: int) -> None:
        block, line = part.block, self.stack[-1].line
        assert block is not None and line is not None
        self.depth -= 1
        block.span = (part.start, after)
        if self.dialect.plan is not None and not part.planned:
            self.add("plan_missing", "the block has no plan", part.start, part.body)
        if block.plan:
            kinds = {item.number: item.kind for item in block.plan}
            for branch in block.branches:
                branch.kind = kinds.get(branch.number, branch.kind)
        self.found.extend(block_findings(block, self.dialect))
        line.text = after
        if self.dialect.merge is None or self.dialect.merge_inside:
            self.found.extend(merge_findings(block, self.dialect))
        else:
            line.done = block

    def end_merge(self, part: Open, end: int, after: int) -> None:
        block, line = part.block, self.stack[-1].line
        assert block is not None
        if part.kept:
            block.merge = stripped(self.text, part.body, end)[0]
            block.merge_span = (part.start, after)
        if line is not None:  # outside the block
            block.span = (block.span[0], after)
            line.text = after
            self.found.extend(merge_findings(block, self.dialect))

    def end_line(self, line: Line, end: int) -> None:
        """Take the running text of a line up to ``end`` as a part; no merge can follow it."""
        if line.done is not None:
            self.found.extend(merge_findings(line.done, self.dialect))
            line.done = None
        if end > line.text:
            line.parts.append(TextPart(self.text[line.text : end], (line.text, end)))
            line.text = end

    def check_label(self, read: Counted, start: int, end: int) -> None:
        """Whether the number of a part that has just ended is written as it should be."""
        if not self.dialect.nesting:
            if "." in read.label:
                self.add("number_gap", "a dotted number without nested blocks", start, end)
            return
        if not read.label:
            return
        around = [
            leading_number(self.text, part.body, part.number)
            for part in self.stack
            if part.role == "branch"
        ]
        wanted = self.dialect.label(read.number, (*self.owner, *around))
        if read.label != wanted:
            self.add("loose_number", f"`{read.label}:` where {wanted}: is written", start, end)


def _trimmed(parts: list[TextPart | Block], start: int, end: int) -> list[TextPart | Block]:
    """The parts of a branch without its number and the white space around it."""
    kept: list[TextPart | Block] = []
    for part in parts:
        if isinstance(part, TextPart):
            low, high = max(part.span[0], start), min(part.span[1], end)
            if low >= high:
                continue
            offset = part.span[0]
            part = TextPart(part.text[low - offset : high - offset], (low, high))
        kept.append(part)
    return kept
