r"""Compares two answers: identity of text, then exact numbers, then structure, then algebra.

Whatever needs algebra is left to a function that the caller hands in; without one
:class:`NeedsAlgebra` is raised, so that cheap pairs never leave the process and dear ones run in a
worker. Comparison is symmetric but for rounding, where the gold's own digits count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from anabranch.grading.latex import normalised, top_level
from anabranch.grading.numbers import Number, unit_matches
from anabranch.grading.rules import Rules
from anabranch.grading.values import (
    Expression,
    Interval,
    Matrix,
    Named,
    Ratio,
    Relation,
    Sequence,
    Union,
    Value,
    Words,
    readings,
)


class NeedsAlgebra(Exception):
    """The pair cannot be decided without a computer algebra system."""


class Algebra(Protocol):
    """Decides pairs of expressions."""

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two expressions have the same value wherever both are defined."""

    def same_relation(self, gold: str, answer: str) -> bool:
        """Whether two equations or inequalities have the same solutions."""

    def value(self, text: str) -> Fraction | None:
        """A constant expression to 30 digits; None where it is no real constant."""


def identical(gold: str, answer: str) -> bool:
    """Whether two answers are the same text, but for spelling, white space and letter case of
    words. Empty text is identical to nothing."""
    one, other = _key(gold), _key(answer)
    return bool(one) and one == other


def _key(text: str) -> str:
    text = re.sub(r"\s+", "", normalised(text).replace("\\text", ""))
    text = re.sub(r"\{([A-Za-z0-9])\}(?=[_^)}\]]|$)", r"\1", text)
    return text.casefold() if re.fullmatch(r"[A-Za-z{}'-]{2,}", text) else text


def matches(
    gold: str, answer: str, rules: Rules, algebra: Algebra | None = None
) -> tuple[bool, str]:
    """Whether an answer says the same as the gold, and by which step that was found.

    Raises:
        NeedsAlgebra: the pair is not decided and no algebra was given.
    """
    if identical(gold, answer):
        return True, "identical"
    golds, answers = readings(gold), readings(answer)
    if not golds or not answers:
        return False, "empty"
    comparer = _Comparer(rules, algebra)
    undecided = False
    for one in golds:
        for other in answers:
            try:
                if comparer.equal(one, other):
                    return True, "algebra" if comparer.used_algebra else type(one).__name__.lower()
            except NeedsAlgebra:
                undecided = True
    if undecided:
        raise NeedsAlgebra
    return False, "different"


