"""Grading: find the answer, compare it with the gold, say why. See ``docs/grading.md``."""

from __future__ import annotations

from anabranch.grading.checkers import Checker, get_checker, register_checker
from anabranch.grading.extract import Extracted, extract
from anabranch.grading.grader import AllFailedError, Grader, Item
from anabranch.grading.pool import PoolError
from anabranch.grading.rules import DEFAULT, STEPS, Rules

__all__ = [
    "DEFAULT",
    "STEPS",
    "AllFailedError",
    "Checker",
    "Extracted",
    "Grader",
    "Item",
    "PoolError",
    "Rules",
    "extract",
    "get_checker",
    "register_checker",
]
