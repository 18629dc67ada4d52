"""The grammar of a dialect for constrained decoding: EBNF for xgrammar, Lark for llguidance, GBNF.

All describe the same texts: those that strict reading accepts without any alias form, up to a
number of branches and, where branches may hold blocks, a depth. A grammar cannot count, so numbers
and the equality of plan and branches are written out for every count up to the bound, and dotted
numbers for every branch that a block may stand in. Free text is every text that holds no tag of
the dialect, no cut tag at its end and no ``</`` without a name, exactly as for the parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.dialects.description import Dialect, Tag
from anabranch.dialects.free_text import free_text_regex, free_text_rules
from anabranch.errors import DialectError

Flavour = Literal["xgrammar", "llguidance", "gbnf"]
Scope = Literal["document", "main", "branch", "merge", "answer"]
#: Whether a request of the scope ``main`` or ``branch`` may, must or cannot open a block.
Fork = Literal["may", "must", "no"]

#: Where a block must be opened: most characters in front of it, and of a title in its plan.
LEAD = 200
TITLE = 120

#: Most characters in front of these tags where a block must be opened.
_LONGEST = {"BLOCK_BEGIN": str(LEAD), "THINK_BEGIN": "0"}

_WHITE = "white"
_INLINE = "inline"
_FREE = "free"


@dataclass(frozen=True)
class _Terminal:
    """A run that is lexed as one: free text or white space up to and including a literal."""

    name: str
    pieces: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Place:
    """Where a block stands: inside which branches, and how many blocks deep (1: the main line)."""

    depth: int = 1
    owner: tuple[int, ...] = ()

    def inside(self, number: int) -> _Place:
        return _Place(self.depth + 1, (*self.owner, number))


def grammar(
    dialect: Dialect,
    flavour: Flavour = "xgrammar",
    *,
    max_branches: int = 8,
    max_depth: int = 2,
    scope: Scope = "document",
    branch: Sequence[int] = (),
    fork: Fork = "may",
    begun: bool = False,
) -> str:
    """The grammar as a text.

    Args:
        dialect: which dialect.
        flavour: ``xgrammar`` (EBNF with the start rule ``root``), ``llguidance`` (Lark, start
            rule ``start``) or ``gbnf`` (llama.cpp, start rule ``root``).
        max_branches: the largest block; the size of the grammar grows with its square, and with
            its cube where numbers inside branches are dotted.
        max_depth: how deep blocks may stand in one another, in a dialect that nests them.
        scope: what may be written: a whole ``document``; or what one request writes: the ``main``
            line up to its next fork tag or the end, a ``branch`` behind its header up to its next
            fork tag or its end, a ``merge``, or the ``answer`` behind closed reasoning: free text.
        branch: for the scope ``branch``, its number and before it those of the branches around it,
            outermost first. Without it, no block inside the branch is described where numbers
            are dotted.
        fork: whether a block may, must or cannot be opened. Where it must, :data:`LEAD` characters
            at most stand in front of it, no title is longer than :data:`TITLE`, and neither has a
            ``<``: a model that would go on for ever is brought to its fork.
        begun: for the scope ``main``, that text stands before it: the reasoning is open already or
            will not be opened.

    Raises:
        DialectError: the bound does not fit the dialect, or it has no merge to describe.
    """
    if not dialect.min_branches <= max_branches:
        raise DialectError(
            f"max_branches is {max_branches}; {dialect.name} has at least {dialect.min_branches}"
        )
    rules = _Rules(dialect, min(max_branches, dialect.max_branches), max_depth, fork)
    start = rules.start(scope, tuple(branch), begun)
    if flavour == "llguidance":
        return _lark(rules, start)
    text = _ebnf(rules, start)
    return _as_gbnf(text) if flavour == "gbnf" else text


class _Rules:
    """Rules as ``{name: alternatives}``; each alternative is a list of rule and terminal names."""

    def __init__(self, dialect: Dialect, bound: int, depth: int, fork: Fork = "may") -> None:
        self.dialect, self.bound, self.fork = dialect, bound, fork
        self.depth = depth if dialect.nesting else 1
        self.terminals: dict[str, _Terminal] = {}
        self.rules: dict[str, list[list[str]]] = {}

    def start(self, scope: Scope, branch: tuple[int, ...], begun: bool) -> list[list[str]]:
        dialect = self.dialect
        if scope == "answer":
            return [["TEXT"], []]
        if scope == "branch":
            place = _Place(max(1, len(branch)) + 1, branch)
            end = self.free_to("BRANCH_END", dialect.branch.close)
            forks = place.depth <= self.depth and (branch or not dialect.dotted)
            return self.choose([self.to_fork(place)] if forks else [], [end])
        if scope == "merge":
            if dialect.merge is None:
                raise DialectError(f"{dialect.name} has no merge")
            return [[self.free_to("MERGE_END", dialect.merge.close)]]
        body = "line" if scope == "document" else "step"
        if scope == "document":
            self.rules["line"] = [[*self.block(_Place()), "line"], ["ending"]]
        else:
            self.rules["step"] = self.choose([self.to_fork(_Place())], ["ending"])
        self.rules["ending"] = [["rest"]]
        self.rules["rest"] = [["TEXT"], []]
        if dialect.think is None:
            return [[body]]
        self.rules["ending"].append([self.free_to("THINK_END", dialect.think.close), "rest"])
        if begun:
            return [[body]]
        return [[body], [self.free_to("THINK_BEGIN", dialect.think.open), body]]

    def choose(self, forks: list[list[str]], end: list[str]) -> list[list[str]]:
        """The ways that ``fork`` leaves open."""
        if self.fork == "no" or not forks:
            return [end]
        return forks if self.fork == "must" else [*forks, end]

    # Terminals.

    def terminal(self, name: str, *pieces: tuple[str, str]) -> str:
        self.terminals[name] = _Terminal(name, pieces)
        return name

    def free_to(self, name: str, literal: str) -> str:
        bound = _LONGEST.get(name, "") if self.fork == "must" else ""
        return self.terminal(name, (_FREE, bound), ("", literal))

    def white_to(self, name: str, literal: str) -> str:
        return self.terminal(name, (_WHITE, ""), ("", literal))

    def numbered(self, name: str, tag: Tag, place: _Place, number: int) -> str:
        label = self.dialect.label(number, place.owner)
        pieces = ((_WHITE, ""), ("", tag.open), (_WHITE, ""), ("", label), (_INLINE, ""))
        return self.terminal(f"{name}_{label.replace('.', '_')}", *pieces, ("", ":"))

    # Blocks. A place has rules of its own where the numbers in it are its own.

    def name(self, name: str, place: _Place, *number: int) -> str:
        around = place.owner if self.dialect.dotted else (place.depth,) * (place.depth > 1)
        inside = ("in",) if around else ()
        return "_".join(map(str, (name, *inside, *around, *number)))

    def begin(self) -> list[str]:
        """From the line into a block, up to where its plan's entries or its branches begin."""
        dialect, plan = self.dialect, self.dialect.plan
        if dialect.block is None:
            assert plan is not None
            return [self.free_to("BLOCK_BEGIN", plan.tag.open)]
        begin = [self.free_to("BLOCK_BEGIN", dialect.block.open)]
        return begin if plan is None else [*begin, self.white_to("PLAN_BEGIN", plan.tag.open)]

    def to_fork(self, place: _Place) -> list[str]:
        if self.dialect.plan is None:
            return self.begin()
        return [*self.begin(), self.plan(place, with_branches=False)]

    def block(self, place: _Place) -> list[str]:
        if self.dialect.plan is None:
            return [*self.begin(), self.branches_counted(place)]
        return [*self.begin(), self.plan(place, with_branches=True)]

    def plan(self, place: _Place, *, with_branches: bool) -> str:
        """Entries one after another; the plan may end behind each that makes enough of them."""
        plan = self.dialect.plan
        assert plan is not None
        end = self.white_to("PLAN_END", plan.tag.close)
        for number in range(1, self.bound + 1):
            entries = []
            for kind, tag in plan.items.items():
                name = f"ITEM_{kind.upper()}"
                begin = self.numbered(f"{name}_BEGIN", tag, place, number)
                bound = str(TITLE) if self.fork == "must" else ""
                end_item = self.terminal(f"{name}_END", (_FREE, bound), ("", tag.close))
                entries.append([begin, end_item])
            item, after = self.name("item", place, number), self.name("after", place, number)
            self.rules[item] = entries
            tails = []
            if number >= self.dialect.min_branches:
                tails.append([end, *(self.branches(place, number) if with_branches else [])])
            if number < self.bound:
                tails.append([self.name("plan", place, number + 1)])
            self.rules[after] = tails
            self.rules[self.name("plan", place, number)] = [[item, after]]
        return self.name("plan", place, 1)

    def branches(self, place: _Place, count: int) -> list[str]:
        """Exactly ``count`` branches and what closes the block."""
        return [*(self.branch(place, number) for number in range(1, count + 1)), *self.end()]

    def branches_counted(self, place: _Place) -> str:
        """Branches without a plan, as many as the dialect allows up to the bound."""
        for number in range(1, self.bound + 1):
            more = self.name("more", place, number)
            tails = [self.end()] if number >= self.dialect.min_branches else []
            if number < self.bound:
                tails.append([self.name("branches", place, number + 1)])
            self.rules[more] = tails
            rule = self.name("branches", place, number)
            self.rules[rule] = [[self.branch(place, number), more]]
        return self.name("branches", place, 1)

    def branch(self, place: _Place, number: int) -> str:
        tag, name = self.dialect.branch, self.name("branch", place, number)
        if name in self.rules:
            return name
        if self.dialect.numbered:
            begin = self.numbered("BRANCH_BEGIN", tag, place, number)
        else:
            begin = self.white_to("BRANCH_BEGIN", tag.open)
        self.rules[name] = [[begin, self.branch_body(place.inside(number))]]
        return name

    def branch_body(self, place: _Place) -> str:
        """The inside of a branch up to and with its closing tag; ``place`` is of blocks in it."""
        end = self.free_to("BRANCH_END", self.dialect.branch.close)
        if place.depth > self.depth:
            return end
        name = self.name("inside", place)
        if name not in self.rules:
            self.rules[name] = []  # the blocks inside use this rule
            self.rules[name] = [[*self.block(place), name], [end]]
        return name

    def end(self) -> list[str]:
        dialect = self.dialect
        close = [self.white_to("BLOCK_END", dialect.block.close)] if dialect.block else []
        if dialect.merge is None:
            return close
        merge = [
            self.white_to("MERGE_BEGIN", dialect.merge.open),
            self.free_to("MERGE_END", dialect.merge.close),
        ]
        return [*merge, *close] if dialect.merge_inside else [*close, *merge]


