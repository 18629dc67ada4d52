r"""Equality of expressions by math-verify's LaTeX reader and sympy. Runs in worker processes only.

Nothing here has a time limit of its own: :mod:`anabranch.grading.pool` kills the process. Two
expressions are equal when their values agree to 30 significant digits, relative to their size, at
random positive points, and at negative points wherever both are real; so tiny constants differ, and
:math:`\sqrt{1/n} = 1/\sqrt n`. math-verify's own comparison decides only what cannot be sampled,
and only where both texts were read in full (its reader refuses what it does not understand).
"""

from __future__ import annotations

import random
import re
import warnings
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify
from sympy.core.function import AppliedUndef

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_DIGITS = 50
_AGREE = Fraction(1, 10**30)
_POINTS = 6
_ENOUGH = 3
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


class Unreadable(Exception):
    """The text is no expression that the reader understands."""


class SympyAlgebra:
    """The :class:`anabranch.grading.compare.Algebra` of the workers."""

    def equal(self, gold: str, answer: str) -> bool:
        one, other = read(gold), read(answer)
        if isinstance(one, sympy.MatrixBase | sympy.MatrixExpr):
            return _matrices(one, other)
        if not isinstance(one, sympy.Expr) or not isinstance(other, sympy.Expr):
            return bool(verify(one, other, timeout_seconds=None))
        same = sampled(one, other)
        if same is None:
            return bool(one.free_symbols or other.free_symbols) and _verified(one, other)
        return same

    def same_relation(self, gold: str, answer: str) -> bool:
        one, other = read(gold), read(answer)
        if not isinstance(one, sympy.core.relational.Relational) or not isinstance(
            other, sympy.core.relational.Relational
        ):
            return False
        return _same_relation(one, other)

    def value(self, text: str) -> Fraction | None:
        found = read(text)
        if not isinstance(found, sympy.Expr) or found.free_symbols:
            return None
        return _real(_number(found))


