"""Lab problems as tasks of reinforcement learning: endless draws, the families' own checkers.

``open`` prompts carry no form marker, so the policy itself chooses between a line and a fork.
:func:`make_chooser` trains a lab model on them for a minute, with a known share of each form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anabranch.decoding import Setup, trajectory_from_text
from anabranch.engines.base import Engine, Tokenizer
from anabranch.lab.chains import OPERATORS
from anabranch.lab.data import lab_setup
from anabranch.lab.families import LabProblem, draw, family_of
from anabranch.lab.structure import MARKERS, Form, extract_answer
from anabranch.records import Problem, Trajectory, Verdict

#: Prompt without any marker: the form is the policy's choice.
OPEN_PROMPT = "<bos>{problem}"


@dataclass(frozen=True, slots=True)
class LabPool:
    """An endless pool: problem ``index`` is a function of seed and index alone.

    Attributes:
        family, sizes: what is drawn.
        seed: of the draws.
    """

    family: str
    sizes: tuple[tuple[int, ...], ...]
    seed: int = 0

    def __getitem__(self, index: int) -> Problem:
        rng = random.Random(f"{self.seed}:{self.family}:{index}")
        return as_problem(draw(rng, self.family, rng.choice(self.sizes)))


@dataclass(frozen=True, slots=True)
class Mixed:
    """Several endless pools, one problem of each in turn."""

    pools: tuple[LabPool, ...]

    def __getitem__(self, index: int) -> Problem:
        return self.pools[index % len(self.pools)][index // len(self.pools)]


def pool_of(pools: Sequence[tuple[str, tuple[tuple[int, ...], ...]]], seed: int) -> LabPool | Mixed:
    """The problems of a run: families with their sizes."""
    made = tuple(LabPool(family, sizes, seed) for family, sizes in pools)
    return made[0] if len(made) == 1 else Mixed(made)


def as_problem(problem: LabProblem) -> Problem:
    """A lab problem as a record; its size is kept."""
    return Problem.model_validate(
        {
            "id": problem.text,
            "problem": problem.text,
            "family": problem.family,
            "size": list(problem.size),
        }
    )


def open_setup(problem: Problem | LabProblem, tokenizer: Tokenizer, engine: Engine) -> Setup:
    """How a lab problem is decoded when the policy chooses the form."""
    text = problem.text
    lab = LabProblem(family_of(text).name, text, ())
    prompt = OPEN_PROMPT.replace("{problem}", text)
    return replace(
        lab_setup(lab, "parallel", tokenizer),
        prompt=prompt,
        prompt_ids=tuple(tokenizer.encode(prompt)),
        window=engine.capabilities.window,
        model=engine.model,
        engine=engine.name,
    )


def grade_lab(problem: Problem, trajectory: Trajectory) -> Verdict:
    """The family's own checker as a grader."""
    answer = extract_answer(trajectory.text)
    if trajectory.outcome in ("truncated", "context_exhausted"):
        return Verdict(status="truncated", answer=answer)
    if answer is None:
        return Verdict(status="unparsed", reason="no boxed answer")
    right = family_of(problem.text).check(problem.text, trajectory.text)
    return Verdict(status="correct" if right else "wrong", answer=answer)


def grader_of(fork_cost: float) -> Callable[[Problem, Trajectory], Verdict]:
    """The lab's grader, or one for a task on which forking costs accuracy.

    There a share of the problems, the same for every policy and seed, counts as wrong whenever it
    was forked: no training of the branches can mend that, only answering in a line.

    Args:
        fork_cost: the share; 0 is the plain grader.
    """
    if fork_cost == 0:
        return grade_lab

    def grade(problem: Problem, trajectory: Trajectory) -> Verdict:
        verdict = grade_lab(problem, trajectory)
        unfit = random.Random(f"unfit for forking:{problem.text}").random() < fork_cost
        if verdict.correct and trajectory.blocks and unfit:
            reason = "this problem counts as wrong when forked"
            return Verdict(status="wrong", answer=verdict.answer, reason=reason)
        return verdict

    return grade


def open_sample(
    problem: LabProblem, form: Form, tokenizer: Tokenizer, *, shift: int = 0
) -> Trajectory:
    """The reference solution in a form, behind the open prompt: one training sample.

    ``shift`` makes the answer wrong, for models with a known weakness: by so much (modulo 10), or
    another last operator.
    """
    setup = lab_setup(problem, form, tokenizer)
    prompt = OPEN_PROMPT.replace("{problem}", problem.text)
    setup = replace(setup, prompt=prompt, prompt_ids=tuple(tokenizer.encode(prompt)))
    solution = problem.solve(form)
    if shift:
        last = solution.answer[-1]
        others = OPERATORS.replace(last, "")
        wrong = str((int(last) + shift) % 10) if last.isdigit() else others[shift % len(others)]
        changed = solution.answer[:-1] + wrong
        solution = replace(
            solution, answer=changed, continuation=solution.continuation[:-1] + wrong
        )
    return trajectory_from_text(solution.text(), setup)


def make_chooser(
    model: Any,
    tokenizer: Tokenizer,
    *,
    family: str = "chains",
    sizes: Sequence[tuple[int, ...]] = ((2, 5), (3, 5)),
    forms: Mapping[Form, float] | None = None,
    steps: int = 150,
    tokens: int = 3000,
    rate: float = 5e-4,
    seed: int = 0,
    output: Path | None = None,
) -> Any:
    """Teach a lab model to answer open prompts in either form, by chance; trains in place.

    Args:
        model: a lab model.
        tokenizer: the lab's.
        family, sizes: of the problems.
        forms: the share of each form; default half in a line, half forked.
        steps, tokens, rate, seed: of the training.
        output: directory of the run.
    """
    from anabranch.training.config import SFTConfig
    from anabranch.training.data import Endless
    from anabranch.training.sft import train_sft

    shares: dict[Form, float] = dict(forms) if forms else {"sequential": 0.5, "parallel": 0.5}
    if not set(shares) <= set(MARKERS):
        raise ValueError(f"unknown forms in {shares}")

    def sample(index: int) -> Trajectory:
        rng = random.Random(f"{seed}:open:{index}")
        problem = draw(rng, family, rng.choice(list(sizes)))
        form: Form = rng.choices(list(shares), list(shares.values()))[0]
        return open_sample(problem, form, tokenizer)

    config = SFTConfig(
        seed=seed,
        steps=steps,
        tokens_per_batch=tokens,
        learning_rate=rate,
        warmup=0.05,
        weight_decay=0.0,
        beta2=0.98,
        log_every=25,
    )
    return train_sft(model, Endless(sample), config, output=output).model
