"""Runs the arms of a claim, one after another and each resumable, and says what came out.

Every arm and seed has a directory; a finished one is read, a stopped one goes on. Models to begin
with are made once. The figures are of held-out problems, sampled as the policy samples; tables and
plots of them are in :mod:`anabranch.lab.reproduce_page`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.checkpoint import load_checkpoint_info, save_checkpoint_info
from anabranch.decoding.seeds import derive_seed
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw_distinct
from anabranch.lab.rl_arms import CLAIMS, PAPERS, Arm, Claim, StartName
from anabranch.lab.rl_tasks import (
    OPEN_PROMPT,
    LabPool,
    as_problem,
    grade_lab,
    make_chooser,
    open_setup,
)
from anabranch.metrics import summarise, trajectory_metrics
from anabranch.records import Sampling

Note = Callable[[str], None]

RESULT = "arm.json"
#: A rollout may be this long; the longest reference solution of the studies has 350 tokens.
LIMITS = {"max_total_tokens": 700}


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
    from anabranch.training.config import load_config
    from anabranch.training.rl import Task, train_rl
    from anabranch.training.rl_config import RLConfig
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
            **arm.settings,
        }
    )
    before = measure(model, arm, start, problems)
    note(f"{arm.name} seed {seed}: {_line(before)}")
    began = time.process_time()
    task = Task(
        LabPool(arm.family, arm.sizes, seed),
        lambda problem: open_setup(problem, tokenizer, sampler.engine),
        grade_lab,
    )
    sampler = _sampler(model, tokenizer)
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
    after = measure(model, arm, start, problems)
    note(f"{arm.name} seed {seed} after {arm.steps} steps: {_line(after)}; {seconds:.0f} CPU s")
    return _write(done, arm, seed, before, after, seconds, _log(folder))


def _write(done: Path, arm: Arm, seed: int, *figures: Any) -> dict[str, Any]:
    from anabranch.training.runs import write_json

    names = ("before", "after", "cpu_seconds", "log")
    result = {"arm": arm.name, "start": arm.start, "seed": seed, "steps": arm.steps}
    result |= dict(zip(names, figures, strict=True))
    write_json(done, result)
    return result


def measure(
    model: Any, arm: Arm, start: Path, problems: int, *, seed: int = 10_007
) -> dict[str, float]:
    """Figures of a policy on held-out problems, one sampled answer to each."""
    tokenizer = load_tokenizer(start)
    sampler = _sampler(model, tokenizer)
    drawn = [
        as_problem(problem)
        for size in arm.sizes
        for problem in draw_distinct(seed, arm.family, size, problems)
    ]
    from anabranch.training.rl_config import RLConfig

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
    right = [grade_lab(p, t).correct for p, t in zip(drawn, done, strict=True)]
    summary = summarise([trajectory_metrics(trajectory) for trajectory in done])
    forked = [bool(trajectory.blocks) for trajectory in done]
    found = {
        "answers": float(len(done)),
        "accuracy": sum(right) / len(done),
        "parallel_ratio": summary.parallel_ratio,
        "activation": summary.activation_ratio,
        "path": summary.critical_path,
        "tokens": summary.total_tokens,
        "well_formed": summary.format_correctness or 0.0,
    }
    for name, kind in (("line", False), ("fork", True)):
        of_kind = [ok for ok, fork in zip(right, forked, strict=True) if fork is kind]
        if of_kind:
            found[f"accuracy_{name}"] = sum(of_kind) / len(of_kind)
    return found


def make_start(name: StartName, folder: Path, *, note: Note = print) -> Path:
    """The checkpoint that a study begins with; made once.

    ``both_right``: the bundled model, taught to answer open prompts in either form.
    ``half_trained``: as the first, with three in ten samples of either form ending wrong.
    ``sequential_better``: as the first, with a third of the parallel samples ending wrong.
    """
    target = folder / name
    if (target / "config.json").is_file():
        return target
    note(f"making the model to begin with: {name}")
    begun = time.process_time()
    fresh = folder / f".{name}"
    shutil.rmtree(fresh, ignore_errors=True)
    _MAKERS[name](fresh, folder, note)
    fresh.replace(target)
    note(f"{name} took {time.process_time() - begun:.0f} CPU s")
    return target


def _both_right(target: Path, folder: Path, note: Note) -> None:
    _chooser(bundled_model(), target, sizes=((2, 5), (3, 5)), steps=150)


def _half_trained(target: Path, folder: Path, note: Note) -> None:
    from anabranch.lab.rl_starts import damaged

    damaged(target, {"sequential": 0.3, "parallel": 0.3})


def _sequential_better(target: Path, folder: Path, note: Note) -> None:
    from anabranch.lab.rl_starts import damaged

    damaged(target, {"parallel": 0.35})


_MAKERS: dict[str, Callable[[Path, Path, Note], None]] = {
    "both_right": _both_right,
    "half_trained": _half_trained,
    "sequential_better": _sequential_better,
}


def _chooser(base: Path, target: Path, **settings: Any) -> None:
    from anabranch.training.sft import load_for_training

    model, hub = load_for_training(base)
    make_chooser(model, load_tokenizer(base), **settings)
    save_open(model, hub, base, target)


def save_open(model: Any, hub: Any, base: Path, target: Path) -> None:
    """A lab checkpoint whose ordinary prompt is the open one."""
    from anabranch.engines.local_load import quiet_loading

    with quiet_loading():
        model.save_pretrained(target)
    hub.save_pretrained(target)
    info = load_checkpoint_info(base)
    prompts = {**info.prompts, "open": OPEN_PROMPT}
    save_checkpoint_info(info.model_copy(update={"prompts": prompts}), target)


def _sampler(model: Any, tokenizer: Any) -> Any:
    from anabranch.training.rollouts import LockstepSampler

    return LockstepSampler(model, tokenizer)


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
