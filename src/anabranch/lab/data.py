"""Lab problems as trajectories: training data made by the decoding machine itself.

Each solution's text is run through the machine, so what the runtime forces, how segments are
encoded and what a cancelled trial leaves behind are what decoding will do. Which problems are
drawn, and how often, is in :mod:`anabranch.lab.recipe`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from anabranch.decoding import (
    BlockView,
    Decision,
    JoinPolicy,
    Setup,
    WaitForAll,
    trajectory_from_text,
)
from anabranch.dialects import get_dialect
from anabranch.engines.base import Tokenizer
from anabranch.lab.families import LabProblem, family_of
from anabranch.lab.structure import MARKERS, Form, prompt_of
from anabranch.records import Problem, Trajectory

DIALECT = "parason:compact"

#: Prompt template by mode, for ``anabranch.json``.
PROMPTS: dict[str, str] = {form: prompt_of("{problem}", form) for form in MARKERS}


@dataclass(frozen=True, slots=True)
class CancelThese(JoinPolicy):
    """Cancels the named branches as soon as another has closed: a race with a known end."""

    numbers: frozenset[int]

    @property
    def name(self) -> str:
        return "first_conclusive"

    def decide(self, block: BlockView) -> Decision | None:
        if block.ended is None or block.ended in self.numbers:
            return None
        losers = tuple(n for n in block.running() if n in self.numbers)
        return Decision(losers, (block.ended,), "the race of the reference")


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
    policy: JoinPolicy | None = None,
) -> Trajectory:
    """The reference solution as the trajectory that decoding it would have recorded.

    Args:
        problem, form: what is solved, and how.
        tokenizer: the lab's.
        winner: number of the branch whose success ended the race, if there was one.
        cancelled: numbers of the branches that it cancelled.
        policy: decides the race instead, with all branches in lockstep.
    """
    solution = problem.solve(form)
    policy = CancelThese(cancelled) if cancelled else policy
    setup = lab_setup(problem, form, tokenizer, policy)
    return trajectory_from_text(solution.text(), setup, first=winner if cancelled else None)


_PROMPT = re.compile(r"(?:<bos>)?(?P<problem>.*?)(?P<marker>\[(?:seq|par|mix)\])(?P<rest>.*)", re.S)
_OPEN_BRANCH = re.compile(r"<Thread>(\d+):$")


def perfect_reply(prompt: str) -> str:
    """What a model without a fault writes next: the reference solution from wherever it stands.

    For engines that follow a script, such as the simulated one. The reply runs on to the end of
    the branch or of the answer; stop strings are the engine's business.

    Raises:
        ValueError: the prompt is no lab problem, or what follows it is no reference solution.
    """
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a lab prompt: {prompt!r}")
    form = next(form for form, marker in MARKERS.items() if marker == match["marker"])
    rest = match["rest"]
    problem = match["problem"]
    solution = family_of(problem).solve(problem, form)
    if branch := _OPEN_BRANCH.search(rest):
        return solution.branches[int(branch[1]) - 1] + "</Thread>"
    if rest.endswith("</Parallel>"):
        return solution.ending
    text = solution.text()
    if not text.startswith(rest):
        raise ValueError(f"not on the way to the reference solution: {rest!r}")
    return text[len(rest) :]
