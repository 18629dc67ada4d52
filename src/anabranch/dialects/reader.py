"""The machinery behind :func:`anabranch.dialects.parse`: one pass over the tags, with a stack.

Each tag either fits the innermost open part, or a part before it was left open, or it makes no
sense where it stands; the last two are recorded and reading goes on. What a part holds is made
when it ends. Time is linear in the text, memory in the number of tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.dialects.contents import MERGES, Contents, Line, Open
from anabranch.dialects.description import Dialect
from anabranch.dialects.document import Block, Document
from anabranch.dialects.rules import tolerated
from anabranch.dialects.tags import Role

#: Blocks nested deeper than this are read as text.
MAX_DEPTH = 16

_OUTSIDE, _REASONING, _ANSWER = range(3)


class Reader(Contents):
    """Reads one text once."""

    def __init__(self, text: str, dialect: Dialect, owner: Sequence[int] = ()) -> None:
        super().__init__(text, dialect, owner)
        self.think = _OUTSIDE
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
        if after is None and part.role == "block" and self.dialect.block is None:
            end = after = self.mark  # no tag closes it: it ended with its last part
        if after is None:
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
        if top.role == "branch" and self.too_deep(start, end):
            return
        if top.line is None:
            if top.role not in MERGES:
                self.add("nested_block", f"a block inside a {top.role}", start, end)
            # The parts before were not closed; the line that holds them goes on.
            self.pop_to(self.innermost_line(), start)
        self.push_block(start, end)

    def too_deep(self, start: int, end: int) -> bool:
        """Whether a block inside a branch is beyond what is read at all."""
        if not self.dialect.nesting:
            self.add("nested_block", "a block inside a branch", start, end)
        if self.depth >= MAX_DEPTH:
            self.add("nested_block", f"more than {MAX_DEPTH} blocks deep", start, end)
        return self.depth >= MAX_DEPTH

    def innermost_line(self) -> int:
        return max(at for at, part in enumerate(self.stack) if part.line is not None)

    def push_block(self, start: int, end: int) -> None:
        line = self.stack[-1].line
        assert line is not None
        self.end_line(line, start)
        if self.dialect.block is None:
            self.mark = start  # the text before is the line's, not between parts of the block
        block = Block(span=(start, end))
        line.parts.append(block)
        if self.think == _ANSWER:
            self.add("block_after_reasoning", "a block behind the reasoning", start, end)
        self.stack.append(Open("block", start, end, block=block))
        self.depth += 1

    def open_plan(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.dialect.block is None:
            top = self.stack[-1]
            joined = top.role in MERGES
            if joined or (top.role == "block" and top.block is not None and top.block.branches):
                self.pop_to(self.innermost_line(), start)  # a new block begins
            if self.stack[-1].role == "branch" and self.too_deep(start, end):
                return
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
        self.stack.append(Open("plan", start, end, block=part.block, kept=kept))

    def open_item(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.stack[-1].role == "item":
            self.pop(start, None)
        if self.stack[-1].role != "plan":
            self.misplaced(start, end)
            return
        self.check_stray(start)
        self.stack.append(Open("item", start, end, name, number))

    def open_branch(self, name: str, number: str | None, start: int, end: int) -> None:
        if self.dialect.block is None and self.dialect.plan is None and len(self.stack) == 1:
            self.push_block(start, start)
        at = self.innermost("block")
        if at is None or self.stack[-1].role in MERGES:
            self.misplaced(start, end)
            return
        self.pop_to(at, start)
        self.check_stray(start)
        self.stack.append(Open("branch", start, end, name, number, line=Line(end)))

    def open_merge(self, name: str, number: str | None, start: int, end: int) -> None:
        legacy = self.table.roles[name] == "legacy"
        if self.stack[-1].role in MERGES:
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
        self.stack.append(Open(role, start, end, block=block, kept=block.merge is None))

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
        self.stack.append(Open("merge", start, end, block=line.done))
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
        if role in MERGES and self.dialect.block is None and self.stack[-1].role == "block":
            self.pop(end, end)
