"""Gets sequential traces from a model, and keeps the first that is right."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from anabranch.annotation.asking import Ask, Message
from anabranch.annotation.traces import read_trace
from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Stage, Work
from anabranch.grading import Grader

PROMPT = "{problem} Let's think step by step and output the final answer within \\boxed{{}}."


class Sample(Stage):
    """The stage ``sample``: ``{"text": …, "sample": number, "status": verdict}``.

    Attributes:
        samples: how often a problem is tried.
        template: the user's message; ``{problem}`` stands for the problem.
        temperature, max_tokens: of the answers.
        graded: whether a problem without a known answer is dropped; else its first finished
            trace is kept.
    """

    name: ClassVar[str] = "sample"
    asks: ClassVar[bool] = True

    samples: int = 1
    template: str = PROMPT
    temperature: float = 0.6
    max_tokens: int = 16_384
    graded: bool = True

    def work(self, row: Row) -> Work:
        """Asks until a trace is finished and right."""
        if row.answer is None and self.graded:
            return Drop("no_gold", "the right answer is not known")
        last = ""
        for number in range(self.samples):
            text: str = yield Ask(
                kind="sample",
                messages=(Message("user", self.template.format(problem=row.problem)),),
                read=str,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                sample=number,
            )
            faults = [fault for fault in read_trace(text).faults if fault != "no_wrapper"]
            if faults:
                last = faults[0]
                continue
            status = "ungraded"
            if row.answer is not None:
                status = grader().grade(row.answer, text).status
            if status in ("correct", "ungraded"):
                return Keep({"text": text, "sample": number, "status": status})
            last = status
        return Drop("not_right", f"the last of {self.samples} traces: {last.replace('_', ' ')}")


@cache
def grader() -> Grader:
    """The grader of this process."""
    return Grader(workers=1)
