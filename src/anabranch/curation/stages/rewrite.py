"""Rewrites branches so that none uses what another one found, by literal substitutions.

A model gives pairs of old and new text; nothing else of a branch can change. The result is checked
against *every* earlier sibling, not only the one before; a branch that still leaks is asked for
again with what leaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from anabranch.annotation.asking import AnswerError, Ask, Message
from anabranch.curation.checks.content import taken_from
from anabranch.curation.checks.values import names
from anabranch.curation.rows import Row
from anabranch.curation.stage import Keep, Stage, Work
from anabranch.curation.stages.cut import Part

SYSTEM = """Parts of a worked solution will be worked out at the same time, by people who cannot see
each other's work. You see the solution up to there, the parts before one part, and that part. Give
the smallest literal changes after which the part can be read without the other parts: where it
uses something that another part found, it must work that out itself or not use it; references such
as "as above", "similarly" or "the previous case" to other parts must go.

Answer with one JSON object: {"changes": [{"old": "…", "new": "…"}]}. Each "old" is copied exactly
from the part. Change nothing else. If the part can stay as it is, answer {"changes": []}."""

SCHEMA = {
    "type": "object",
    "properties": {
        "changes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                "required": ["old", "new"],
            },
        }
    },
    "required": ["changes"],
}
_CONTEXT = 12_000


class Rewrite(Stage):
    """The stage ``rewrite``: ``{"parts": [Part], "changed": number of branches}``.

    Attributes:
        always: asks for every branch but the first; else only for those that seem to leak.
    """

    name: ClassVar[str] = "rewrite"
    needs: ClassVar[tuple[str, ...]] = ("cut",)
    asks: ClassVar[bool] = True
    prompt: ClassVar[str] = SYSTEM

    always: bool = True
    max_tokens: int = 2048

    def work(self, row: Row) -> Work:
        """One question for each branch behind the first."""
        parts: list[Part] = []
        before = ""
        changed = 0
        for part in row.data["cut"]["parts"]:
            if "text" in part:
                parts.append(part)
                before += part["text"]
                continue
            known = names(row.problem) | names(before)
            done: list[str] = []
            for branch in part["branches"]:
                text = branch["text"]
                if done and (self.always or taken_from(text, done, known)):
                    text = yield self._ask(row.problem, before, done, text, known)
                    changed += text != branch["text"]
                done.append(text)
            fresh = [{**b, "text": t} for b, t in zip(part["branches"], done, strict=True)]
            parts.append({**part, "branches": fresh})
            before += "\n".join(done)
        return Keep({"parts": parts, "changed": changed})

    def _ask(
        self, problem: str, before: str, done: Sequence[str], text: str, known: frozenset[str]
    ) -> Ask[str]:
        shown = "\n\n".join(f"Other part {n}:\n{one}" for n, one in enumerate(done, 1))
        user = (
            f"Problem:\n{problem}\n\nSolution so far:\n{before[-_CONTEXT:]}\n\n"
            f"{shown}\n\nThis part:\n{text}"
        )
        return Ask(
            kind="rewrite",
            messages=(Message("system", SYSTEM), Message("user", user)),
            read=partial(_read, text=text, done=tuple(done), known=known),
            schema=SCHEMA,
            max_tokens=self.max_tokens,
        )


def _read(data: Any, text: str, done: tuple[str, ...], known: frozenset[str]) -> str:
    changes = data.get("changes") if isinstance(data, Mapping) else None
    if not isinstance(changes, list):
        raise AnswerError("'changes' must be a list")
    for change in changes:
        old = change.get("old") if isinstance(change, Mapping) else None
        new = change.get("new") if isinstance(change, Mapping) else None
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            raise AnswerError("each change needs 'old' and 'new' as texts")
        if old not in text:
            raise AnswerError(f"{old[:80]!r} does not occur in the part; copy it exactly")
        text = text.replace(old, new)
    if not text.strip():
        raise AnswerError("nothing is left of the part")
    left = taken_from(text, done, known)
    if left:
        name, sibling = left[0]
        raise AnswerError(f"the part still uses {name!r}, which part {sibling + 1} found")
    return text.strip()
