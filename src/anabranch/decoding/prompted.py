"""The prompt for a model that was not trained on a dialect: how its blocks are written, and one
short worked example. Made from the dialect's description, so a new dialect has one too.

The chat template around it is :mod:`anabranch.decoding.prompts`; the grammar that holds the model
to the form is :mod:`anabranch.decoding.constrained`.
"""

from __future__ import annotations

from anabranch.dialects import Block, Branch, Dialect, Document, PlanItem, TextPart, write

_PROBLEM = (
    "A shop sells 3 boxes of 12 pens and 4 boxes of 8 pencils. "
    "How many pens and pencils does it sell together?"
)
#: Title, and what a branch writes, where the work is divided …
_SHARES = (
    ("count the pens", "3 boxes of 12 pens are 3 × 12 = 36 pens."),
    ("count the pencils", "4 boxes of 8 pencils are 4 × 8 = 32 pencils."),
)
#: … and where the branches try different ways.
_WAYS = (
    ("multiply", "3 × 12 = 36 and 4 × 8 = 32, so 36 + 32 = 68."),
    ("add up box by box", "12 + 12 + 12 = 36 and 8 + 8 + 8 + 8 = 32, so 36 + 32 = 68."),
)


def instructions(problem: str, dialect: Dialect) -> str:
    """The user's message: what a block is, an example, and the problem."""
    shown = write(example(dialect), dialect)
    return (
        "Solve the problem at the end. Where parts of the work do not depend on each other, write "
        f"a block; {_about(dialect)} The branches of a block are written at the same time and "
        "cannot see each other, so no branch may refer to another. "
        f"{_block(dialect)} Write tags nowhere else. {_ending(dialect)}\n\n"
        f"Example problem: {_PROBLEM}\n\nExample answer:\n{shown}\n\n"
        f"Problem: {problem}"
    )


def example(dialect: Dialect) -> Document:
    """The worked example as a document of the dialect."""
    either = dialect.is_or(dialect.branch_kind)
    kind = dialect.plan.default_kind if dialect.plan else dialect.branch_kind
    parts = _WAYS if either else _SHARES
    plan = [PlanItem(n, kind, title) for n, (title, _) in enumerate(parts, 1)]
    branches = [Branch(n, kind, text) for n, (_, text) in enumerate(parts, 1)]
    merge = "Both ways give 68." if either else "There are 36 pens and 32 pencils."
    block = Block(
        plan=plan if dialect.plan else [],
        branches=branches,
        merge=merge if dialect.merge is not None else None,
    )
    before = "The pens and the pencils can be counted apart.\n"
    if either:
        before = "Two ways can check each other.\n"
    after = "\nTogether that is 68.\n" if either else "\nTogether that is 36 + 32 = 68.\n"
    if dialect.think is not None:
        before = f"{dialect.think.open}\n{before}"
        after += f"{dialect.think.close}\n"
    return Document([TextPart(before), block, TextPart(after + _answer(dialect, "68"))])


def _about(dialect: Dialect) -> str:
    if dialect.plan is None:
        return "it holds two or more independent ways to go on."
    if len(dialect.plan.items) > 1:
        kinds = ", ".join(f"{tag.open} for a {kind}" for kind, tag in dialect.plan.items.items())
        return f"it begins with a numbered plan, one entry a branch ({kinds})."
    return "it begins with a numbered plan, one entry a branch."


def _block(dialect: Dialect) -> str:
    first = dialect.branch_header(1).replace("\n", " ")
    rule = f"A branch is written as `{first} … {dialect.branch.close}`"
    if dialect.plan is not None:
        rule += ", one for each entry of the plan, in the same order"
    if dialect.merge is not None:
        rule += f"; then {dialect.merge.open} … {dialect.merge.close} says what follows from them"
    return rule + "."


def _ending(dialect: Dialect) -> str:
    close = f"After {dialect.think.close} give" if dialect.think else "End with"
    return f"{close} the final answer as {_answer(dialect, 'ANSWER')}."


def _answer(dialect: Dialect, answer: str) -> str:
    prefix = dialect.answer_prefix
    if prefix.endswith("{"):
        return f"{prefix}{answer}}}"
    return f"{prefix} {answer}".strip()
