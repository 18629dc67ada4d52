"""What a policy of the lab's reinforcement-learning studies does on held-out problems.

One sampled answer to each problem, as the policy samples in training. Every answer is kept with
its kind, form, path and verdict, so that tables over sizes, path limits and problems need no new
run. How policies are trained is in :mod:`anabranch.lab.reproduce`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.decoding.seeds import derive_seed
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.families import draw_distinct
from anabranch.lab.rl_arms import Arm
from anabranch.lab.rl_tasks import as_problem, grader_of, open_setup
from anabranch.metrics import summarise, trajectory_metrics
from anabranch.records import Problem, Sampling, Trajectory

#: A rollout may be this long; the longest reference solution of the studies has 350 tokens.
LIMITS = {"max_total_tokens": 700}
#: The file of an arm's held-out answers, before and after.
ANSWERS = "answers.jsonl"
#: One row per answer: kind, right, forked, path, tokens.
Answers = list[dict[str, Any]]


def measure(
    model: Any, arm: Arm, start: Path, problems: int, *, seed: int = 10_007
) -> tuple[dict[str, float], Answers]:
    """Figures of a policy and the answers they come from.

    Args:
        model: with the lab's vocabulary.
        arm: says which problems, and how they are graded.
        start: checkpoint whose tokenizer is used.
        problems: of each kind, or as many as are held out.
        seed: of problems and sampling; the same for all arms, so that they are compared on the
            same problems.
    """
    from anabranch.training.rl_config import RLConfig
    from anabranch.training.rollouts import LockstepSampler

    tokenizer = load_tokenizer(start)
    sampler = LockstepSampler(model, tokenizer)
    drawn = [
        as_problem(problem)
        for family, sizes in arm.pools
        for size in sizes
        for problem in draw_distinct(seed, family, size, problems, fewer=True)
    ]
    limits = RLConfig.model_validate({"limits": LIMITS}).limits
    setups = [
        replace(
            open_setup(problem, tokenizer, sampler.engine),
            id=f"held-out/{number}",
            problem=problem,
            limits=limits,
            sampling=Sampling(temperature=1.0, seed=derive_seed(seed, number)),
        )
        for number, problem in enumerate(drawn)
    ]
    done = sampler.sample(setups)
    grade = grader_of(arm.fork_cost)
    right = [grade(problem, found).correct for problem, found in zip(drawn, done, strict=True)]
    answers = [_row(*one) for one in zip(drawn, done, right, strict=True)]
    return _figures(done, answers), answers


def _row(problem: Problem, trajectory: Trajectory, right: bool) -> dict[str, Any]:
    figures = trajectory_metrics(trajectory)
    extra: Mapping[str, Any] = problem.model_extra or {}
    return {
        "kind": " ".join(str(part) for part in (problem.family, *extra["size"])),
        "right": right,
        "forked": bool(trajectory.blocks),
        "path": figures.critical_path,
        "tokens": figures.total_tokens,
    }


def _figures(done: Sequence[Trajectory], answers: Answers) -> dict[str, float]:
    summary = summarise([trajectory_metrics(trajectory) for trajectory in done])
    found = {
        "answers": float(len(done)),
        "accuracy": share(answers, "right"),
        "parallel_ratio": summary.parallel_ratio,
        "subtask_ratio": summary.subtask_ratio,
        "trial_ratio": summary.trial_ratio,
        "activation": share(answers, "forked"),
        "path": summary.critical_path,
        "tokens": summary.total_tokens,
        "well_formed": summary.format_correctness or 0.0,
    }
    for name, kind in (("line", False), ("fork", True)):
        of_form = [one for one in answers if one["forked"] is kind]
        if of_form:
            found[f"accuracy_{name}"] = share(of_form, "right")
    for kind in dict.fromkeys(one["kind"] for one in answers):
        of_kind = [one for one in answers if one["kind"] == kind]
        found[f"accuracy {kind}"] = share(of_kind, "right")
        found[f"activation {kind}"] = share(of_kind, "forked")
        found[f"path {kind}"] = sum(one["path"] for one in of_kind) / len(of_kind)
    return found


def share(answers: Answers, what: str) -> float:
    """The share of answers for which a field holds."""
    return sum(bool(one[what]) for one in answers) / len(answers)


def right_within(answers: Answers, limit: int) -> float:
    """The share of right answers whose path has at most ``limit`` tokens.

    An answer that a limit would have cut has no answer then: the curve of stopping at a limit.
    """
    return sum(bool(one["right"] and one["path"] <= limit) for one in answers) / len(answers)