class _Comparer:
    def __init__(self, rules: Rules, algebra: Algebra | None) -> None:
        self.rules, self.algebra, self.used_algebra = rules, algebra, False

    def equal(self, gold: Value, answer: Value) -> bool:
        if gold == answer:
            return True
        if isinstance(gold, Named) or isinstance(answer, Named):
            return self._named(gold, answer)
        if isinstance(gold, Number) and isinstance(answer, Number):
            return numbers_equal(gold, answer, self.rules)
        for kind, compare in self._by_kind():
            if isinstance(gold, kind) or isinstance(answer, kind):
                return compare(gold, answer)
        return self._expressions(gold, answer)

    def _by_kind(self) -> tuple[tuple[type, Callable[[Value, Value], bool]], ...]:
        return (
            (Matrix, self._matrices),
            (Interval, self._intervals),
            (Union, self._unions),
            (Sequence, self._sequences),
            (Ratio, self._ratios),
            (Words, self._words),
            (Relation, self._relations),
        )

    def _named(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Named) and isinstance(answer, Named):
            if gold.name == answer.name:
                return self.equal(gold.value, answer.value)
            one, other = _call(gold.name), _call(answer.name)
            if one and other and one[0] == other[0] and len(one[1]) == len(other[1]) == 1:
                return self.equal(gold.value, _renamed(answer.value, other[1], one[1]))
            if isinstance(gold.value, Expression) and isinstance(answer.value, Expression):
                return self._algebra().same_relation(_equation(gold), _equation(answer))
            return False
        if isinstance(gold, Named):
            if isinstance(answer, Relation):
                return self._algebra().same_relation(_equation(gold), answer.text)
            return self.equal(gold.value, answer)
        assert isinstance(answer, Named)
        if isinstance(gold, Relation):
            return self._algebra().same_relation(gold.text, _equation(answer))
        return self.equal(gold, answer.value)

    def _matrices(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Matrix) and isinstance(answer, Matrix):
            return [len(row) for row in gold.rows] == [len(row) for row in answer.rows] and all(
                self.equal(a, b)
                for one, other in zip(gold.rows, answer.rows, strict=True)
                for a, b in zip(one, other, strict=True)
            )
        matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
        if isinstance(other, Expression) and "\\begin" in other.text:
            return self._algebra().equal(_text(gold), _text(answer))
        if isinstance(other, Sequence) and other.kind == "tuple" and isinstance(matrix, Matrix):
            column = Sequence("tuple", tuple(cell for row in matrix.rows for cell in row))
            vector = 1 in (len(matrix.rows), max(map(len, matrix.rows)))
            return vector and self._sequences(column, other)
        return False

    def _intervals(self, gold: Value, answer: Value) -> bool:
        for interval, relation in ((gold, answer), (answer, gold)):
            if isinstance(interval, Interval) and isinstance(relation, Relation):
                if not interval.relation:
                    return False
                return self._algebra().same_relation(interval.relation, relation.text)
        one, other = _as_interval(gold), _as_interval(answer)
        if one is None or other is None:
            return False
        ends = (one.closed_low, one.closed_high) == (other.closed_low, other.closed_high)
        return ends and self.equal(one.low, other.low) and self.equal(one.high, other.high)

    def _unions(self, gold: Value, answer: Value) -> bool:
        one = gold.parts if isinstance(gold, Union) else (gold,)
        other = answer.parts if isinstance(answer, Union) else (answer,)
        return len(one) == len(other) and self._unordered(one, other)

    def _sequences(self, gold: Value, answer: Value) -> bool:
        if not isinstance(gold, Sequence) or not isinstance(answer, Sequence):
            single, several = (answer, gold) if isinstance(gold, Sequence) else (gold, answer)
            assert isinstance(several, Sequence)
            if several.kind == "tuple":
                return False
            items = self._distinct(several.items)
            # The order of the arguments decides about rounding, so it is kept.
            return len(items) == 1 and (
                self.equal(items[0], single) if several is gold else self.equal(single, items[0])
            )
        kinds = {gold.kind, answer.kind}
        if kinds == {"tuple", "set"}:
            return False
        if "tuple" in kinds:
            if kinds == {"tuple", "list"} and _bracketed_once(gold, answer):
                return False
            return len(gold.items) == len(answer.items) and all(
                self.equal(a, b) for a, b in zip(gold.items, answer.items, strict=True)
            )
        return self._unordered(self._distinct(gold.items), self._distinct(answer.items))

    def _distinct(self, items: tuple[Value, ...]) -> tuple[Value, ...]:
        flat: list[Value] = []
        for item in items:
            inner = item.value if isinstance(item, Named) else item
            several = isinstance(inner, Sequence) and inner.kind != "tuple"
            flat.extend(inner.items if several and isinstance(inner, Sequence) else (item,))
        return tuple(dict.fromkeys(flat))

    def _unordered(self, gold: tuple[Value, ...], answer: tuple[Value, ...]) -> bool:
        if len(gold) != len(answer):
            return False
        left = list(answer)
        undecided = False
        for one in gold:
            for index, other in enumerate(left):
                try:
                    same = self.equal(one, other)
                except NeedsAlgebra:
                    undecided = True
                    continue
                if same:
                    del left[index]
                    break
            else:
                if undecided:
                    raise NeedsAlgebra
                return False
        return True

    def _ratios(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            one, other = _scaled(gold), _scaled(answer)
            # Two times of day may stand in proportion and are still different times.
            if one is not None and other is not None and not (gold.clock and answer.clock):
                return one == other
            return len(gold.items) == len(answer.items) and all(
                self.equal(a, b) for a, b in zip(gold.items, answer.items, strict=True)
            )
        return False

    def _words(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Words) and isinstance(answer, Words):
            one, other = (" ".join(w.text.split()).rstrip(".") for w in (gold, answer))
            if len(one) == 1 or len(other) == 1:
                return one == other
            return one.casefold() == other.casefold() or (
                _product(one, other) and self._expressions(gold, answer)
            )
        coded = (isinstance(w, Words) and any(map(str.isdigit, w.text)) for w in (gold, answer))
        return not any(coded) and self._expressions(gold, answer)

    def _relations(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self._algebra().same_relation(gold.text, answer.text)
        return False

    def _expressions(self, gold: Value, answer: Value) -> bool:
        one, other = _text(gold), _text(answer)
        if not one or not other or _is_relation(one) or _is_relation(other):
            return False
        for number, kind in ((gold, answer), (answer, gold)):
            if isinstance(number, Number) and number.places is not None:
                value = self._algebra().value(_text(kind))
                if value is None:
                    return False
                exact = Number(value)
                pair = (gold, exact) if number is gold else (exact, answer)
                return numbers_equal(*pair, self.rules)  # type: ignore[arg-type]
        return self._algebra().equal(one, other)

    def _algebra(self) -> Algebra:
        if self.algebra is None:
            raise NeedsAlgebra
        self.used_algebra = True
        return self.algebra


def numbers_equal(gold: Number, answer: Number, rules: Rules) -> bool:
    """Equality of two numbers: exact values exactly, decimals to the digits that were written.

    Units and bases must agree where both sides give one. A percentage equals its own figure and a
    hundredth of it.
    """
    if not unit_matches(gold.unit, answer.unit) or not unit_matches(gold.base, answer.base):
        return False
    if gold.percent == answer.percent:
        return _close(gold, answer, rules)
    hundredth = Fraction(1, 100)
    percent, plain = (gold, answer) if gold.percent else (answer, gold)
    scaled = Number(
        percent.value * hundredth,
        None if percent.places is None else percent.places - 2,
        percent.digits,
        percent.measured,
    )
    if gold.percent:
        return _close(percent, plain, rules) or _close(scaled, plain, rules)
    return _close(plain, percent, rules) or _close(plain, scaled, rules)


def _close(gold: Number, answer: Number, rules: Rules) -> bool:
    if gold.value == answer.value:
        return True
    if rules.relative is not None and gold.places is not None:
        return abs(gold.value - answer.value) <= Fraction(rules.relative) * abs(gold.value)
    finer = answer.places is None or (gold.places is not None and answer.places < gold.places)
    if gold.places is not None and (gold.measured or gold.digits >= rules.gold_digits) and finer:
        return _rounds(answer.value, gold)
    if gold.places is None and answer.places is not None and answer.digits >= rules.answer_digits:
        # An exact whole number is no rounded value of anything else.
        return gold.value.denominator != 1 and _rounds(gold.value, answer)
    return False


def _rounds(value: Fraction, written: Number) -> bool:
    """Whether rounding a value to the last digit of a decimal gives that decimal."""
    assert written.places is not None
    if written.value == 0 or (value < 0) != (written.value < 0):
        return False
    return abs(value - written.value) * 2 <= Fraction(10) ** written.places


def _as_interval(value: Value) -> Interval | None:
    if isinstance(value, Interval):
        return value
    if isinstance(value, Sequence) and value.kind == "tuple" and len(value.items) == 2:
        return Interval(value.items[0], value.items[1], False, False)
    return None


def _bracketed_once(gold: Sequence, answer: Sequence) -> bool:
    """A list of tuples is not a tuple."""
    items = gold.items if gold.kind == "list" else answer.items
    return any(isinstance(item, Sequence) and item.kind == "tuple" for item in items)


def _scaled(ratio: Ratio) -> tuple[Fraction, ...] | None:
    values = [item.value for item in ratio.items if isinstance(item, Number)]
    if len(values) != len(ratio.items) or not all(values):
        return None
    return tuple(value / values[0] for value in values)


def _is_relation(text: str) -> bool:
    return bool(re.search(r"[=<>]", text)) and any(text[at] in "=<>" for at in top_level(text))


def _product(one: str, other: str) -> bool:
    """Words that may be products of letters: ``ab`` and ``ba``."""
    return len(one) <= 4 and len(one) == len(other) and sorted(one) == sorted(other)


def _call(name: str) -> tuple[str, str] | None:
    match = re.fullmatch(r"([A-Za-z_\\0-9]+)\(([A-Za-z])\)", name)
    return (match[1], match[2]) if match else None


def _renamed(value: Value, old: str, new: str) -> Value:
    text = _text(value)
    if old == new or isinstance(value, Number) or re.search(rf"(?<![a-zA-Z\\]){new}", text):
        return value
    found = readings(re.sub(rf"(?<![a-zA-Z\\]){old}(?![a-zA-Z])", new, text))
    return found[0] if found else value


def _equation(named: Named) -> str:
    return f"{named.name}={_text(named.value)}"


def _text(value: Value) -> str:
    """LaTeX of a value, for the algebra."""
    if isinstance(value, Number):
        number = f"\\frac{{{value.value.numerator}}}{{{value.value.denominator}}}"
        number = str(value.value.numerator) if value.value.denominator == 1 else number
        return (
            number
            if not value.percent
            else f"\\frac{{{value.value.numerator}}}{{{100 * value.value.denominator}}}"
        )
    if isinstance(value, Expression | Words | Relation):
        return value.text
    if isinstance(value, Matrix):
        rows = r" \\ ".join(" & ".join(_text(cell) for cell in row) for row in value.rows)
        return rf"\begin{{matrix}}{rows}\end{{matrix}}"
    if isinstance(value, Named):
        return _equation(value)
    return ""
