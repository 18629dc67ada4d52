"""Writes a document in the canonical form of a dialect.

Only well-formed documents are written: what comes out is read back, strictly, as the same document.
Documents are compared in their normal form, see :func:`normalised`.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.dialects.description import WHITE, Dialect
from anabranch.dialects.document import Block, Branch, Document, PlanItem, TextPart
from anabranch.dialects.parser import parse
from anabranch.errors import DialectError

#: Numbers of the branches that something stands in, outermost first.
Owner = tuple[int, ...]


def write(document: Document, dialect: Dialect) -> str:
    """The canonical text of a document.

    Raises:
        DialectError: the document breaks a rule of the dialect, or a text in it holds tags.
    """
    wanted = normalised(document, dialect)
    text = render(wanted.parts, dialect)
    if parse(text, dialect, strict=True) != wanted:
        raise DialectError(f"cannot be written in {dialect.name}: a text in it holds tags")
    return text


def normalised(document: Document, dialect: Dialect) -> Document:
    """The document as reading it back gives it.

    Adjoining texts are one, empty ones are dropped; titles, branches and merges lose the white
    space around them; branches take the kind that the plan gives them and, in a dialect without
    numbers, the number of their place.
    """
    return Document(_normal_parts(document.parts, dialect, ()))


def render(parts: Sequence[TextPart | Block], dialect: Dialect, owner: Owner = ()) -> str:
    """The canonical text of some parts, unchecked; ``owner`` are the branches they stand in."""
    return "".join(
        part.text if isinstance(part, TextPart) else _render_block(part, dialect, owner)
        for part in parts
    )


def opening(block: Block, dialect: Dialect, owner: Owner = ()) -> str:
    """What the model writes of a block before the fork: up to and including the fork tag."""
    begin = "" if dialect.block is None else dialect.block.open
    if dialect.plan is None:
        if block.plan:
            raise DialectError(f"{dialect.name} has no plan")
        return begin
    gap = dialect.spacing.block_open if begin else ""
    return f"{begin}{gap}{_render_plan(block.plan, dialect, owner)}"


def _render_block(block: Block, dialect: Dialect, owner: Owner) -> str:
    pieces = [opening(block, dialect, owner), dialect.fork_text]
    bodies = [_render_branch(branch, dialect, owner) for branch in block.branches]
    pieces.append(dialect.branch_separator.join(bodies))
    pieces.append(dialect.join_text())
    if dialect.merge is not None:
        if block.merge is None:
            raise DialectError(f"{dialect.name} needs a {dialect.merge.name} for every block")
        pieces += [block.merge, dialect.close_merge, dialect.after_merge]
    elif block.merge is not None:
        raise DialectError(f"{dialect.name} has no merge; convert the document first")
    return "".join(pieces)


def _render_plan(items: Sequence[PlanItem], dialect: Dialect, owner: Owner) -> str:
    plan, space = dialect.plan, dialect.spacing
    assert plan is not None
    entries = []
    for item in items:
        if item.kind not in plan.items:
            kinds = ", ".join(plan.items)
            raise DialectError(f"{dialect.name} knows no {item.kind!r}, only {kinds}")
        tag = plan.items[item.kind]
        head = f"{tag.open}{space.item_open}{dialect.label(item.number, owner)}:{space.title}"
        entries.append(f"{head}{item.title}{space.item_close}{tag.close}")
    inside = space.item_gap.join(entries)
    return f"{plan.tag.open}{space.plan_open}{inside}{space.plan_close}{plan.tag.close}"


def _render_branch(branch: Branch, dialect: Dialect, owner: Owner) -> str:
    inside = (*owner, branch.number)
    body = render(branch.parts, dialect, inside) if branch.parts else branch.text
    header = dialect.branch_header(branch.number, owner) + dialect.spacing.body_open
    return header + body + dialect.close_branch


def _normal_parts(
    parts: Sequence[TextPart | Block], dialect: Dialect, owner: Owner
) -> list[TextPart | Block]:
    normal: list[TextPart | Block] = []
    for part in parts:
        if isinstance(part, Block):
            normal.append(_normal_block(part, dialect, owner))
        elif part.text and normal and isinstance(normal[-1], TextPart):
            normal[-1] = TextPart(normal[-1].text + part.text)
        elif part.text:
            normal.append(TextPart(part.text))
    return normal


def _normal_block(block: Block, dialect: Dialect, owner: Owner) -> Block:
    kinds = {item.number: item.kind for item in block.plan}
    branches = []
    for place, branch in enumerate(block.branches, start=1):
        number = branch.number if dialect.numbered else place
        kind = kinds.get(branch.number, dialect.branch_kind)
        inside = (*owner, number)
        parts = _normal_branch_parts(branch, dialect, inside)
        text = render(parts, dialect, inside) if parts else branch.text.strip(WHITE)
        branches.append(Branch(number, kind, text, parts))
    plan = [PlanItem(item.number, item.kind, item.title.strip(WHITE)) for item in block.plan]
    merge = None if block.merge is None else block.merge.strip(WHITE)
    return Block(plan, branches, merge)


def _normal_branch_parts(branch: Branch, dialect: Dialect, owner: Owner) -> list[TextPart | Block]:
    parts = _normal_parts(branch.parts, dialect, owner)
    if not any(isinstance(part, Block) for part in parts):
        return []
    if isinstance(parts[0], TextPart):
        parts[0] = TextPart(parts[0].text.lstrip(WHITE))
    if isinstance(parts[-1], TextPart):
        parts[-1] = TextPart(parts[-1].text.rstrip(WHITE))
    return [part for part in parts if isinstance(part, Block) or part.text]
