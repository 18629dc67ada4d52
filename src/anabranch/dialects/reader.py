"""The machinery behind :func:`anabranch.dialects.parse`: one pass over the tags, with a stack.

Each tag either fits the innermost open part, or a part before it was left open, or it makes no
sense where it stands; the last two are recorded and reading goes on. What a part holds is made
when it ends. Time is linear in the text, memory in the number of tags.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.dialects.description import Dialect
from anabranch.dialects.diagnostics import Diagnostic
from anabranch.dialects.document import Block, Branch, Document, PlanItem, TextPart
from anabranch.dialects.numbers import Counted, counted, counted_lines, stripped
from anabranch.dialects.rules import block_findings, merge_findings, plan_findings, tolerated
from anabranch.dialects.tags import Role, tag_table

#: Blocks nested deeper than this are read as text.
MAX_DEPTH = 16

_OUTSIDE, _REASONING, _ANSWER = range(3)
_MERGES = ("merge", "legacy")


@dataclass(slots=True)
class _Line:
    """Where text and blocks follow one another: the main line, or the inside of a branch.

    ``text`` is where the running text begins; ``done`` is a block whose outside merge may come.
    """

    text: int
    parts: list[TextPart | Block] = field(default_factory=list)
    done: Block | None = None


@dataclass(slots=True)
class _Open:
    """A part that is open: its role, where its tag begins and ends, what was gathered for it."""

    role: Role | None
    start: int
    body: int
    name: str = ""
    number: str | None = None
    line: _Line | None = None
    block: Block | None = None
    items: list[PlanItem] = field(default_factory=list)
    kept: bool = True
    planned: bool = False


class Reader:
    """Reads one text once."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text, self.dialect = text, dialect
        self.table = tag_table(dialect)
        self.found: list[Diagnostic] = []
        self.think = _OUTSIDE
        self.mark = 0  # the end of the last tag
        self.depth = 0
        self.root = _Line(0)
        self.stack = [_Open(None, 0, 0, line=self.root)]
        self.openers = {
            "block": self.open_block,
            "plan": self.open_plan,
            "item": self.open_item,
            "branch": self.open_branch,
            "merge": self.open_merge,
            "legacy": self.open_merge,
        }

    def read(self) -> Document:
        """The document, with diagnostics in the order of their place."""
        text, roles, tags = self.text, self.table.roles, self.table.tags
        for match in self.table.marks.finditer(text):
            start, end = match.span()
            slash, name, number = match.groups()
            if name is None:
                self.add("half_tag", "`</` without a name", start, end)
                continue
            self.check_cut(start)
            tag = tags[name]
            if number or tag.name != name or text[end - 2] == " ":
                self.add("alias_tag", f"`{match.group()}` for {tag.open}", start, end)
            role = roles[name]
            if role == "think":
                self.take_think(bool(slash), start, end)
            elif slash:
                self.close(role, tag.name, start, end)
            else:
                self.openers[role](tag.name, number, start, end)
            self.mark = end
        return self.finish()

    def finish(self) -> Document:
        end = len(self.text)
        self.check_cut(end)
        self.pop_to(0, end)
        self.end_line(self.root, end)
        if self.think == _REASONING:
            self.add("unclosed_reasoning", "the reasoning is not closed", end, end)
        found = tolerated(self.found, self.dialect)
        return Document(self.root.parts, sorted(found, key=lambda finding: finding.start))

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

    # The stack.

    def innermost(self, role: Role) -> int | None:
        for at in range(len(self.stack) - 1, 0, -1):
            if self.stack[at].role == role:
                return at
        return None

    def pop_to(self, at: int, end: int) -> None:
        """Leave open parts above ``at``; none of them was closed."""
        while len(self.stack) > at + 1:
            self.pop(end, None)

    def pop(self, end: int, after: int | None) -> None:
        """End the innermost part at ``end``; its closing tag, if any, reaches to ``after``."""
        part = self.stack.pop()
        if after is None and not (part.role == "block" and self.dialect.block is None):
            tag = self.text[part.start : part.body]
            self.add("missing_close", f"{tag} is not closed", part.start, part.body)
            self.mark = end
        after = end if after is None else after
        if part.role == "item":
            self.end_item(part, end, after)
        elif part.role == "plan":
            self.end_plan(part, end, after)
        elif part.role == "branch":
            self.end_branch(part, end, after)
        elif part.role == "block":
            self.end_block(part, after)
        else:
            self.end_merge(part, end, after)

    # Opening tags.

    def take_think(self, closing: bool, start: int, end: int) -> None:
        if closing and self.think != _ANSWER:
            self.pop_to(0, start)
            self.think = _ANSWER
        elif closing:
            self.add("unexpected_close", "the reasoning is already closed", start, end)
        elif len(self.stack) == 1 and self.think == _OUTSIDE and not self.root.parts:
            self.think = _REASONING
        else:
            self.misplaced(start, end)

    def open_block(self, name: str, number: str | None, start: int, end: int) -> None:
        top = self.stack[-1]
        if top.role == "branch":
            if not self.dialect.nesting:
                self.add("nested_block", "a block inside a branch", start, end)
            if self.depth >= MAX_DEPTH:
                self.add("nested_block", f"more than {MAX_DEPTH} blocks deep", start, end)
                return
        elif top.line is None:
            if top.role not in _MERGES:
                self.add("nested_block", f"a block inside a {top.role}", start, end)
            # The parts before were not closed; the line that holds them goes on.
            self.pop_to(self.innermost_line(), start)
        self.push_block(start, end)

    def innermost_line(self) -> int:
        return max(at for at, part in enumerate(self.stack) if part.line is not None)

    def push_block(self, start: int, end: int) -> None:
        line = self.stack[-1].line
        assert line is not None
        self.end_line(line, start)
        block = Block(span=(start, end))
        line.parts.append(block)
        if self.think == _ANSWER:
            self.add("block_after_reasoning", "a block behind the reasoning", start, end)
        self.stack.append(_Open("block", start, end, block=block))
        self.depth += 1

    def open_plan(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.dialect.block is None:
            top = self.stack[-1]
            if top.role == "block" and top.block is not None and top.block.branches:
                self.pop(start, start)
            if self.stack[-1].line is not None:
                self.push_block(start, start)
        part = self.stack[-1]
        if part.role != "block" or part.block is None:
            self.misplaced(start, end)
            return
        self.check_stray(start)
        kept = not part.planned and not part.block.branches
        if not kept:
            self.add("duplicate_plan", "the plan is too late in its block", start, end)
        part.planned = True
        self.stack.append(_Open("plan", start, end, block=part.block, kept=kept))

    def open_item(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.stack[-1].role == "item":
            self.pop(start, None)
        if self.stack[-1].role != "plan":
            self.misplaced(start, end)
            return
        self.check_stray(start)
        self.stack.append(_Open("item", start, end, name, number))

    def open_branch(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.dialect.block is None and self.dialect.plan is None and len(self.stack) == 1:
            self.push_block(start, start)
        at = self.innermost("block")
        if at is None or self.stack[-1].role in _MERGES:
            self.misplaced(start, end)
            return
        self.pop_to(at, start)
        self.check_stray(start)
        self.stack.append(_Open("branch", start, end, name, number, line=_Line(end)))

    def open_merge(self, name: str, number: str | None, start: int, end: int) -> None:
        legacy = self.table.roles[name] == "legacy"
        if self.stack[-1].role in _MERGES:
            self.misplaced(start, end)
        elif legacy or self.dialect.merge_inside:
            self.open_inner_merge("legacy" if legacy else "merge", start, end)
        else:
            self.open_outer_merge(start, end)

    def open_inner_merge(self, role: Role, start: int, end: int) -> None:
        at = self.innermost("block")
        block = None if at is None else self.stack[at].block
        if at is None or block is None:
            self.misplaced(start, end)
            return
        self.pop_to(at, start)
        self.check_stray(start)
        if role == "legacy":
            self.add("legacy_merge", "the dialect no longer has a merge", start, end)
        if block.merge is not None:
            self.add("duplicate_summary", "a second merge for one block", start, end)
        self.stack.append(_Open(role, start, end, block=block, kept=block.merge is None))

    def open_outer_merge(self, start: int, end: int) -> None:
        line = self.stack[-1].line
        if line is None or line.done is None:
            at = self.innermost("block")
            if at is not None:  # the block before was not closed
                self.pop_to(at - 1, start)
            line = self.stack[-1].line
        if line is None or line.done is None:
            self.misplaced(start, end)
            return
        self.check_stray(start)
        self.stack.append(_Open("merge", start, end, block=line.done))
        line.done = None

    # Closing tags.

    def close(self, role: Role, name: str, start: int, end: int) -> None:
        at = self.innermost(role)
        if at is None:
            code = "stale_outline" if role == "plan" else "unexpected_close"
            self.add(code, f"{self.text[start:end]} closes nothing", start, end)
            return
        self.pop_to(at, start)
        part = self.stack[-1]
        if role == "block" or (role == "plan" and part.items):
            self.check_stray(start)
        if role == "item" and part.name != name:
            message = f"</{name}> for <{part.name}>"
            self.add("unexpected_close", message, start, end)
        self.pop(start, end)
        if role in _MERGES and self.dialect.block is None and self.stack[-1].role == "block":
            self.pop(end, end)

    # What a part holds, once it ends.

    def end_item(self, part: _Open, end: int, after: int) -> None:
        read = counted(self.text, part.body, end, part.number)
        self.check_dotted(read, part.start, after)
        kind = self.dialect.kind_of[part.name]
        self.stack[-1].items.append(PlanItem(read.number, kind, read.text, (part.start, after)))

    def end_plan(self, part: _Open, end: int, after: int) -> None:
        plan, block = self.dialect.plan, part.block
        assert plan is not None and block is not None
        items = part.items
        if not items:
            for read in counted_lines(self.text, part.body, end):
                span = (read.start, read.end)
                self.check_dotted(read, *span)
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

    def end_branch(self, part: _Open, end: int, after: int) -> None:
        block, line = self.stack[-1].block, part.line
        assert block is not None and line is not None
        if self.dialect.numbered:
            read = counted(self.text, part.body, end, part.number)
            self.check_dotted(read, part.start, part.body)
        else:
            inside, low, high = stripped(self.text, part.body, end)
            read = Counted(len(block.branches) + 1, low, high, inside, False)
        branch = Branch(read.number, self.dialect.branch_kind, read.text)
        branch.span, branch.body = (part.start, after), (read.start, read.end)
        branch.closed = after > end
        if line.parts:
            self.end_line(line, end)
            branch.parts = _trimmed(line.parts, read.start, read.end)
        block.branches.append(branch)

    def end_block(self, part: _Open, after: int) -> None:
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

    def end_merge(self, part: _Open, end: int, after: int) -> None:
        block, line = part.block, self.stack[-1].line
        assert block is not None
        if part.kept:
            block.merge = stripped(self.text, part.body, end)[0]
            block.merge_span = (part.start, after)
        if line is not None:  # outside the block
            block.span = (block.span[0], after)
            line.text = after
            self.found.extend(merge_findings(block, self.dialect))

    def end_line(self, line: _Line, end: int) -> None:
        """Take the running text of a line up to ``end`` as a part; no merge can follow it."""
        if line.done is not None:
            self.found.extend(merge_findings(line.done, self.dialect))
            line.done = None
        if end > line.text:
            line.parts.append(TextPart(self.text[line.text : end], (line.text, end)))
            line.text = end

    def check_dotted(self, read: Counted, start: int, end: int) -> None:
        if read.dotted and not self.dialect.nesting:
            self.add("number_gap", "a dotted number without nested blocks", start, end)


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