@lru_cache(maxsize=512)
def read(text: str) -> Any:
    """The sympy object of a LaTeX text.

    Raises:
        Unreadable: the reader refuses the text, or it has no value (a division by zero).
    """
    text = re.sub(r"\^\s*\\circ", "", text)
    text = re.sub(r"_\{\\([a-zA-Z]+)\s*\}|_\\(?!text)([a-zA-Z]+)", r"_{\1\2}", text)
    text = re.sub(r"_\{?\\text\{\s*(\w+)\s*\}\}?", r"_{\1}", text)
    text = re.sub(r"\^\{?\\prime\s*\}?|(?<=[a-zA-Z])'", "", text)
    text = re.sub(
        r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|ln|log|exp|pi)(?![a-zA-Z])", r"\\\1 ", text
    )
    text = re.sub(r"(?<=[\d)}])\s*\*\s*(?=[\w\\({])", r" \\cdot ", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = latex2sympy(text, is_real=None, conversion_config=_CONVERSION)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the reader raises bare Exception
        raise Unreadable(text) from error
    if isinstance(found, sympy.Basic) and found.has(sympy.nan, sympy.zoo):
        raise Unreadable(text)
    return found


def sampled(one: sympy.Expr, other: sympy.Expr) -> bool | None:
    """Whether two expressions agree at random points; None where they cannot be evaluated."""
    one, other = _with_symbols(one), _with_symbols(other)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols:
        return _agree(_number(one), _number(other))
    if one.free_symbols != other.free_symbols and (
        sympy.simplify(one).free_symbols != sympy.simplify(other).free_symbols
    ):
        return False
    rng = random.Random(0)
    counted = 0
    for turn in range(2 * _POINTS):
        negative = turn >= _POINTS
        point = {s: _coordinate(rng, s, negative) for s in symbols}
        values = [_number(e.subs(point)) for e in (one, other)]
        if negative and not all(_real(v) is not None for v in values):
            continue
        same = _agree(*values)
        if same is False:
            return False
        counted += bool(same)
    return True if counted >= _ENOUGH else None


def _coordinate(rng: random.Random, symbol: Any, negative: bool) -> Any:
    if str(symbol) in ("i", "I"):
        return sympy.I
    if str(symbol) == "e":
        return sympy.E
    value = sympy.Rational(rng.randrange(100, 400), 100 + rng.randrange(1, 97))
    return -value if negative else value


def _with_symbols(expr: sympy.Expr) -> sympy.Expr:
    """Unknown functions as symbols of their own, decimals as exact fractions, ``e`` as e."""
    calls = sorted(expr.atoms(AppliedUndef), key=str)
    expr = expr.xreplace({call: sympy.Symbol(f"call_{call}") for call in calls})
    floats = {f: sympy.Rational(str(f)) for f in expr.atoms(sympy.Float)}
    constants = {sympy.Symbol("e"): sympy.E, sympy.Symbol("i"): sympy.I}
    return expr.xreplace(floats).xreplace(constants)


def _number(expr: Any) -> Any:
    expr = _with_symbols(expr) if isinstance(expr, sympy.Expr) else expr
    if expr.has(sympy.oo, -sympy.oo):
        return expr
    if isinstance(expr, sympy.Rational):
        return expr
    return sympy.N(expr.doit() if expr.has(sympy.UnevaluatedExpr, sympy.Sum) else expr, _DIGITS)


def _agree(one: Any, other: Any) -> bool | None:
    if one.has(sympy.oo, -sympy.oo) or other.has(sympy.oo, -sympy.oo):
        return bool(one == other)
    if one.has(sympy.nan, sympy.zoo) or other.has(sympy.nan, sympy.zoo):
        return None
    if not one.is_number or not other.is_number or not (one - other).is_number:
        return None
    if one == other:
        return True
    size = max(abs(one), abs(other))
    gap = abs(sympy.N(one - other, _DIGITS))
    if not gap.is_Number or not (size.is_Number or sympy.N(size).is_Number):
        return None
    return bool(gap <= sympy.Rational(_AGREE.numerator, _AGREE.denominator) * size)


def _real(value: Any) -> Fraction | None:
    if value.is_Rational:
        return Fraction(int(value.p), int(value.q))
    if not getattr(value, "is_Float", False):
        return None
    exact = sympy.Rational(value)
    return Fraction(int(exact.p), int(exact.q))


def _verified(one: Any, other: Any) -> bool:
    return bool(verify(one, other, timeout_seconds=None))


def _matrices(one: Any, other: Any) -> bool:
    one, other = one.doit(), other.doit()
    if not isinstance(one, sympy.MatrixBase) or not isinstance(other, sympy.MatrixBase):
        return False
    return one.shape == other.shape and all(
        sampled(a, b) is True for a, b in zip(one, other, strict=True)
    )


def _same_relation(one: Any, other: Any) -> bool:
    if isinstance(one, sympy.Ne) and isinstance(other, sympy.Ne):
        return _proportional(one, other) is not None
    if isinstance(one, sympy.Eq) and isinstance(other, sympy.Eq):
        return _proportional(one, other) is not None
    if isinstance(one, _INEQUALITIES) and isinstance(other, _INEQUALITIES):
        ratio = _proportional(_less(one), _less(other))
        strict = isinstance(one, sympy.Lt | sympy.Gt) == isinstance(other, sympy.Lt | sympy.Gt)
        return strict and ratio is not None and bool(ratio > 0)
    return False


def _less(relation: Any) -> Any:
    """An inequality as (smaller, larger)."""
    flipped = isinstance(relation, sympy.Gt | sympy.Ge)
    sides = (relation.rhs, relation.lhs) if flipped else (relation.lhs, relation.rhs)
    return sympy.Eq(*sides, evaluate=False)


def _proportional(one: Any, other: Any) -> Any:
    """The constant factor between the two sides' differences; None where there is none."""
    first, second = (_with_symbols(r.lhs - r.rhs) for r in (one, other))
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if not symbols or first.free_symbols != second.free_symbols:
        return None
    rng = random.Random(1)
    ratios: list[Any] = []
    for turn in range(2 * _POINTS):
        point = {s: _coordinate(rng, s, turn % 2 == 1) for s in symbols}
        a, b = _number(first.subs(point)), _number(second.subs(point))
        if not a.is_number or not b.is_number or a == 0 or b == 0:
            continue
        ratio = a / b
        if not ratio.is_extended_real:
            continue
        if ratios and _agree(ratio, ratios[0]) is not True:
            return None
        ratios.append(ratio)
    return ratios[0] if len(ratios) >= _ENOUGH else None
