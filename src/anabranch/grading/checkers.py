"""Checkers: answers that no gold string decides, because many answers are right.

A checker is a function of the extracted answer and its problem. It is found by name: registered in
this process, or by an entry point of the group ``anabranch.checkers`` in any package. Checkers run
in the calling process and must be quick; what they raise becomes the verdict ``error``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import entry_points
from typing import Any

from anabranch.errors import UsageError
from anabranch.grading.latex import normalised
from anabranch.records import Problem

GROUP = "anabranch.checkers"
#: Gets the extracted answer and the problem; True, False, or False with a reason.
Checker = Callable[[str, Problem], "bool | tuple[bool, str]"]

_known: dict[str, Checker] = {}


def register_checker(name: str, checker: Checker) -> None:
    """Add a checker for this process.

    Raises:
        UsageError: a different checker already has the name.
    """
    if _known.setdefault(name, checker) is not checker:
        raise UsageError(f"there is already a different checker {name!r}")


def get_checker(name: str) -> Checker:
    """The checker of this name.

    Raises:
        UsageError: none has the name; the message lists those there are.
    """
    if name not in _known:
        for point in entry_points(group=GROUP):
            if point.name == name:
                try:
                    _known[name] = point.load()
                except Exception as error:  # foreign code runs here
                    raise UsageError(f"checker {name!r} ({point.value}): {error}") from error
                return _known[name]
        known = sorted({*_known, *(point.name for point in entry_points(group=GROUP))})
        raise UsageError(f"unknown checker {name!r}; known are {', '.join(known)}")
    return _known[name]


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FRAC = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_MAX_EXPRESSION = 500


def countdown(answer: str, problem: Problem) -> tuple[bool, str]:
    """Whether an expression uses every given number once and reaches the target.

    The problem carries ``nums`` and ``target``. ``3*4 = 12`` counts by its left side; operators
    are ``+ - * /`` with brackets, in plain text or LaTeX; a sign before a number is no operator.
    """
    extra = problem.model_extra or {}
    numbers, target = extra.get("nums"), extra.get("target")
    if not isinstance(numbers, list) or not isinstance(target, int | float):
        raise UsageError(f"problem {problem.id!r}: Countdown needs the fields nums and target")
    text = _plain(answer)
    if len(text) > _MAX_EXPRESSION:
        return False, f"the expression has {len(text)} characters"
    used: list[int] = []
    try:
        value = _evaluate(ast.parse(text, mode="eval").body, used)
    except ZeroDivisionError:
        return False, "division by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, "not an expression of numbers and + - * /"
    if Counter(used) != Counter(int(number) for number in numbers):
        return False, f"uses {sorted(used)}, not {sorted(numbers)}"
    return (True, "reaches the target") if value == target else (False, f"gives {value}")


def _plain(answer: str) -> str:
    text = normalised(answer).split("=")[0]
    while (shorter := _FRAC.sub(r"((\1)/(\2))", text)) != text:
        text = shorter
    for latex, sign in ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), ("[", "("), ("]", ")")):
        text = text.replace(latex, sign)
    return text.strip()


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _evaluate(node.left, used), _evaluate(node.right, used)
        return Fraction(_OPERATIONS[type(node.op)](left, right))
    raise ValueError("not an arithmetic expression")


register_checker("countdown", countdown)
