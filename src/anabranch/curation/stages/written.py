"""Parallel texts that a model writes as a whole: conversion of a trace, and a cold start.

``convert`` turns a sequential trace into the form of subtasks and trials (Parason's conversion);
``cold_start`` has an easy problem solved in a dialect that is explained (Parallel-R1's first data).
Both keep only what the dialect's grammar accepts and what is right; a text that breaks it goes back
to the model with its first fault.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pydantic import field_validator

from anabranch.annotation.asking import AnswerError, Ask, Message
from anabranch.annotation.traces import read_trace
from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Stage, Work
from anabranch.curation.stages.sample import grader
from anabranch.dialects import Dialect, check_format, get_dialect, parse, write
from anabranch.errors import DialectError

CONVERT = """You turn a worked solution into a form in which independent parts can be worked out at
the same time. Keep its words; change only what a part needs to be read without the other parts.

Where parts do not need one another, write a block like this:
{example}
Use {kinds}. Each entry of the plan is one sentence that gives no result; each branch begins with
its number, and no branch uses what another one finds. Everything else stays outside of blocks, in
order. Blocks do not stand inside blocks. Answer with the new text alone."""

COLD_START = """Solve the problem. Where it helps, think in parallel: write

{example}

with at least two branches that do not refer to each other. Everything else is ordinary text. End
with the line "Final Answer: " and the answer in \\boxed{{}}.

Problem: {problem}"""

_KINDS = {
    "subtask": "Subtask for parts that are all needed",
    "trial": "Trial for different attempts of which one is enough",
    "outline": "Outline for each part",
}


class _Written(Stage):
    asks: ClassVar[bool] = True

    dialect: str = "parason"
    blocks: int = 1
    max_tokens: int = 16_384
    temperature: float = 0.0

    @field_validator("dialect")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            get_dialect(value)
        except DialectError as error:
            raise ValueError(str(error)) from None
        return value

    def _asked(self, row: Row, message: str) -> Work:
        dialect = get_dialect(self.dialect)
        text: str = yield Ask(
            kind=self.name,
            messages=(Message("user", message),),
            read=partial(_read, dialect=dialect, blocks=self.blocks),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )
        if row.answer is not None:
            verdict = grader().grade(row.answer, text, dialect=dialect)
            if not verdict.correct:
                return Drop("not_right", f"{verdict.answer!r} is {verdict.status}")
        return Keep({"text": text, "dialect": self.dialect})


class Convert(_Written):
    """The stage ``convert``: ``{"text": …, "dialect": …}``.

    Attributes:
        dialect: that is written; it must have a plan.
        blocks: the least number of blocks.
        max_tokens, temperature: of the answers.
    """

    name: ClassVar[str] = "convert"
    prompt: ClassVar[str] = CONVERT

    def work(self, row: Row) -> Work:
        """Asks for the whole text in the new form."""
        trace = read_trace(row.trace)
        faults = [fault for fault in trace.faults if fault != "no_wrapper"]
        if faults:
            return Drop(faults[0], f"the trace is {faults[0].replace('_', ' ')}")
        dialect = get_dialect(self.dialect)
        plan = dialect.plan
        kinds = [_KINDS.get(kind, kind) for kind in (plan.items if plan else ())]
        task = CONVERT.format(example=example(dialect), kinds=", ".join(kinds) or "branches")
        result = yield from self._asked(
            row, f"{task}\n\nProblem: {row.problem}\n\nSolution:\n{row.trace}"
        )
        return result


class ColdStart(_Written):
    """The stage ``cold_start``: ``{"text": …, "dialect": …}``.

    Attributes:
        dialect: that is explained and asked for.
        blocks: the least number of blocks.
        hardest: problems of a known difficulty above this are dropped: on hard problems hardly a
            text keeps the form.
        max_tokens, temperature: of the answers.
    """

    name: ClassVar[str] = "cold_start"
    prompt: ClassVar[str] = COLD_START

    dialect: str = "parallel-r1"
    hardest: float = 1.0
    temperature: float = 0.7

    def work(self, row: Row) -> Work:
        """Asks for a solution in the dialect."""
        if row.difficulty is not None and row.difficulty > self.hardest:
            return Drop("too_hard", f"difficulty {row.difficulty:g}")
        shown = example(get_dialect(self.dialect))
        result = yield from self._asked(row, COLD_START.format(example=shown, problem=row.problem))
        return result


def example(dialect: Dialect) -> str:
    """A block of the dialect with places for its texts, as a model is shown it."""
    from anabranch.dialects import Block, Branch, Document, PlanItem

    kinds = list(dialect.plan.items) if dialect.plan else [dialect.branch_kind]
    kind = kinds[0]
    plan = [PlanItem(n, kind, f"what to do in part {n}") for n in (1, 2)] if dialect.plan else []
    branches = [Branch(n, kind, f"the work of part {n}") for n in (1, 2)]
    merge = "what follows from the parts" if dialect.merge else None
    return write(Document([Block(plan, branches, merge)]), dialect)


def _read(text: str, dialect: Dialect, blocks: int) -> str:
    document = parse(text.strip(), dialect)
    errors = [finding for finding in check_format(document, dialect) if finding.is_error]
    if errors:
        raise AnswerError(f"{errors[0].code} at character {errors[0].start}: {errors[0].message}")
    found = len(document.blocks)
    if found < blocks:
        raise AnswerError(f"{blocks} or more blocks are needed, there are {found}")
    try:
        return write(document, dialect)
    except DialectError as error:
        raise AnswerError(str(error)) from None
