"""Deviations from a dialect: their codes, how grave each is, and the record of one.

An ``error`` makes a text malformed; a ``note`` is a form that readers accept and writers avoid. A
dialect may tolerate an error: it is a note there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "note"]

#: Meaning of every code of grave deviations.
ERRORS: dict[str, str] = {
    "half_tag": "a piece of a tag: `</` without a name, or a cut tag before another or the end",
    "missing_close": "a tag is never closed",
    "unexpected_close": "a closing tag without its opening one",
    "misplaced_tag": "an opening tag where it has no meaning",
    "nested_block": "a block inside a branch, plan or block of a dialect without nesting",
    "block_after_reasoning": "a block behind the end of the reasoning",
    "plan_missing": "a block without a plan in a dialect that has plans",
    "empty_plan": "a plan without entries",
    "duplicate_plan": "a second plan in one block",
    "stale_outline": "the end of a plan which was not begun in this block",
    "number_missing": "an entry or a branch without its number",
    "duplicate_number": "a number that was already given in this block",
    "number_gap": "numbers that are not 1, 2, … in order",
    "number_mismatch": "branches numbered otherwise than the plan",
    "count_mismatch": "more or fewer branches than entries of the plan",
    "no_branches": "a block without a branch",
    "one_branch": "fewer branches than the dialect asks for",
    "too_many_branches": "more branches than the dialect allows",
    "stray_text": "text between the parts of a block",
    "foreign_tag": "a tag of another dialect inside a block",
    "summary_missing": "a block without the merge that must follow it",
    "duplicate_summary": "a second merge for one block",
}

#: Meaning of every code of harmless deviations.
NOTES: dict[str, str] = {
    "alias_tag": "another name or form of a tag, such as `<Thread 1>`",
    "bare_outline": "entries of a plan written as lines without tags",
    "loose_number": "a number in a block inside a branch that is not written after the branch's",
    "legacy_merge": "a merge in a dialect that no longer has one",
    "empty_branch": "a branch without text",
    "empty_title": "an entry of a plan without text",
    "empty_summary": "a merge without text",
    "unclosed_reasoning": "the reasoning is opened and not closed",
}

#: Codes of forms that reading may accept and neither a writer nor a grammar ever makes.
VARIANTS = frozenset({"alias_tag", "bare_outline", "legacy_merge", "loose_number", "stray_text"})


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One deviation, at characters ``start`` to ``end`` of the text."""

    code: str
    message: str
    start: int = 0
    end: int = 0
    tolerated: bool = False

    @property
    def is_error(self) -> bool:
        return self.code in ERRORS and not self.tolerated

    @property
    def severity(self) -> Severity:
        return "error" if self.is_error else "note"
