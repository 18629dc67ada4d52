"""Lab problems as trajectories: training data made by the decoding machine itself.

Each solution's text is run through the machine, so what the runtime forces, how segments are
encoded and what a cancelled trial leaves behind are what decoding will do. Which problems are
drawn, and how often, is in :mod:`anabranch.lab.recipe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.decoding import JoinPolicy, Setup, WaitForAll, trajectory_from_text
from anabranch.decoding.joins import BranchView
from anabranch.dialects import get_dialect
from anabranch.engines.base import Tokenizer
from anabranch.lab.families import LabProblem
from anabranch.lab.structure import MARKERS, Form, prompt_of
from anabranch.records import Problem, Trajectory

DIALECT = "parason:compact"

#: Prompt template by mode, for ``anabranch.json``.
PROMPTS = {form: prompt_of("{problem}", form) for form in MARKERS}


@dataclass(frozen=True, slots=True)
class CancelThese:
    """Cancels the named branches as soon as another has closed: a race with a known end."""

    numbers: frozenset[int]
    name: str = field(default="first_conclusive")

    def losers(self, branches: Sequence[BranchView], closed: int) -> list[int]:
        return [b.number for b in branches if b.number in self.numbers and not b.closed]


def lab_setup(
    problem: LabProblem,
    form: Form,
    tokenizer: Tokenizer,
    policy: JoinPolicy | None = None,
) -> Setup:
    """How a lab problem is decoded in one form."""
    prompt = prompt_of(problem.text, form)
    return Setup(
        dialect=get_dialect(DIALECT),
        tokenizer=tokenizer,
        prompt=prompt,
        prompt_ids=tuple(tokenizer.encode(prompt)),
        policy=policy or WaitForAll(),
        mode="sequential" if form == "sequential" else "parallel",
        id=problem.text,
        problem=Problem(id=problem.text, problem=problem.text, family=problem.family),
    )


def reference_trajectory(
    problem: LabProblem,
    form: Form,
    tokenizer: Tokenizer,
    *,
    winner: int | None = None,
    cancelled: frozenset[int] = frozenset(),
) -> Trajectory:
    """The reference solution as the trajectory that decoding it would have recorded.

    Args:
        problem, form: what is solved, and how.
        tokenizer: the lab's.
        winner: number of the branch whose success ended the race, if there was one.
        cancelled: numbers of the branches that it cancelled.
    """
    solution = problem.solve(form)
    policy = CancelThese(cancelled) if cancelled else None
    setup = lab_setup(problem, form, tokenizer, policy)
    return trajectory_from_text(solution.text(), setup, first=winner if cancelled else None)