def _ebnf(rules: _Rules, start: list[list[str]]) -> str:
    lines = []
    for name, alternatives in {"root": start, **rules.rules}.items():
        choices = [" ".join(names) or '""' for names in alternatives]
        lines.append(f"{name} ::= {' | '.join(choices)}")
    for terminal in rules.terminals.values():
        pieces = [_ebnf_piece(kind, text) for kind, text in terminal.pieces]
        lines.append(f"{terminal.name} ::= {' '.join(pieces)}")
    lines.append("TEXT ::= chunk free")
    lines.append(r"white ::= [ \t\r\n]" + ("{0,8}" if rules.fork == "must" else "*"))
    lines.append(r"inline ::= [ \t]*")
    lines.extend(free_text_rules(rules.dialect))
    return "\n".join(lines) + "\n"


def _ebnf_piece(kind: str, text: str) -> str:
    if kind == _FREE and text:
        return f"[^<]{{0,{text}}}"  # of chunks, each token would take longer than the one before
    return kind or f'"{text}"'


def _as_gbnf(ebnf: str) -> str:
    """llama.cpp knows letters, digits and hyphens in names; all else is the same."""
    lines = []
    for line in ebnf.splitlines():
        parts = re.split(r'("[^"]*"|\[[^\]]*\])', line)
        lines.append("".join(p if at % 2 else p.replace("_", "-") for at, p in enumerate(parts)))
    return "\n".join(lines) + "\n"


def _lark(rules: _Rules, start: list[list[str]]) -> str:
    free = free_text_regex(rules.dialect)
    shown = {_WHITE: r"[ \t\r\n]*", _INLINE: r"[ \t]*", _FREE: f"(?:{free})*"}
    lines = []
    for name, alternatives in {"start": start, **rules.rules}.items():
        lines.append(f"{name}: {' | '.join(' '.join(names) for names in alternatives)}")
    for terminal in rules.terminals.values():
        pieces = [_lark_piece(kind, text, shown) for kind, text in terminal.pieces]
        lines.append(f"{terminal.name}: /{''.join(pieces)}/")
    lines.append(f"TEXT: /(?:{free})+/")
    return "\n".join(lines) + "\n"


def _lark_piece(kind: str, text: str, shown: dict[str, str]) -> str:
    if kind == _FREE and text:
        return f"[^<]{{0,{text}}}"
    return shown.get(kind) or _literal(text)


def _literal(text: str) -> str:
    return text.replace("/", r"\/").replace(".", r"\.")
