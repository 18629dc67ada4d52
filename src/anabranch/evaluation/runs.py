"""A run of a suite: arms decoded side by side, graded, in a folder that can be resumed.

An arm is a mode with its limits. Each arm's trajectories are a file that
:mod:`anabranch.decoding.batch` makes, so a run may be killed anywhere; verdicts are a second file,
made anew from it. What the run is a result of is kept in ``run.json``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from anabranch import __version__
from anabranch.decoding.batch import Tally, decode_file
from anabranch.decoding.setup import Setup
from anabranch.engines.base import Engine
from anabranch.errors import UsageError
from anabranch.evaluation.measures import Run, samples_of
from anabranch.evaluation.suites import LoadedSuite
from anabranch.grading import Grader, Item
from anabranch.jsonl import atomic_writer, read_records, write_records
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Problem, Trajectory

CONFIG = "run.json"
VERSION = 1
_BATCH = 256

#: From an arm, a problem and a trajectory's id to how it is decoded.
MakeSetup = Callable[["Arm", Problem, str], Setup]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering all problems.

    Attributes:
        name: of its files and columns.
        mode: as of ``solve``.
        limits: of each answer.
    """

    name: str
    mode: str
    limits: Limits


def make_arms(
    mode: str, limits: Limits, *, baseline: bool = True, paths: Sequence[int] = ()
) -> list[Arm]:
    """The arms of a run: the mode, the sequential form of the same model, and limited runs.

    Args:
        mode: that is evaluated.
        limits: of arms without a limit of their own.
        baseline: whether the sequential form is run beside it.
        paths: limits on the critical path; each is run with both ways of ending, ``stop`` and
            ``answer`` (from a reserve of an eighth of it).
    """
    modes = [mode] + (["sequential"] if baseline and mode != "sequential" else [])
    arms = [Arm(one, one, limits) for one in modes]
    for limit in paths:
        for one in modes:
            for ending in ("stop", "answer"):
                reserve = max(1, limit // 8) if ending == "answer" else 0
                changed = {
                    "max_path_tokens": limit,
                    "on_exhausted": ending,
                    "answer_reserve": reserve,
                }
                arms.append(Arm(f"{one}-{limit}-{ending}", one, limits.model_copy(update=changed)))
    return arms


class RunFolder:
    """The folder of a run.

    Args:
        folder: made where it is not there.
        suite: whose problems are answered.
        settings: everything else that its records depend on, plain data.

    Raises:
        UsageError: the folder holds another run: of another suite, version or settings.
    """

    def __init__(
        self, folder: Path, suite: LoadedSuite, settings: dict[str, Any], *, force: bool = False
    ) -> None:
        self.folder, self.suite, self.settings = folder, suite, settings
        wanted = {
            "format": VERSION,
            "suite": suite.suite.name,
            "problems": len(suite),
            "version": suite.version,
            "settings": settings,
        }
        wanted = json.loads(json.dumps(wanted))
        path = folder / CONFIG
        if path.exists() and not force:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.get("format") != VERSION:
                raise UsageError(
                    f"{folder}: was written in format {found.get('format')!r}, this is {VERSION}; "
                    "use another folder"
                )
            names = ("suite", "problems", "version")
            changed = [n for n in names if found.get(n) != wanted[n]]
            changed += sorted(
                k for k in {*found["settings"], *settings}
                if found["settings"].get(k) != wanted["settings"].get(k)
            )  # fmt: skip
            if changed:
                raise UsageError(
                    f"{folder}: holds another run ({', '.join(changed)} differ); use another "
                    "folder, or --force to go on with these"
                )
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as handle:
            json.dump(
                {**wanted, "anabranch": __version__, "origin": suite.origin}, handle, indent=1
            )
            handle.write("\n")

    def answers(self, arm: Arm) -> Path:
        """Trajectories of an arm."""
        return self.folder / f"{arm.name}.jsonl"

    def graded(self, arm: Arm) -> Path:
        """The same with verdicts."""
        return self.folder / f"{arm.name}.graded.jsonl"


async def decode_arm(
    folder: RunFolder,
    arm: Arm,
    make: MakeSetup,
    engine: Engine,
    *,
    samples: int,
    concurrency: int = 16,
    budget: int | None = None,
    spent: int = 0,
    on_done: Callable[[Tally], None] | None = None,
    stop: asyncio.Event | None = None,
) -> tuple[Tally, int]:
    """Decode what an arm lacks; returns how it stands and the tokens of all its answers.

    Args:
        folder: of the run.
        arm: which.
        make: how each answer is decoded.
        engine: where tokens come from.
        samples: answers to each problem.
        concurrency: answers at once.
        budget: sampled tokens of the whole run; nothing is begun when they are spent. What runs
            then is dropped, and counts for nothing.
        spent: tokens of the arms before.
        on_done: told after each answer.
        stop: when set, the run ends.
    """
    ended = stop or asyncio.Event()
    path = folder.answers(arm)
    if path.exists():
        spent += sum(_tokens(one) for one in _whole(path))
    total = len(folder.suite) * samples

    def done(tally: Tally, trajectory: Trajectory) -> None:
        nonlocal spent
        spent += _tokens(trajectory)
        if budget is not None and spent >= budget:
            ended.set()
        if on_done is not None:
            on_done(tally)

    if budget is not None and spent >= budget:
        ended.set()
    tally = await decode_file(
        folder.suite.problems,
        lambda problem, _, name: make(arm, problem, name),
        engine,
        path,
        samples=samples,
        concurrency=concurrency,
        config={"suite": folder.suite.version, "settings": folder.settings, "arm": arm.name},
        force=True,
        total=total,
        on_done=done,
        stop=ended,
    )
    return tally, spent


def _whole(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file; a last line that a kill cut off is left for the decoder."""
    from anabranch.jsonl import cut_torn_tail

    cut_torn_tail(path)
    yield from read_records(path, Trajectory)


def _tokens(trajectory: Trajectory) -> int:
    return trajectory_metrics(trajectory).total_tokens


def grade_arm(folder: RunFolder, arm: Arm, grader: Grader) -> Run:
    """Grade an arm by its suite's rules, problem by problem in the suite's order."""
    place = {problem.id: n for n, problem in enumerate(folder.suite.problems)}
    rules = folder.suite.suite.rules

    def graded() -> Iterator[Trajectory]:
        done = read_records(folder.answers(arm), Trajectory)
        while batch := list(islice(done, _BATCH)):
            verdicts = grader.grade_many([Item(None, one, rules=rules) for one in batch])
            for one, verdict in zip(batch, verdicts, strict=True):
                yield one.model_copy(update={"verdict": verdict})

    def order(one: Trajectory) -> tuple[int, str]:
        return place[one.problem.id] if one.problem else -1, one.id

    # In an order of their own: answers are written as they finish.
    found = sorted(graded(), key=order)
    write_records(folder.graded(arm), found)
    return Run(samples_of(found, str(folder.graded(arm))))
