"""What a check finds, and the document that it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from anabranch.curation.checks.places import Place, places
from anabranch.dialects import Dialect, Document, TextPart, parse

#: Every kind of finding, with what it means.
KINDS = {
    "format": "the text breaks a rule of its dialect",
    "leak": "a branch uses a value that a sibling found",
    "answer_first": "the block only repeats what stood before it",
    "near_duplicate": "two branches of a block say nearly the same",
    "outline_reveals": "an entry of the plan gives away a result",
    "lost_text": "too little of the source has survived",
    "wrong_answer": "the final answer is not the right one",
    "no_answer": "no final answer is found, or it cannot be graded",
    "contaminated": "the problem is one of an evaluation set",
    "control_character": "a control character stands before a letter: LaTeX was lost",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        kind: of :data:`KINDS`.
        block: number of the block, from 1, those inside branches counted; 0 for the whole text.
        branch: number of the branch; 0 for the whole block.
        start, end: offsets of characters in the text.
        message: for a reader.
    """

    kind: str
    block: int
    branch: int
    start: int
    end: int
    message: str


@dataclass(frozen=True)
class Sample:
    """A parallel text with what is known about it.

    Attributes:
        text: in the dialect.
        dialect: of the text.
        problem: the question.
        answer: the right answer, where known.
        source: the sequential trace that it was made from, where there is one.
    """

    text: str
    dialect: Dialect
    problem: str = ""
    answer: str | None = None
    source: str | None = None

    @cached_property
    def document(self) -> Document:
        """The parsed text."""
        return parse(self.text, self.dialect)

    @cached_property
    def places(self) -> list[Place]:
        """Each block, those inside branches too, with what stands before it."""
        return list(places(self.text, self.document.parts))

    @property
    def has_source(self) -> bool:
        """Whether there is a source with a text."""
        return bool(self.source and not self.source.isspace())

    @cached_property
    def share(self) -> float | None:
        """The share of the source's characters that are in the text in order; spaces do not count.

        By the longest common subsequence with the text without plans and tags of blocks. None
        without a source, and where rapidfuzz is not installed.
        """
        if not self.has_source:
            return None
        try:
            from rapidfuzz.distance import LCSseq
        except ImportError:
            return None
        source = "".join((self.source or "").split())
        text = "".join("".join(self._words()).split())
        return float(LCSseq.similarity(source, text)) / len(source)

    def _words(self) -> Iterator[str]:
        for part in self.document.parts:
            if isinstance(part, TextPart):
                yield part.text
                continue
            for branch in part.branches:
                yield branch.text
            yield part.merge or ""
