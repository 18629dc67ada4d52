"""Runs the arms of a claim, one after another and each resumable, and says what came out.

Every arm and seed has a directory; a finished one is read, a stopped one goes on. Models to begin
with are made once. The figures are of held-out problems, sampled as the policy samples; tables and
plots of them are in :mod:`anabranch.lab.reproduce_page`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.jsonl import write_records
from anabranch.lab.rl_arms import CLAIMS, PAPERS, Arm, Claim
from anabranch.lab.rl_measure import ANSWERS, LIMITS, Answers, measure
from anabranch.lab.rl_starts import make_start
from anabranch.lab.rl_tasks import grader_of, open_setup, pool_of

Note = Callable[[str], None]

RESULT = "arm.json"


def claims_of(name: str) -> list[Claim]:
    """The claims of a paper, or one by its own name.

    Raises:
        UsageError: neither is known.
    """
    names = PAPERS.get(name, (name,))
    if names[0] not in CLAIMS:
        known = ", ".join([*PAPERS, *CLAIMS])
        raise UsageError(f"nothing is known of {name!r}; known: {known}")
    return [CLAIMS[one] for one in names]


def run_claim(
    claim: Claim,
    output: Path,
    *,
    seeds: Sequence[int],
    arms: Sequence[str] = (),
    steps: int | None = None,
    problems: int = 100,
    note: Note = print,
) -> list[dict[str, Any]]:
    """Run what is not done yet; returns the results of all arms and seeds.

    Args:
        claim: what is run.
        output: directory of the study.
        seeds: each arm is run with every seed.
        arms: names of the arms; none are all.
        steps: instead of each arm's own number.
        problems: held-out problems of each size that are measured.
        note: told how it goes.

    Raises:
        UsageError: no such arm.
    """
    known = [arm.name for arm in claim.arms]
    unknown = sorted(set(arms) - set(known))
    if unknown:
        raise UsageError(f"{claim.name} has no arm {unknown[0]!r}; known: {', '.join(known)}")
    chosen = [arm for arm in claim.arms if not arms or arm.name in arms]
    found = []
    for seed in seeds:
        for arm in chosen:
            shortened = arm if steps is None else replace(arm, steps=steps)
            folder = output / claim.name / f"{arm.name}-{seed}"
            found.append(run_arm(shortened, seed, folder, output / "starts", problems, note))
    return found


def run_arm(
    arm: Arm, seed: int, folder: Path, starts: Path, problems: int = 100, note: Note = print
) -> dict[str, Any]:
    """One arm with one seed: figures before and after, and the log of its steps."""
    from anabranch.config import load_config
    from anabranch.training.rl import Task, train_rl
    from anabranch.training.rl_config import RLConfig
    from anabranch.training.rollouts import LockstepSampler
    from anabranch.training.sft import load_for_training

    done = folder / RESULT
    if done.is_file():
        result: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return result
    start = make_start(arm.start, starts, note=note)
    model, hub = load_for_training(start)
    tokenizer = load_tokenizer(start)
    config = load_config(RLConfig).model_validate(
        {
            "seed": seed,
            "steps": arm.steps,
            "schedule": dict(arm.schedule),
            "advantage": arm.advantage,
            "learning_rate": arm.rate,
            "limits": LIMITS,
            "beta2": 0.98,
            "save_every": 10,
            "keep": 1,
            "patience": max(arm.steps, 1),
            "keep_trajectories": max(arm.steps // 4, 1),
            **arm.settings,
        }
    )
    before, first = measure(model, arm, start, problems)
    note(f"{arm.name} seed {seed}: {_line(before)}")
    began = time.process_time()
    task = Task(
        pool_of(arm.pools, seed),
        lambda problem: open_setup(problem, tokenizer, sampler.engine),
        grader_of(arm.fork_cost),
    )
    sampler = LockstepSampler(model, tokenizer)
    rl = train_rl(
        model,
        tokenizer,
        task,
        config,
        output=folder,
        resume=True,
        sampler=sampler,
        info=load_checkpoint_info(start),
        save_tokenizer=hub.save_pretrained,
        on_step=lambda row: note(_step(arm.name, seed, row)),
    )
    if rl.interrupted:
        raise UsageError(f"stopped after step {rl.steps}; the same command goes on")
    seconds = time.process_time() - began
    after, last = measure(model, arm, start, problems)
    _keep(folder / ANSWERS, first, last)
    note(f"{arm.name} seed {seed} after {arm.steps} steps: {_line(after)}; {seconds:.0f} CPU s")
    return _write(done, arm, seed, before, after, seconds, _log(folder))


def _keep(path: Path, first: Answers, last: Answers) -> None:
    rows = [
        {"when": when, **row} for when, of in (("before", first), ("after", last)) for row in of
    ]
    write_records(path, rows)


def _write(done: Path, arm: Arm, seed: int, *figures: Any) -> dict[str, Any]:
    from anabranch.training.runs import write_json

    names = ("before", "after", "cpu_seconds", "log")
    result = {"arm": arm.name, "start": arm.start, "seed": seed, "steps": arm.steps}
    result |= dict(zip(names, figures, strict=True))
    write_json(done, result)
    return result


def _log(folder: Path) -> list[dict[str, Any]]:
    from anabranch.jsonl import read_rows

    names: tuple[str, ...] = (
        "step",
        "stage",
        "reward_name",
        "accuracy",
        "parallel_ratio",
        "path",
        "activation",
    )
    names += ("seconds", "seconds_sampling", "seconds_update", "gap", "reward")
    rows = (row for _, row in read_rows(folder / "log.jsonl"))
    return [{name: row[name] for name in names if name in row} for row in rows]


def _line(figures: dict[str, float]) -> str:
    shown = partial("{}={:.3g}".format)
    names = ("accuracy", "parallel_ratio", "activation", "path", "accuracy_line", "accuracy_fork")
    return " ".join(shown(name, figures[name]) for name in names if name in figures)


def _step(name: str, seed: int, row: dict[str, Any]) -> str:
    return (
        f"{name}-{seed} {row['step']:3d} right {row['accuracy']:.2f} "
        f"parallel {row['parallel_ratio']:.2f} path {row['path']:.0f} gap {row['gap'] or 0:.1e} "
        f"{row['seconds']:.1f} s (sampling {row['seconds_sampling']:.1f}, "
        f"update {row['seconds_update']:.1f})"
    )
