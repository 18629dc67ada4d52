"""Writes the cut trace as a text of a dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Result, Stage
from anabranch.curation.stages.cut import Part
from anabranch.dialects import (
    Block,
    Branch,
    Dialect,
    Document,
    PlanItem,
    TextPart,
    get_dialect,
    write,
)
from anabranch.errors import DialectError


class Render(Stage):
    """The stage ``render``: ``{"text": …, "dialect": …}``.

    Attributes:
        dialect: name of the dialect.
        merge: what joins the branches in a dialect that has a merge.
    """

    name: ClassVar[str] = "render"
    needs: ClassVar[tuple[str, ...]] = ("steps", "cut")

    dialect: str = "threadweaver"
    merge: str = "Taking the results together."

    def work(self, row: Row) -> Result:
        """Writes at once; a text that cannot be written is dropped with the reason."""
        dialect = get_dialect(self.dialect)
        made = row.data.get("outline") or row.data.get("rewrite") or row.data["cut"]
        answer = row.data["steps"]["answer"]
        try:
            text = write(self._document(made["parts"], answer, dialect), dialect)
        except DialectError as error:
            return Drop("cannot_be_written", str(error))
        return Keep({"text": text, "dialect": self.dialect})

    def _document(self, parts: Sequence[Part], answer: str, dialect: Dialect) -> Document:
        made: list[TextPart | Block] = [self._part(part, dialect) for part in parts]
        gap = dialect.spacing.think
        if dialect.think is None:
            return Document([*made, TextPart(f"{dialect.spacing.answer}{answer}")])
        head = TextPart(f"{dialect.think.open}{gap}")
        if made and isinstance(made[0], TextPart):
            made[0] = TextPart(made[0].text.lstrip())
        if made and isinstance(made[-1], TextPart):
            made[-1] = TextPart(made[-1].text.rstrip())
        return Document([head, *made, TextPart(f"{gap}{dialect.think.close}{gap}{answer}")])

    def _part(self, part: Part, dialect: Dialect) -> TextPart | Block:
        if "text" in part:
            return TextPart(part["text"])
        kind = _kind(part["kind"], dialect)
        branches = part["branches"]
        plan = []
        if dialect.plan is not None:
            plan = [PlanItem(n, kind, b["title"]) for n, b in enumerate(branches, 1)]
        made = [Branch(n, kind, b["text"]) for n, b in enumerate(branches, 1)]
        return Block(plan, made, self.merge if dialect.merge is not None else None)


def _kind(kind: str, dialect: Dialect) -> str:
    if dialect.plan is None:
        return dialect.branch_kind
    return kind if kind in dialect.plan.items else dialect.plan.default_kind
