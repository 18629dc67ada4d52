"""Figures of a text without token ids, counted with a tokenizer as if it had been decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from anabranch.dialects import Block, Branch, Dialect, Document, TextPart
from anabranch.dialects.writer import opening
from anabranch.metrics.figures import Metrics

_STUB = re.compile(r"\[[a-z]+\]")


@dataclass(frozen=True)
class TextFigures:
    """What only the text shows; None: not known."""

    half_tags: int | None = None
    duplicates: int | None = None
    well_formed: bool | None = None


def document_metrics(document: Document, dialect: Dialect, count: Callable[[str], int]) -> Metrics:
    """The figures of a text, as if it had been decoded in its dialect.

    Args:
        document: what :func:`anabranch.dialects.parse` read.
        dialect: says which parts the runtime writes (branch headers, the join) and which the model.
        count: tokens of a piece of text. Pieces are counted in canonical spacing, each on its own.
    """
    tally = _Tally(dialect, count)
    critical = tally.line(document.parts, ())
    inside = tally.plan + tally.subtask + tally.trial + tally.merge
    blocks = list(document.all_blocks())
    text = text_figures(document)
    return Metrics(
        total_tokens=tally.outside + inside,
        outside_tokens=tally.outside,
        plan_tokens=tally.plan,
        branch_tokens=tally.subtask + tally.trial,
        merge_tokens=tally.merge,
        critical_path=critical,
        subtask_tokens=tally.subtask,
        trial_tokens=tally.trial,
        forced_tokens=tally.forced,
        branches_per_block=tuple(len(block.branches) for block in blocks),
        tokens_per_branch=tuple(tally.branches),
        half_tags=text.half_tags,
        duplicate_branches=text.duplicates,
        well_formed=text.well_formed,
    )


def text_figures(document: Document) -> TextFigures:
    """Pieces of tags, repeated branches, and whether the text is well formed."""
    half = sum(finding.code == "half_tag" for finding in document.diagnostics)
    duplicates = sum(_duplicates(block) for block in document.all_blocks())
    return TextFigures(half, duplicates, document.well_formed)


def _duplicates(block: Block) -> int:
    """Branches whose text, but for case and white space, an earlier one of the block has."""
    texts = [" ".join(branch.text.casefold().split()) for branch in block.branches]
    told = [text for text in texts if text and not _STUB.fullmatch(text)]
    return len(told) - len(set(told))


class _Tally:
    """Counts the pieces of a document as the runtime and the model would write them."""

    def __init__(self, dialect: Dialect, count: Callable[[str], int]) -> None:
        self.dialect, self.count = dialect, count
        self.outside = self.plan = self.subtask = self.trial = self.merge = self.forced = 0
        self.branches: list[int] = []

    def line(self, parts: Iterable[TextPart | Block], owner: tuple[int, ...]) -> int:
        """Counts a line, inside the branches ``owner``; returns its critical path."""
        path = 0
        for part in parts:
            if isinstance(part, Block):
                path += self.block(part, owner)
                continue
            size = self.count(part.text)
            path += size
            if not owner:
                self.outside += size
        return path

    def block(self, block: Block, owner: tuple[int, ...]) -> int:
        dialect, count = self.dialect, self.count
        plan = count(opening(block, dialect, owner))
        self.plan += plan
        paths = [self.branch(branch, owner) for branch in block.branches]
        gaps = max(0, len(paths) - 1)
        self.forced += count(dialect.fork_text) + gaps * count(dialect.branch_separator)
        self.forced += count(dialect.join_text()) + count(dialect.after_merge)
        merge = 0
        if dialect.merge is not None and block.merge is not None:
            merge = count(block.merge + dialect.close_merge)
            self.merge += merge
        return plan + max(paths, default=0) + merge

    def branch(self, branch: Branch, owner: tuple[int, ...]) -> int:
        dialect, count = self.dialect, self.count
        self.forced += count(dialect.branch_header(branch.number, owner))
        if not branch.parts:
            own = path = count(dialect.spacing.body_open + branch.text + dialect.close_branch)
        else:
            texts = [part for part in branch.parts if isinstance(part, TextPart)]
            own = sum(count(part.text) for part in texts) + count(dialect.close_branch)
            path = self.line(branch.parts, (*owner, branch.number)) + count(dialect.close_branch)
        if branch.kind in dialect.or_kinds:
            self.trial += own
        else:
            self.subtask += own
        self.branches.append(own)
        return path
