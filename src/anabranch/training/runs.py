"""The directory of a training run: what is written beside the weights, and what can be resumed.

``run.json`` is the resolved configuration, versions and seed; ``log.jsonl`` the progress;
``checkpoint-N/`` what a run resumes from, complete only with ``anabranch_state.json`` in it, which
is written last; ``model/`` the finished model; ``result.json`` the end of the run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from anabranch.errors import ModelError, UsageError
from anabranch.jsonl import atomic_writer, sha256_of
from anabranch.training.batches import Place
from anabranch.training.config import config_differences

RUN, LOG, RESULT, STATE, MODEL = (
    "run.json",
    "log.jsonl",
    "result.json",
    "anabranch_state.json",
    "model",
)
#: Files above this size are told apart by their ends alone: reading all costs as much as writing.
WHOLE, PART = 2**30, 2**20
PACKAGES = ("anabranch", "torch", "transformers", "accelerate", "tokenizers", "peft", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(path: Path, data: Any) -> None:
    """Write an object whole or not at all."""
    with atomic_writer(path) as handle:
        json.dump(data, handle, indent=1, default=str)
        handle.write("\n")


def begin(
    output: Path, config: dict[str, Any], *, resume: bool, force: bool, fallback: bool = False
) -> Path | None:
    """Open a run's directory.

    Args:
        output: the directory.
        config: resolved configuration of this run.
        resume: go on from the newest complete checkpoint, or begin if there is none yet.
        force: resume although the configuration differs.
        fallback: go on from an older checkpoint where newer ones are damaged; those are renamed.

    Returns:
        the checkpoint to go on from.

    Raises:
        UsageError: the directory holds a run and ``resume`` is off, or the configuration differs.
        ModelError: the newest checkpoint is damaged and ``fallback`` is off, or all are.
    """
    run = output / RUN
    if run.is_file():
        if not resume:
            raise UsageError(
                f"{output} already holds a run: resume it, or choose another directory"
            )
        old = _read(run).get("config", {})
        changed = config_differences(old, config)
        if changed and not force:
            raise UsageError(
                f"{output} was begun with another configuration ({'; '.join(changed)}): "
                "resume with the same one, or force it"
            )
    write_json(run, {"config": config, "versions": versions(), "seed": config.get("seed")})
    checkpoint = _usable_checkpoint(output, fallback)
    _cut_log(output / LOG, _step(checkpoint) if checkpoint else 0)
    return checkpoint


def newest_checkpoint(output: Path) -> Path | None:
    """The newest checkpoint that was written to its end; half-written ones are removed."""
    return next(iter(_complete(output)), None)


def finish_checkpoint(output: Path, step: int, place: Place, keep: int) -> None:
    """Mark a checkpoint as complete, then remove all but the ``keep`` newest."""
    checkpoint = output / f"checkpoint-{step}"
    prints = {
        str(path.relative_to(checkpoint)): _fingerprint(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != STATE
    }
    write_json(checkpoint / STATE, {"step": step, "place": asdict(place), "files": prints})
    for path in _complete(output)[keep:]:
        # The mark goes first, so that a half-removed checkpoint is never taken for a whole one.
        (path / STATE).unlink()
        shutil.rmtree(path)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None; checkpoints without prints pass."""
    try:
        prints = _read(checkpoint / STATE).get("files", {})
    except ModelError as error:
        return str(error)
    for name, expected in prints.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _fingerprint(path) != expected:
            return f"{name} is not what was written"
    return None


def place_of(checkpoint: Path) -> Place:
    """Where the data stood when a checkpoint was written."""
    return Place(**_read(checkpoint / STATE)["place"])


def append_log(output: Path, row: dict[str, Any]) -> None:
    """Add one line to the run's log.

    Raises:
        ModelError: it cannot be written, as on a full disk.
    """
    try:
        with (output / LOG).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")
    except OSError as error:
        raise ModelError(f"{output / LOG}: cannot be written: {error.strerror}") from None


def result_of(output: Path) -> dict[str, Any] | None:
    """The result of a finished run, or None."""
    path = output / RESULT
    return _read(path) if path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: a JSON object is expected")
    return data


def _complete(output: Path) -> list[Path]:
    """Checkpoints that were written to their end, newest first; others are removed."""
    complete = []
    for path in output.glob("checkpoint-*"):
        if (path / STATE).is_file():
            complete.append(path)
        else:
            shutil.rmtree(path)
    return sorted(complete, key=_step, reverse=True)


def _usable_checkpoint(output: Path, fallback: bool) -> Path | None:
    complete = _complete(output)
    last = ""
    for path, older in zip_longest(complete, complete[1:]):
        reason = damage(path)
        if reason is None:
            return path
        last = f"{path} cannot be read ({reason})"
        if not fallback:
            way = f"ask for the one before, {older.name}" if older else "it is the only one"
            raise ModelError(f"{last}: {way}, or begin again in another directory")
        path.rename(path.with_name(f"damaged-{path.name}"))
    if last:
        raise ModelError(f"{last}, and so are all before: begin again in another directory")
    return None


def _fingerprint(path: Path) -> str:
    """Size and SHA-256 of a file; of a very large one, of its first and last part."""
    size = path.stat().st_size
    if size <= WHOLE:
        return f"{size}:{sha256_of(path)}"
    with path.open("rb") as handle:
        found = hashlib.sha256(handle.read(PART))
        handle.seek(size - PART)
        found.update(handle.read(PART))
    return f"{size}:ends:{found.hexdigest()}"


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _cut_log(path: Path, step: int) -> None:
    """Drop what was logged after the checkpoint: those steps will be done again."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue  # the line that a kill cut off
    with atomic_writer(path) as handle:
        handle.writelines(kept)
