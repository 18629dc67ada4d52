"""Decodes a round's problems with its model, shard by shard, each graded and written whole.

A shard is done when its file exists, so a run that was killed decodes at most one shard again. The
seed of every answer follows from the run's seed, the round and the problem, not from what was
decoded before; with an engine that samples the same for the same seed the file is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding import Setup, decode_many, make_setup
from anabranch.decoding.seeds import derive_seed
from anabranch.engines.base import Engine
from anabranch.jsonl import read_records, write_records
from anabranch.records import Problem, Sampling, Trajectory, Verdict
from anabranch.training.self_training_config import Decode

#: From a finished trajectory, which carries its problem, to a verdict.
Grade = Callable[[Trajectory], Verdict]


def shards(problems: Sequence[Problem], size: int) -> list[Sequence[Problem]]:
    """The problems in portions of ``size``."""
    return [problems[start : start + size] for start in range(0, len(problems), size)]


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{number:05d}.jsonl"


async def decode_shards(
    engine: Engine,
    problems: Sequence[Problem],
    settings: Decode,
    folder: Path,
    *,
    info: CheckpointInfo,
    grade: Grade,
    seed: int,
    note: Callable[[str], None],
) -> None:
    """Decode what is missing of a round's shards.

    Args:
        engine: runs the round's model.
        problems: all problems of the run, in order.
        settings: how answers are drawn.
        folder: of the shards.
        info: of the checkpoint: dialect and prompt.
        grade: judges each answer.
        seed: of this round.
        note: told of progress.
    """
    portions = shards(problems, settings.shard)
    for number, portion in enumerate(portions):
        path = shard_path(folder, number)
        if path.is_file():
            continue
        setups = _setups(engine, portion, settings, info, seed)
        done = await decode_many(setups, engine, concurrency=settings.concurrency)
        graded = [one.model_copy(update={"verdict": grade(one)}) for one in done]
        write_records(path, graded)
        right = sum(one.verdict is not None and one.verdict.correct for one in graded)
        note(f"decoded {number + 1}/{len(portions)}: {right} of {len(graded)} answers right")


def missing_shards(problems: Sequence[Problem], size: int, folder: Path) -> bool:
    """Whether anything is left to decode."""
    count = len(shards(problems, size))
    return not all(shard_path(folder, number).is_file() for number in range(count))


def decoded(problems: Sequence[Problem], size: int, folder: Path) -> Iterator[Trajectory]:
    """All answers of a round, in the order of the problems."""
    for number in range(len(shards(problems, size))):
        yield from read_records(shard_path(folder, number), Trajectory)


def _setups(
    engine: Engine,
    problems: Sequence[Problem],
    settings: Decode,
    info: CheckpointInfo,
    seed: int,
) -> Iterator[Setup]:
    for problem in problems:
        for sample in range(settings.samples):
            sampling = Sampling(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                seed=derive_seed(seed, problem.id, sample),
            )
            setup = make_setup(
                problem,
                engine,
                info=info,
                limits=settings.limits,
                sampling=sampling,
                width=settings.width,
                id=f"{problem.id}#{sample}",
            )
            # Log-probs are four fifths of a record, and supervised training does not use them.
            yield replace(setup, logprobs=False)
