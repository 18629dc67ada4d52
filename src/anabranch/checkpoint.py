"""What a checkpoint says of itself: ``anabranch.json`` beside the weights.

A model that forks shows nothing of it under another prompt, other tags or a plain engine, so the
checkpoint carries how it was trained to be called. Decoding and the command line read this without
torch; training writes it. Loading weights is elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.errors import ModelError
from anabranch.jsonl import atomic_writer

FILE = "anabranch.json"
PROBLEM = "{problem}"
#: The usual file of weights; a checkpoint may have others, or shards named by an index.
WEIGHTS = "model.safetensors"


class CheckpointInfo(BaseModel):
    """How a checkpoint is meant to be run, and how it was made.

    Attributes:
        dialect: name of the dialect it writes.
        tags: each tag of the dialect and its token ids in this checkpoint's tokenizer.
        tag_tokens: whether tags are tokens of their own or ordinary text.
        prompts: prompt template by mode, with ``{problem}`` where the problem goes; complete, so
            with the begin-of-text token where the model was trained with one.
        thinking: whether the chat template's thinking switch was on.
        positions: ``ordinary`` positions run on any engine.
        training: the resolved configuration it was trained with.
        versions: of the packages that made it.
    """

    model_config = ConfigDict(extra="allow")
    SCHEMA: ClassVar[int] = 1

    schema_version: int = SCHEMA
    dialect: str
    tags: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    tag_tokens: Literal["own", "text"] = "own"
    prompts: dict[str, str] = Field(default_factory=dict)
    thinking: bool = False
    positions: Literal["ordinary"] = "ordinary"
    training: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)

    def prompt(self, problem: str, mode: str = "parallel") -> str:
        """The prompt of a problem in a mode.

        Raises:
            ModelError: the checkpoint was not trained in that mode.
        """
        template = self.prompts.get(mode)
        if template is None:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise ModelError(f"the checkpoint has no prompt for mode {mode!r} (known: {known})")
        # Not str.format: problems and templates hold braces of their own.
        return template.replace(PROBLEM, problem)

    def differences(self, other: CheckpointInfo) -> list[str]:
        """One line per respect in which two ways of running differ; empty when they agree."""
        lines = []
        for name in ("dialect", "thinking", "positions", "tag_tokens", "tags", "prompts"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if not isinstance(mine, dict):
                lines.append(f"{name}: {mine!r} against {theirs!r}")
                continue
            for key in sorted(mine.keys() | theirs.keys()):
                if mine.get(key) != theirs.get(key):
                    lines.append(f"{name}.{key}: {mine.get(key)!r} against {theirs.get(key)!r}")
        return lines


def save_checkpoint_info(info: CheckpointInfo, directory: Path | str) -> Path:
    """Write ``anabranch.json`` whole or not at all; returns its path."""
    path = Path(directory) / FILE
    with atomic_writer(path) as handle:
        json.dump(info.model_dump(mode="json"), handle, indent=1, ensure_ascii=True)
        handle.write("\n")
    return path


def load_checkpoint_info(directory: Path | str) -> CheckpointInfo:
    """Read ``anabranch.json`` of a checkpoint.

    Raises:
        ModelError: no such directory or file, or it is not readable; says which field.
    """
    path = Path(directory) / FILE
    if not path.parent.is_dir():
        raise ModelError(f"{path.parent}: no such checkpoint directory")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent}: no {FILE}, so its dialect and prompt are unknown; "
            "name them, or use a checkpoint trained by anabranch"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    try:
        info = CheckpointInfo.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ModelError(f"{path}: field {field!r}: {first['msg']}") from None
    if info.schema_version > CheckpointInfo.SCHEMA:
        raise ModelError(
            f"{path}: schema_version {info.schema_version} is newer than "
            f"{CheckpointInfo.SCHEMA}: update anabranch"
        )
    return info


def missing_files(directory: Path | str, *, tokenizer: bool = True) -> list[str]:
    """What a directory lacks to be a loadable checkpoint, as far as names tell.

    Args:
        directory: it may not exist.
        tokenizer: whether ``tokenizer.json`` is needed too.
    """
    directory = Path(directory)
    needed = ["config.json", *(["tokenizer.json"] if tokenizer else [])]
    missing = [name for name in needed if not (directory / name).is_file()]
    shards: set[str] = set()
    for index in directory.glob("*.index.json"):
        named = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        shards.update(map(str, named.values()))
    patterns = ("*.safetensors", "*.bin", "*.gguf")
    if not shards and not any(any(directory.glob(pattern)) for pattern in patterns):
        missing.append(WEIGHTS)
    return missing + sorted(name for name in shards if not (directory / name).is_file())


def require_checkpoint(directory: Path | str) -> None:
    """Raise when a directory is not a loadable checkpoint.

    Raises:
        ModelError: naming the directory and every missing file.
    """
    if not Path(directory).is_dir():
        raise ModelError(f"{directory}: no such checkpoint directory")
    missing = missing_files(directory)
    if missing:
        raise ModelError(f"{directory}: not a complete checkpoint: {', '.join(missing)} missing")
