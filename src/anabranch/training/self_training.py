"""Self-training: a model's own answers, kept where they are right and truly parallel, train it on.

A round decodes the problems with the current model, keeps what passes
:mod:`anabranch.training.self_training_keep`, mixes it with earlier rows and trains. Every part of
a round is a file that appears whole, so a run that was killed goes on at the part it was in and
ends with the same files and weights. Evaluation on held-out problems is the caller's business.

A round's folder holds ``decoded/`` (all answers, graded), ``kept.jsonl``, ``dropped.jsonl`` (each
answer that was left out, and why), ``data.jsonl`` (what is trained on), ``card.md`` and
``card.json``, and ``train/`` with the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anabranch.checkpoint import CheckpointInfo, load_checkpoint_info, require_checkpoint
from anabranch.decoding.seeds import derive_seed
from anabranch.errors import UsageError
from anabranch.records import Problem
from anabranch.training import runs
from anabranch.training.self_training_config import SelfTraining
from anabranch.training.self_training_decode import Grade, decode_shards, missing_shards
from anabranch.training.self_training_engines import OpenEngine, in_process
from anabranch.training.self_training_keep import same_text
from anabranch.training.self_training_select import CARD, DATA, Run, hash_of, select
from anabranch.training.trainer import Progress


@dataclass(frozen=True)
class SelfTrainingResult:
    """The end of a run.

    Attributes:
        models: checkpoint of each finished round.
        cards: data card of each round that got so far.
        interrupted: stopped by a signal; the same call with ``resume`` goes on.
    """

    models: tuple[Path, ...]
    cards: tuple[Path, ...]
    interrupted: bool


def self_train(
    model: Path | str,
    problems: Sequence[Problem],
    grade: Grade,
    config: SelfTraining,
    output: Path | str,
    *,
    earlier: Sequence[Path | str] = (),
    exclude: Sequence[Problem] = (),
    open_engine: OpenEngine = in_process,
    resume: bool = False,
    force: bool = False,
    note: Callable[[str], None] = print,
    on_progress: Callable[[int, Progress], None] | None = None,
) -> SelfTrainingResult:
    """Run the rounds.

    Args:
        model: folder of the first checkpoint; its ``anabranch.json`` says dialect and prompt.
        problems: what is solved in every round; ids must differ.
        grade: judges each finished trajectory; called in this thread.
        config: everything that decides the result.
        output: folder of the run.
        earlier: files of trajectories, such as those of the first supervised stage.
        exclude: problems that may not be trained on; equal ones are taken out by their text.
        open_engine: where each round's model runs.
        resume: go on with the run in ``output``.
        force: resume with another configuration.
        note, on_progress: told of progress; the latter of each round's training.

    Raises:
        UsageError: nothing to decode, two problems with one id, a run that cannot be resumed, or
            a round that keeps nothing. A round whose good answers are all known ends the run.
        ModelError: the checkpoint is incomplete or does not say its dialect and prompt.
    """
    first, output = Path(model), Path(output)
    require_checkpoint(first)
    load_checkpoint_info(first)
    forbidden = {same_text(problem.problem) for problem in exclude}
    chosen = [problem for problem in problems if same_text(problem.problem) not in forbidden]
    _check(chosen)
    run = Run(
        config=config,
        first=first,
        pool=chosen,
        excluded=len(problems) - len(chosen),
        earlier=[Path(path) for path in earlier],
        grade=grade,
        open_engine=open_engine,
        output=output,
        note=note,
        on_progress=on_progress,
    )
    runs.begin(output, _identity(run), resume=resume, force=force)
    for number in range(1, config.rounds + 1):
        end = _round(run, number, force=force)
        if end != "done":
            return _result(run, number, interrupted=end == "interrupted")
    return _result(run, config.rounds, interrupted=False)


def _check(problems: Sequence[Problem]) -> None:
    if not problems:
        raise UsageError("there is no problem to train on")
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UsageError(f"two problems have the id {problem.id!r}: ids must differ")
        seen.add(problem.id)


def _identity(run: Run) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    texts = "\n".join(f"{p.id}\t{p.problem}\t{p.answer}" for p in run.pool)
    return {
        **run.config.model_dump(mode="json", exclude={"rounds"}),
        "model": str(run.first),
        "problems": hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest(),
        "earlier": {path.name: hash_of(path) for path in run.earlier},
    }


def _result(run: Run, last: int, *, interrupted: bool) -> SelfTrainingResult:
    numbers = range(1, last + 1)
    models = [run.model(n) for n in numbers if runs.result_of(run.folder(n) / "train")]
    cards = [run.folder(n) / CARD for n in numbers]
    return SelfTrainingResult(
        tuple(models), tuple(path for path in cards if path.is_file()), interrupted
    )


def _round(run: Run, number: int, *, force: bool) -> Literal["done", "interrupted", "nothing new"]:
    """One round, from where it stands."""
    folder, current = run.folder(number), run.model(number - 1)
    if runs.result_of(folder / "train") is not None:
        return "done"
    info = load_checkpoint_info(current)
    if not _decode(run, number, current, info):
        return "interrupted"
    if not (folder / CARD).is_file() and not select(run, number, current, info):
        run.note(f"round {number}: every good answer is known from before, so it ends here")
        return "nothing new"
    return "done" if _train(run, number, info, force=force) else "interrupted"


def _decode(run: Run, number: int, model: Path, info: CheckpointInfo) -> bool:
    settings, folder = run.config.decode, run.folder(number) / "decoded"
    problems = run.problems(number)
    if not missing_shards(problems, settings.shard, folder):
        return True
    run.note(f"round {number}: {len(problems)} problems, {settings.samples} answers each")

    async def go() -> bool:
        task = asyncio.ensure_future(decode())
        loop = asyncio.get_running_loop()
        # Only the main thread may take signals; elsewhere the caller does.
        handles = threading.current_thread() is threading.main_thread()
        if handles:
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return False
        finally:
            if handles:
                loop.remove_signal_handler(signal.SIGTERM)
        return True

    async def decode() -> None:
        async with run.open_engine(model) as engine:
            await decode_shards(
                engine,
                problems,
                settings,
                folder,
                info=info,
                grade=run.grade,
                seed=derive_seed(run.config.seed, "self-training", number),
                note=run.note,
            )

    return asyncio.run(go())


def _train(run: Run, number: int, info: CheckpointInfo, *, force: bool) -> bool:
    from anabranch.training.data import TrajectoryFile
    from anabranch.training.sft import load_for_training, train_sft

    config, folder = run.config, run.folder(number)
    start = run.model(number - 1) if config.start_from == "last" else run.first
    network, tokenizer = load_for_training(start)
    source = TrajectoryFile(folder / DATA)
    run.note(f"round {number}: training on {len(source)} rows")
    on_progress = run.on_progress
    result = train_sft(
        network,
        source,
        config.train.model_copy(update={"seed": derive_seed(config.seed, "train", number)}),
        output=folder / "train",
        tokenizer=tokenizer,
        info=info,
        resume=True,
        force=force,
        on_progress=None if on_progress is None else lambda p: on_progress(number, p),
        on_skip=lambda index, why: run.note(f"skipped row {index}: {why}"),
    )
    return not result.interrupted
