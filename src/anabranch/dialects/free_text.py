"""Free text of a dialect as a regular language: for grammars, which cannot say "holds no tag".

Free text is a run of chunks. A chunk is any character but ``<``, or a ``<`` with what follows it up
to the character at which it can no longer become a tag. So free text never holds a tag, never ends
in a cut one, and a ``/`` behind ``<`` is followed by a letter; the parser says the same.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.dialects.description import Dialect
from anabranch.dialects.tags import MAX_DIGITS


@dataclass
class _Node:
    """What may be read behind ``<`` (and on): by character, the next node; None ends a tag.

    ``only_letters`` holds for the node behind ``</``.
    """

    name: str
    next: dict[str, _Node | None] = field(default_factory=dict)
    only_letters: bool = False

    def exits(self) -> str:
        """A character class (inside of the brackets) of what makes the piece plain text."""
        if self.only_letters:
            return "".join(c for c in string.ascii_letters if c not in self.next)
        return "^<" + "".join(sorted(self.next))


class _Trie:
    """All nodes of a dialect's tags; the first stands behind ``<``."""

    def __init__(self, dialect: Dialect) -> None:
        self.nodes: list[_Node] = []
        root, close = self.node(), self.node()
        root.next["/"] = close
        close.only_letters = True
        behind_name = self.tail()
        for base in (root, close):
            for name in sorted(dialect.tag_of):
                at = base
                for char in name:
                    following = at.next.get(char)
                    if following is None:
                        following = at.next[char] = self.node()
                    at = following
                at.next.update(behind_name)

    def node(self) -> _Node:
        self.nodes.append(_Node(f"lt_{len(self.nodes)}"))
        return self.nodes[-1]

    def tail(self) -> dict[str, _Node | None]:
        """What follows a name: a space and a number, a space, and the ``>`` that ends the tag."""
        last, space = self.node(), self.node()
        last.next[">"] = None
        digits = [self.node() for _ in range(MAX_DIGITS)]
        for at, following in zip(digits, [*digits[1:], None], strict=True):
            at.next.update({">": None, " ": last})
            if following is not None:
                at.next.update(dict.fromkeys(string.digits, following))
        space.next.update({">": None, **dict.fromkeys(string.digits, digits[0])})
        return {">": None, " ": space}


def free_text_rules(dialect: Dialect) -> list[str]:
    """EBNF rules ``free``, ``chunk`` and those they use."""
    # As a run of chunks it would be the same, and a thousand times slower in xgrammar.
    free = 'free ::= [^<]* ("<" lt_0 [^<]*)*'
    lines = [free, 'chunk ::= [^<] | "<" lt_0']
    for node in _Trie(dialect).nodes:
        choices = [f"[{node.exits()}]"]
        if not node.only_letters:
            choices.append('"<" lt_0')
        for chars, following in _grouped(node):
            choices.append(f"[{chars}] {following.name}" if chars else following.name)
        lines.append(f"{node.name} ::= {' | '.join(choices)}")
    return lines


def free_text_regex(dialect: Dialect) -> str:
    """A regular expression of one chunk, in the syntax of Lark terminals."""
    root = _Trie(dialect).nodes[0]
    return f"[^<]|(?:<{_cut(root)})*<{_ended(root)}"


def _ended(node: _Node) -> str:
    """From a node on: anything up to and including the character that makes it plain text."""
    choices = [f"[{_escaped(node.exits())}]"]
    for chars, following in _grouped(node):
        choices.append(f"{_class(chars)}{_ended(following)}")
    return f"(?:{'|'.join(choices)})"


def _cut(node: _Node) -> str:
    """From a node on: any piece of a tag, before another ``<`` begins anew."""
    choices = []
    for chars, following in _grouped(node):
        choices.append(f"{_class(chars)}{_cut(following)}")
    if not choices:
        return ""
    inside = f"(?:{'|'.join(choices)})"
    return inside if node.only_letters else f"{inside}?"


def _grouped(node: _Node) -> Iterator[tuple[str, _Node]]:
    """Characters that lead to the same node, together."""
    by_node: dict[str, tuple[str, _Node]] = {}
    for char, following in node.next.items():
        if following is not None:
            chars = by_node.get(following.name, ("", following))[0]
            by_node[following.name] = (chars + char, following)
    yield from by_node.values()


def _class(chars: str) -> str:
    return _escaped(chars) if len(chars) == 1 else f"[{_escaped(chars)}]"


def _escaped(chars: str) -> str:
    return chars.replace("/", r"\/")
