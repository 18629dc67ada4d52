"""A curriculum: several supervised runs in a row on one model, resumable as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anabranch.checkpoint import CheckpointInfo
from anabranch.engines.local_load import quiet_loading
from anabranch.training import runs
from anabranch.training.config import SFTConfig
from anabranch.training.data import Item, Source
from anabranch.training.sft import OnProgress, SFTResult, train_sft
from anabranch.training.trainer import Evaluate, Progress


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a schedule: its own data and configuration.

    ``keep_optimizer`` takes the optimizer's moments over from the stage before.
    """

    name: str
    data: Source | Iterable[Item]
    config: SFTConfig
    keep_optimizer: bool = False


def run_stages(
    model: Any,
    stages: Sequence[Stage],
    output: Path | str | None = None,
    *,
    tokenizer: Any = None,
    info: CheckpointInfo | None = None,
    resume: bool = False,
    force: bool = False,
    on_progress: Callable[[str, Progress], None] | None = None,
    evaluate: Evaluate | None = None,
) -> list[SFTResult]:
    """Train one model through several stages, each with its own directory under ``output``.

    With ``resume``, finished stages are loaded instead of run, and the one that was cut short goes
    on exactly where its last checkpoint was. A signal ends the list early.

    Returns:
        the results of the stages that were run now; empty when all were finished before.
    """
    results: list[SFTResult] = []
    optimizer_state: dict[str, Any] | None = None
    for number, stage in enumerate(stages):
        directory = Path(output) / f"{number}-{stage.name}" if output is not None else None
        if directory is not None and resume and runs.result_of(directory) is not None:
            optimizer_state = _load_finished(model, directory)
            continue
        report: OnProgress | None = None
        if on_progress is not None:
            report = _named(on_progress, stage.name)
        result = train_sft(
            model,
            stage.data,
            stage.config,
            output=directory,
            tokenizer=tokenizer,
            info=info,
            resume=resume,
            force=force,
            on_progress=report,
            evaluate=evaluate,
            optimizer_state=optimizer_state if stage.keep_optimizer else None,
        )
        results.append(result)
        if result.interrupted:
            break
        optimizer_state = result.optimizer_state
    return results


def _load_finished(model: Any, directory: Path) -> dict[str, Any]:
    """Put a finished stage's weights into the model; returns its optimizer's state."""
    with quiet_loading():
        saved = type(model).from_pretrained(directory / runs.MODEL, dtype=model.dtype)
    model.load_state_dict(saved.state_dict())
    state: dict[str, Any] = torch.load(
        directory / "optimizer.pt", map_location="cpu", weights_only=True
    )
    return state


def _named(report: Callable[[str, Progress], None], name: str) -> OnProgress:
    return lambda progress: report(name, progress)
