"""Dialects: how fork-join trajectories look as text. See ``docs/dialects.md``."""

from __future__ import annotations

from anabranch.dialects.builtin import MULTIVERSE, NPR, PARALLEL_R1, PARASON, THREADWEAVER
from anabranch.dialects.convert import convert
from anabranch.dialects.description import Dialect, Plan, Spacing, Tag
from anabranch.dialects.diagnostics import ERRORS, NOTES, VARIANTS, Diagnostic
from anabranch.dialects.document import Block, Branch, Document, PlanItem, TextPart
from anabranch.dialects.format_rules import check_format
from anabranch.dialects.grammar import grammar
from anabranch.dialects.parser import parse, read_plan
from anabranch.dialects.registry import dialect_names, get_dialect, register_dialect
from anabranch.dialects.scanner import Event, Scanner, TagEvent, TextEvent, join_texts, scan
from anabranch.dialects.writer import normalised, write

__all__ = [
    "ERRORS",
    "MULTIVERSE",
    "NOTES",
    "NPR",
    "PARALLEL_R1",
    "PARASON",
    "THREADWEAVER",
    "VARIANTS",
    "Block",
    "Branch",
    "Diagnostic",
    "Dialect",
    "Document",
    "Event",
    "Plan",
    "PlanItem",
    "Scanner",
    "Spacing",
    "Tag",
    "TagEvent",
    "TextEvent",
    "TextPart",
    "check_format",
    "convert",
    "dialect_names",
    "get_dialect",
    "grammar",
    "join_texts",
    "normalised",
    "parse",
    "read_plan",
    "register_dialect",
    "scan",
    "write",
]
