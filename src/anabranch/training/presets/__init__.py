"""Named settings of published recipes and of this project's small models, as TOML files.

A preset says which checkpoint and dialect it is meant for, which of its values are published and
which were chosen here, and the settings of :class:`~anabranch.training.config.SFTConfig`.
Accelerate's own configuration files for clusters lie in ``accelerate/``.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from anabranch.config import read_toml
from anabranch.errors import UsageError
from anabranch.training.config import SFTConfig

FOLDER = Path(str(files(__name__)))


class Preset(BaseModel):
    """One file of settings.

    Attributes:
        title: what it is, in a line.
        model: the checkpoint that it was published with, or is meant for.
        dialect: of the traces.
        add_tags: whether tags become tokens of their own.
        published: names of the settings whose values are published.
        settings: of :class:`SFTConfig`.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    model: str
    dialect: str
    add_tags: bool
    published: list[str]
    settings: SFTConfig

    def given(self) -> dict[str, Any]:
        """The settings that the file names."""
        return self.settings.model_dump(exclude_unset=True)


def preset_names() -> list[str]:
    """Names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read a preset.

    Raises:
        UsageError: there is none of that name.
    """
    path = FOLDER / f"{name}.toml"
    if name not in preset_names():
        raise UsageError(f"no preset {name!r}; there are {', '.join(preset_names())}")
    try:
        return Preset.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: field {field!r}: {first['msg']}") from None


def accelerate_file(name: str) -> Path:
    """Path of one of accelerate's configuration files, such as ``fsdp-8``.

    Raises:
        UsageError: there is none of that name.
    """
    path = FOLDER / "accelerate" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(accelerate_names())
        raise UsageError(f"no accelerate configuration {name!r}; there are {known}")
    return path


def accelerate_names() -> list[str]:
    """Names of all of accelerate's configuration files here."""
    return sorted(path.stem for path in (FOLDER / "accelerate").glob("*.yaml"))
