"""What a supervised run starts from: checkpoint, tags, what it says of itself, trajectories.

The command is in :mod:`anabranch.cli.train`. With several processes the first one writes what is
written here, and the others read it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.checkpoint import (
    FILE,
    CheckpointInfo,
    load_checkpoint_info,
    missing_files,
)
from anabranch.cli.common import console
from anabranch.decoding import render_prompt
from anabranch.decoding.prompts import has_chat_template, tag_texts
from anabranch.dialects import Dialect, get_dialect
from anabranch.engines.tokenizers import check_tags, load_tokenizer, single_tokens
from anabranch.errors import UsageError
from anabranch.jsonl import read_rows


def as_trained(model: Path, dialect: Dialect) -> Dialect:
    """The checkpoint's own spacing of the same dialect: texts are read in any, written in this."""
    if not (model / FILE).is_file():
        return dialect
    known = load_checkpoint_info(model).dialect
    same = known.partition(":")[0] == dialect.name.partition(":")[0]
    return get_dialect(known) if same else dialect


def with_tags(model: Path, folder: Path, dialect: Dialect) -> Path:
    """A copy of the checkpoint in which every tag is one token; made once a run."""
    if not missing_files(folder):
        return folder
    from anabranch.engines.local_load import quiet_loading
    from anabranch.training.sft import load_for_training
    from anabranch.training.tags import add_tags

    network, tokenizer = load_for_training(model)
    add_tags(network, tokenizer, tag_texts(dialect))
    with quiet_loading():
        network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def checkpoint_info(model: Path, dialect: Dialect) -> CheckpointInfo:
    """What the new checkpoint will say of itself: as the old one, or by the dialect's prompt."""
    if (model / FILE).is_file():
        known = load_checkpoint_info(model)
        if known.dialect != dialect.name:
            raise UsageError(
                f"{model} was trained on {known.dialect!r} and the data is in {dialect.name!r}: "
                f"convert the data, or remove {model / FILE} to start over"
            )
        _same_tags(model, known)
        return known
    tokenizer = load_tokenizer(model)
    tags = tag_texts(dialect)
    ids = check_tags(tokenizer, tags)
    if not has_chat_template(model):
        console.print(f"{model} has no chat template: the dialect's prompt is used as it stands")
    template = render_prompt("{problem}", dialect, folder=model)
    plain = render_prompt("{problem}", dialect, "sequential", folder=model)
    return CheckpointInfo(
        dialect=dialect.name,
        tags=ids,
        tag_tokens="own" if all(single_tokens(tokenizer, tags).values()) else "text",
        prompts={"parallel": template, "sequential": plain},
    )


def trajectories_of(
    data: Path,
    output: Path,
    model: Path,
    dialect: Dialect,
    info: CheckpointInfo,
    problem_field: str,
    text_field: str,
) -> Path:
    """The file itself if it holds trajectories, else the trajectories made of its texts."""
    from anabranch.training import ranks
    from anabranch.training.texts import TextRows, one_dialect, prepare

    first = next(iter(read_rows(data, on_error=lambda _: None)), None)
    if first is None:
        raise UsageError(f"{data}: no readable row")
    if "segments" in first[1]:
        one_dialect(data, dialect)
        return data
    prepared = output / "trajectories.jsonl"
    if not ranks.is_main():
        return prepared

    def prompt(problem: str) -> str:
        return info.prompt(problem)

    def skipped(why: str) -> None:
        console.print(f"skipped {why}", markup=False, soft_wrap=True)

    rows = TextRows(data, problem_field, text_field)
    count = prepare(rows, prepared, dialect, load_tokenizer(model), prompt, skipped)
    console.print(f"{count} texts made into trajectories: {prepared}")
    return prepared


def _same_tags(model: Path, known: CheckpointInfo) -> None:
    """The tokenizer beside the weights must write the tags that the checkpoint was trained with."""
    tokenizer = load_tokenizer(model)
    for tag, ids in known.tags.items():
        found = tuple(tokenizer.encode(tag))
        if found != ids:
            raise UsageError(
                f"{model / FILE} says that {tag} is {list(ids)}, but its tokenizer writes "
                f"{list(found)}: the tokenizer is of another tag set; copy the right one"
            )


def grader_of(name: str) -> Callable[..., bool]:
    """The function ``module:function`` that says whether a trajectory solves its problem.

    Raises:
        UsageError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--grader {name}: {error}; give it as module:function") from None
    if not callable(found):
        raise UsageError(f"--grader {name}: not a function")
    graded: Callable[..., bool] = found
    return graded


def evaluation_of(
    held_out: Path | None,
    problems: Path | None,
    grader: str | None,
    model: Path,
    info: CheckpointInfo,
    dialect: Dialect,
    settings: Any,
) -> Any:
    """What the run is judged by while it goes, or None.

    Raises:
        UsageError: problems without a grader, or an evaluation that would never be called.
        RecordError: a file cannot be read.
    """
    from anabranch.jsonl import read_records
    from anabranch.records import Problem
    from anabranch.training.data import TrajectoryFile
    from anabranch.training.evaluating import DecodeProblems, HeldOut, together
    from anabranch.training.texts import one_dialect

    if held_out is None and problems is None:
        return None
    if settings.eval_every is None:
        raise UsageError("--held-out and --problems are for evaluation: --set eval_every=STEPS")
    parts: list[Any] = []
    if held_out is not None:
        one_dialect(held_out, dialect)
        source = TrajectoryFile(held_out)
        parts.append(HeldOut([source[n] for n in range(len(source))], backend=settings.attention))
    if problems is not None:
        if grader is None:
            raise UsageError("--problems needs --grader module:function")
        chosen = list(read_records(problems, Problem))
        parts.append(DecodeProblems(chosen, load_tokenizer(model), info, grader_of(grader)))
    return together(*parts)
