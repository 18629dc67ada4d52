"""Finds a dialect by name: the built-in ones, those of other packages, and compact variants.

Another package adds a dialect with an entry point in the group ``anabranch.dialects`` whose object
is a :class:`~anabranch.dialects.description.Dialect`. It is loaded when first asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from anabranch.dialects.builtin import BUILTIN
from anabranch.dialects.description import Dialect
from anabranch.errors import DialectError

GROUP = "anabranch.dialects"
COMPACT = ":compact"

_known: dict[str, Dialect] = {dialect.name: dialect for dialect in BUILTIN}


def get_dialect(name: str) -> Dialect:
    """The dialect of this name; ``NAME:compact`` is NAME without white space.

    Raises:
        DialectError: no dialect has the name (the message lists those there are), or its package
            cannot be loaded.
    """
    if name not in _known:
        _known[name] = _find(name)
    return _known[name]


def dialect_names() -> list[str]:
    """All names that :func:`get_dialect` knows, without the compact variants, sorted."""
    plain = {name for name in _known if not name.endswith(COMPACT)}
    return sorted(plain | {point.name for point in _entry_points()})


def register_dialect(dialect: Dialect) -> None:
    """Add a dialect for this process only.

    Raises:
        DialectError: a different dialect already has the name.
    """
    known = _known.setdefault(dialect.name, dialect)
    if known != dialect:
        raise DialectError(f"there is already a different dialect {dialect.name!r}")


def _find(name: str) -> Dialect:
    base = name.removesuffix(COMPACT)
    if base != name:
        return get_dialect(base).compact()
    for point in _entry_points():
        if point.name == name:
            return _load(point)
    known = ", ".join(dialect_names())
    raise DialectError(
        f"unknown dialect {name!r}; known are {known}, each also with {COMPACT!r} at its end"
    )


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))


def _load(point: EntryPoint) -> Dialect:
    # Foreign code runs here, so anything can be raised.
    try:
        dialect = point.load()
    except Exception as error:
        raise DialectError(f"dialect {point.name!r} ({point.value}): {error}") from error
    if not isinstance(dialect, Dialect):
        raise DialectError(f"dialect {point.name!r}: {point.value} is not a Dialect")
    return dialect
