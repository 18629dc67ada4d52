"""Configuration: pydantic models from TOML files, with overrides from the command line.

What a run's configuration holds is defined where it is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from anabranch.errors import UsageError

M = TypeVar("M", bound=BaseModel)


def load_config(
    model: type[M],
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
) -> M:
    """Read a TOML file and lay overrides such as ``optimizer.lr=1e-4`` over it.

    Args:
        model: the pydantic model.
        path: the file; None starts from the defaults.
        overrides: ``dotted.name=value``; the value is read as TOML, or else as a string.
        base: settings below the file's, such as those of a preset.

    Raises:
        UsageError: file missing or not TOML, unknown field, or a value that does not fit; one
            line naming the field.
    """
    where = "configuration" if path is None else str(path)
    data = load_settings(path, overrides, base=base)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: field {field!r}: {first['msg']}") from None


def load_settings(
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """As :func:`load_config`, as plain tables that nobody has checked yet.

    Raises:
        UsageError: file missing or not TOML, or an override that is none.
    """
    data: dict[str, Any] = dict(base or {})
    if path is not None:
        data |= read_toml(Path(path))
    for override in overrides:
        _apply(data, override)
    return data


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UsageError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    keys = name.strip().split(".")
    if not separator or not all(keys):
        raise UsageError(f"--set takes name=value, not {override!r}")
    try:
        value = tomllib.loads(f"x = {text.strip()}")["x"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override}: {key!r} is a value, not a table")
        data = inner
    data[keys[-1]] = value
