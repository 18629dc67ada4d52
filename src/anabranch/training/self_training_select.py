"""The choosing part of a round: from all decoded answers to the training file and its card.

What makes an answer fit is in :mod:`anabranch.training.self_training_keep`; this reads and writes
the files of a round's folder. The card is written last: while it is missing, all is done again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding.seeds import derive_seed
from anabranch.dialects import get_dialect
from anabranch.errors import UsageError
from anabranch.jsonl import read_records, sha256_of, write_records
from anabranch.records import Problem, Trajectory
from anabranch.training import runs
from anabranch.training.cards import DataCard, Part, details, family_counts, origins, save_card
from anabranch.training.self_training_config import SelfTraining
from anabranch.training.self_training_decode import Grade, decoded
from anabranch.training.self_training_engines import OpenEngine
from anabranch.training.self_training_keep import Sieve, Sieved
from anabranch.training.trainer import Progress

KEPT, DROPPED, DATA, CARD = "kept.jsonl", "dropped.jsonl", "data.jsonl", "card.md"


@dataclass(frozen=True)
class Run:
    """What stays the same over the rounds."""

    config: SelfTraining
    first: Path
    pool: Sequence[Problem]
    excluded: int
    earlier: Sequence[Path]
    grade: Grade
    open_engine: OpenEngine
    output: Path
    note: Callable[[str], None]
    on_progress: Callable[[int, Progress], None] | None

    def problems(self, number: int) -> list[Problem]:
        """The problems of a round, in the order of the pool."""
        count, pool = self.config.decode.problems, self.pool
        if count is None or count >= len(pool):
            return list(pool)
        order = list(range(len(pool)))
        random.Random(derive_seed(self.config.seed, "problems")).shuffle(order)
        begin = (number - 1) * count
        taken = sorted(order[n % len(pool)] for n in range(begin, begin + count))
        return [pool[index] for index in taken]

    def folder(self, number: int) -> Path:
        return self.output / f"round-{number}"

    def model(self, number: int) -> Path:
        """The model after a round; 0 is the first one."""
        return self.folder(number) / "train" / runs.MODEL if number else self.first


def select(run: Run, number: int, model: Path, info: CheckpointInfo) -> bool:
    """Choose among the round's answers and write everything up to the training file.

    Returns:
        whether there is anything new: False when all that is good is known from before.

    Raises:
        UsageError: the round keeps nothing, and not because it is known.
    """
    config, folder = run.config, run.folder(number)
    before = _before(run, number)
    sieve = Sieve(
        config.keep,
        get_dialect(info.dialect),
        seed=derive_seed(config.seed, "keep", number),
    )
    for path in before:
        for row in read_records(path, Trajectory):
            sieve.know(row)
    answers = folder / "decoded"
    problems = run.problems(number)
    for one in decoded(problems, config.decode.shard, answers):
        sieve.see(one)
    sieved = sieve.choose()
    write_records(folder / DROPPED, _dropped_rows(sieved))
    if not sieved.kept:
        if "duplicate" in sieved.reasons():
            return False
        raise UsageError(
            f"round {number} keeps none of {len(sieve.seen)} answers "
            f"({_told(sieved)}): train the first model longer, or loosen the rules"
        )
    chosen = {one.order for one in sieved.kept}
    kept = _chosen(decoded(problems, config.decode.shard, answers), chosen, _label(run, model))
    write_records(folder / KEPT, kept)
    parts = _mix(run, number, before, len(chosen))
    run.note(f"round {number}: kept {len(chosen)} of {len(sieve.seen)} answers ({_told(sieved)})")
    save_card(_card(run, number, model, info, sieve, sieved, parts), folder / CARD)
    return True


def _before(run: Run, number: int) -> list[Path]:
    """Files of rows from before this round."""
    rounds = range(1, number) if run.config.mix.rounds else ()
    return [*run.earlier, *(run.folder(n) / KEPT for n in rounds)]


def _chosen(answers: Iterator[Trajectory], orders: set[int], model: str) -> Iterator[Trajectory]:
    """The answers that are kept, without times and places: they differ from run to run."""
    quiet = {"started": None, "first_token": None, "finished": None, "cached_tokens": None}
    for order, one in enumerate(answers):
        if order in orders:
            requests = [request.model_copy(update=quiet) for request in one.requests]
            changes = {"seconds": None, "requests": requests, "model": model}
            yield one.model_copy(update=changes)


def _dropped_rows(sieved: Sieved) -> Iterator[dict[str, Any]]:
    for one, reason in sieved.dropped:
        detail = one.detail if one.fault == reason else ""
        yield {"id": one.id, "family": one.family, "reason": reason, "detail": detail}


def _label(run: Run, model: Path) -> str:
    """A checkpoint's name that does not depend on where the run lies."""
    return str(model.relative_to(run.output)) if model.is_relative_to(run.output) else model.name


def _told(sieved: Sieved) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sieved.reasons().items()) or "-"


def _mix(run: Run, number: int, before: Sequence[Path], new: int) -> list[Part]:
    """Write the training file: this round's rows and, in the share asked for, earlier ones."""
    folder, share = run.folder(number), run.config.mix.earlier_share
    old = [(path, n) for path in before for n in range(sum(1 for _ in _rows(path)))]
    wanted = len(old) if share is None else min(len(old), round(new * share / (1 - share)))
    rng = random.Random(derive_seed(run.config.seed, "mix", number))
    taken = set(rng.sample(old, wanted))

    def rows() -> Iterator[Trajectory]:
        yield from _rows(folder / KEPT)
        for path in before:
            for n, row in enumerate(_rows(path)):
                if (path, n) in taken:
                    yield row

    write_records(folder / DATA, rows())
    parts = [Part(name=f"round {number}", rows=new, taken=new)]
    for path in before:
        parts.append(
            Part(
                name=path.name if path in run.earlier else f"{path.parent.name}",
                rows=sum(origin == path for origin, _ in old),
                taken=sum(origin == path for origin, _ in taken),
                sha256=hash_of(path),
            )
        )
    return parts


def _rows(path: Path) -> Iterator[Trajectory]:
    return read_records(path, Trajectory)


def _card(
    run: Run,
    number: int,
    model: Path,
    info: CheckpointInfo,
    sieve: Sieve,
    sieved: Sieved,
    parts: list[Part],
) -> DataCard:
    return DataCard(
        title=f"Self-training data, round {number}",
        round=number,
        model={
            "path": _label(run, model),
            "dialect": info.dialect,
            "prompt": info.prompt("{problem}"),
        },
        problems={
            "count": len(run.problems(number)),
            "pool": len(run.pool),
            "excluded": run.excluded,
            "origins": origins(run.problems(number)),
        },
        decoding={"seed": run.config.seed, **run.config.decode.model_dump(mode="json")},
        rules=run.config.keep.model_dump(mode="json"),
        families=family_counts(sieve.seen, sieved),
        dropped=sieved.reasons(),
        details=details(sieved),
        parts=parts,
        versions=runs.versions(),
    )


def hash_of(path: Path) -> str:
    """SHA-256 of a file that a configuration names; a missing one is the caller's mistake."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None
