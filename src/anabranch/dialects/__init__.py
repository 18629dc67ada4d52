"""Dialects: how fork-join trajectories look as text. See ``docs/dialects.md``."""

from __future__ import annotations

from anabranch.dialects.builtin import PARALLEL_R1, PARASON, THREADWEAVER
from anabranch.dialects.description import Dialect, Plan, Spacing, Tag
from anabranch.dialects.registry import dialect_names, get_dialect, register_dialect

__all__ = [
    "PARALLEL_R1",
    "PARASON",
    "THREADWEAVER",
    "Dialect",
    "Plan",
    "Spacing",
    "Tag",
    "dialect_names",
    "get_dialect",
    "register_dialect",
]
