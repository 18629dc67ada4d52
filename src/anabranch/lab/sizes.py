"""Which sizes of the families are evaluated and shown; the training mix is in the recipe."""

from __future__ import annotations

from anabranch.errors import UsageError

#: ``(chains, operators)`` of the AND family that the bundled model is measured on.
CHAIN_SIZES = ((2, 5), (3, 5), (4, 5), (5, 5), (6, 5))
#: ``(operators,)`` of the OR family.
PUZZLE_SIZE = (3,)


def demo_sizes(count: int) -> list[tuple[int, ...]]:
    """Sizes of the demo's chains: from few to many."""
    return [CHAIN_SIZES[i * len(CHAIN_SIZES) // count] for i in range(count)]


def parse_size(family: str, text: str) -> tuple[int, ...]:
    """A size from the command line: ``K`` or ``K,OPERATORS`` for chains, ``OPERATORS`` for puzzle.

    Raises:
        UsageError: the text is no size of the family.
    """
    if not text:
        return CHAIN_SIZES[2] if family == "chains" else PUZZLE_SIZE
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"size {text!r}: numbers separated by a comma are expected") from None
    if family == "chains" and len(numbers) == 1:
        numbers = (*numbers, CHAIN_SIZES[0][1])
    limits = ((1, 6), (1, 5)) if family == "chains" else ((1, 3),)
    if len(numbers) != len(limits):
        raise UsageError(f"size {text!r}: {family} take {len(limits)} numbers")
    for number, (low, high) in zip(numbers, limits, strict=True):
        if not low <= number <= high:
            raise UsageError(f"size {text!r}: {number} is not between {low} and {high}")
    return numbers
