"""Where the tags of a dialect are in a text: the one regular expression that all readers share.

A tag is ``<NAME>`` or ``</NAME>`` with a name of the dialect; a reader also takes a number and a
space inside (``<Thread 1>``). Everything else, ``0 < P`` and ``<b>`` included, is text. What a tag
means where it stands is decided in :mod:`anabranch.dialects.parser`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from anabranch.dialects.description import Dialect, Tag

Role = Literal["think", "block", "plan", "item", "branch", "merge", "legacy"]

#: What may follow a name inside a tag; bounded, so that a reader never holds back much.
MAX_DIGITS = 4
_INSIDE = rf"(?: (\d{{1,{MAX_DIGITS}}}))? ?>"


@dataclass(frozen=True)
class TagTable:
    """The tags of one dialect, ready for reading.

    Attributes:
        pattern: matches a tag (groups: ``/`` or empty, name, number or None).
        marks: matches a tag or, with an empty name group, the half tag ``</``.
        partial: matches a text that is all of it the beginning of a tag but no whole tag.
        longest: characters of the longest tag.
        roles: what each name is for.
    """

    pattern: re.Pattern[str]
    marks: re.Pattern[str]
    partial: re.Pattern[str]
    longest: int
    roles: Mapping[str, Role]
    tags: Mapping[str, Tag]


@lru_cache(maxsize=64)
def tag_table(dialect: Dialect) -> TagTable:
    """The table of a dialect."""
    names = sorted(dialect.tag_of, key=len, reverse=True)
    either = "|".join(map(re.escape, names))
    tag = rf"(/?)({either}){_INSIDE}"
    beginnings = {name[:size] for name in names for size in range(1, len(name))}
    cut = "|".join(map(re.escape, sorted(beginnings, key=len, reverse=True)))
    cut_inside = rf"(?:{either})(?: (?:\d{{1,{MAX_DIGITS}}} ?)?)?"
    return TagTable(
        pattern=re.compile(f"<{tag}", re.ASCII),
        marks=re.compile(rf"<(?:{tag}|/(?![A-Za-z]))", re.ASCII),
        partial=re.compile(rf"</?(?:{cut_inside}|{cut})?\Z", re.ASCII),
        longest=len("</ ") + len(names[0]) + MAX_DIGITS + len(" >"),
        roles=_roles(dialect),
        tags=dialect.tag_of,
    )


def _roles(dialect: Dialect) -> dict[str, Role]:
    plan = dialect.plan
    given: list[tuple[Role, Tag | None]] = [
        ("think", dialect.think),
        ("block", dialect.block),
        ("plan", plan.tag if plan else None),
        *(("item", tag) for tag in (plan.items.values() if plan else ())),
        ("branch", dialect.branch),
        ("merge", dialect.merge),
        ("legacy", dialect.legacy_merge),
    ]
    return {
        name: role for role, tag in given if tag is not None for name in (tag.name, *tag.aliases)
    }
