"""One entry of the plan for each branch: what it will do, and nothing of what it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from anabranch.annotation.asking import AnswerError, Ask, Message
from anabranch.curation.checks.content import found_by, given_away
from anabranch.curation.checks.values import names
from anabranch.curation.rows import Row
from anabranch.curation.stage import Keep, Stage, Work
from anabranch.curation.stages.cut import Part

SYSTEM = """Parts of a worked solution will be worked out at the same time by different people. For
each part, write the instruction that its worker gets: at most two sentences, saying what to work
out or to try, from what was known before. It must not contain or hint at anything that is found
only in one of the parts.

Answer with one JSON object: {"outlines": ["…", "…"]}, one text for each part, in their order."""

SCHEMA = {
    "type": "object",
    "properties": {"outlines": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
    "required": ["outlines"],
}
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_CONTEXT = 12_000


class Outline(Stage):
    """The stage ``outline``: ``{"parts": [Part]}`` with titles that a plan can have.

    Attributes:
        sentences: the most that an entry may have.
    """

    name: ClassVar[str] = "outline"
    needs: ClassVar[tuple[str, ...]] = ("cut",)
    asks: ClassVar[bool] = True
    prompt: ClassVar[str] = SYSTEM

    sentences: int = 2
    max_tokens: int = 2048

    def work(self, row: Row) -> Work:
        """One question for each block."""
        parts: list[Part] = []
        before = ""
        source = row.data.get("rewrite", row.data["cut"])
        for part in source["parts"]:
            if "text" in part:
                parts.append(part)
                before += part["text"]
                continue
            titles: list[str] = yield self._ask(row.problem, before, part)
            named = [{**b, "title": t} for b, t in zip(part["branches"], titles, strict=True)]
            parts.append({**part, "branches": named})
            before += "\n".join(branch["text"] for branch in named)
        return Keep({"parts": parts})

    def _ask(self, problem: str, before: str, part: Part) -> Ask[list[str]]:
        texts = [branch["text"] for branch in part["branches"]]
        shown = "\n\n".join(f"Part {number}:\n{text}" for number, text in enumerate(texts, 1))
        known = names(problem) | names(before)
        results = found_by(texts, known)
        return Ask(
            kind="outline",
            messages=(
                Message("system", SYSTEM),
                Message(
                    "user",
                    f"Problem:\n{problem}\n\nSolution so far:\n{before[-_CONTEXT:]}\n\n{shown}",
                ),
            ),
            read=partial(_read, count=len(texts), results=results, sentences=self.sentences),
            schema=SCHEMA,
            max_tokens=self.max_tokens,
        )


def _read(data: Any, count: int, results: frozenset[str], sentences: int) -> list[str]:
    titles = data.get("outlines") if isinstance(data, Mapping) else None
    if not isinstance(titles, list) or not all(isinstance(title, str) for title in titles):
        raise AnswerError("'outlines' must be a list of texts")
    if len(titles) != count:
        raise AnswerError(f"{count} outlines are needed, one for each part, not {len(titles)}")
    cleaned = [" ".join(title.split()) for title in titles]
    for number, title in enumerate(cleaned, 1):
        if not title:
            raise AnswerError(f"outline {number} is empty")
        if "<" in title and ">" in title:
            raise AnswerError(f"outline {number} must not hold tags")
        if len(_SENTENCE.findall(title + " ")) > sentences:
            raise AnswerError(f"outline {number} has more than {sentences} sentences")
        told = given_away(title, results)
        if told:
            raise AnswerError(f"outline {number} gives away {told!r}, which a part finds")
    if len(set(cleaned)) < count:
        raise AnswerError("two outlines are the same; each part needs its own")
    return cleaned
