"""How a suite's answers are found and compared: a small record that travels with the suite.

What each option does is in :mod:`anabranch.grading.extract` and :mod:`anabranch.grading.compare`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from anabranch.records import Record

Step = Literal["boxed", "final_answer", "hashes", "answer_is", "bare", "math", "last_number"]

STEPS: tuple[Step, ...] = (
    "boxed",
    "final_answer",
    "hashes",
    "answer_is",
    "bare",
    "math",
    "last_number",
)


class Rules(Record):
    """Extraction and comparison.

    Attributes:
        steps: where the answer is looked for; the first step that finds one decides.
        branches: whether an answer that stands in a branch only counts.
        reasoning: whether an answer inside closed reasoning counts when none follows it.
        checker: the name of a registered checker; None compares with the gold.
        gold_digits: from how many significant digits on a decimal gold is a rounded value, which an
            answer meets when it rounds to it.
        answer_digits: the same for a decimal answer to an exact gold that is no whole number.
        relative: relative tolerance for decimal golds; None: rounding as above.
        max_chars: longer answers are compared by identity only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: tuple[Step, ...] = STEPS
    branches: bool = False
    reasoning: bool = False
    checker: str | None = None
    gold_digits: int = Field(default=3, ge=1)
    answer_digits: int = Field(default=4, ge=1)
    relative: float | None = Field(default=None, gt=0, lt=1)
    max_chars: int = Field(default=5000, ge=1)


DEFAULT = Rules()
