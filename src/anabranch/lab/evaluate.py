"""Solves lab problems with an engine and says how each went; the split is the caller's.

One problem in one form gives one :class:`Solved`. Tables and pages are made of them in
:mod:`anabranch.lab.results`; general evaluation of models is not the lab's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from anabranch.decoding import FirstConclusive, JoinPolicy, OnText, Setup, decode_many
from anabranch.dialects import get_dialect, parse
from anabranch.engines.base import Engine
from anabranch.lab.data import DIALECT, lab_setup
from anabranch.lab.families import LabProblem
from anabranch.lab.puzzle import succeeded
from anabranch.lab.structure import Form
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Trajectory


@dataclass(frozen=True)
class Solved:
    """One problem, one form: whether the answer is right, and what it took.

    ``path`` is the critical path in sampled tokens, ``total`` all sampled tokens, ``seconds`` the
    wall clock of this trajectory alone (only meaningful where it ran alone).
    """

    problem: LabProblem
    form: Form
    correct: bool
    well_formed: bool
    forked: bool
    total: int
    path: int
    seconds: float
    trajectory: Trajectory

    def within(self, path_limit: float) -> bool:
        """Right under a limit on the path that simply ends the answer (no reserve)."""
        return self.correct and self.path <= path_limit


#: Ends a block at the first trial whose verdict is a success.
FIRST_SUCCESS = FirstConclusive(OnText(succeeded))


def judge(problem: LabProblem, form: Form, trajectory: Trajectory) -> Solved:
    """Check one finished trajectory."""
    figures = trajectory_metrics(trajectory)
    return Solved(
        problem=problem,
        form=form,
        correct=trajectory.outcome == "answered" and problem.check(trajectory.text),
        well_formed=parse(trajectory.text, get_dialect(DIALECT)).well_formed,
        forked=bool(trajectory.blocks),
        total=figures.total_tokens,
        path=figures.critical_path,
        seconds=trajectory.seconds or 0.0,
        trajectory=trajectory,
    )


async def solve_all(
    engine: Engine,
    problems: Sequence[LabProblem],
    form: Form,
    *,
    policy: JoinPolicy | None = None,
    limits: Limits | None = None,
    concurrency: int = 64,
) -> list[Solved]:
    """Solve problems in one form, greedily, ``concurrency`` at a time; in their order."""

    def setups() -> Iterable[Setup]:
        for problem in problems:
            yield with_limits(lab_setup(problem, form, engine.tokenizer, policy), engine, limits)

    done = await decode_many(setups(), engine, concurrency=concurrency)
    return [judge(p, form, t) for p, t in zip(problems, done, strict=True)]


def with_limits(setup: Setup, engine: Engine, limits: Limits | None) -> Setup:
    """A lab setup for one engine."""
    return replace(
        setup,
        limits=limits or Limits(),
        window=engine.capabilities.window,
        model=engine.model,
        engine=engine.name,
        logprobs=False,
    )
