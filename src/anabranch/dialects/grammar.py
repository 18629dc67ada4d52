"""The grammar of a dialect for constrained decoding: EBNF for xgrammar, Lark for llguidance.

Both describe the same texts: those that strict reading accepts without any alias form, up to a
number of branches. A grammar cannot count, so numbers and the equality of plan and branches are
written out for every count up to the bound. Free text is every text that holds no tag of the
dialect, no cut tag at its end and no ``</`` without a name, exactly as for the parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.dialects.description import Dialect, Tag
from anabranch.dialects.free_text import free_text_regex, free_text_rules
from anabranch.errors import DialectError

Flavour = Literal["xgrammar", "llguidance"]
Scope = Literal["document", "main", "branch", "merge"]

_WHITE = "white"
_INLINE = "inline"
_FREE = "free"


@dataclass(frozen=True)
class _Terminal:
    """A run that is lexed as one: free text or white space up to and including a literal."""

    name: str
    pieces: tuple[tuple[str, str], ...]


def grammar(
    dialect: Dialect,
    flavour: Flavour = "xgrammar",
    *,
    max_branches: int = 8,
    scope: Scope = "document",
) -> str:
    """The grammar as a text.

    Args:
        dialect: which dialect.
        flavour: ``xgrammar`` (EBNF with the start rule ``root``) or ``llguidance`` (Lark, start
            rule ``start``).
        max_branches: the largest block; the size of the grammar grows with its square.
        scope: what may be written: a whole ``document``; or what one request writes: the ``main``
            line up to its next fork tag or the end, a ``branch`` behind its header, a ``merge``.

    Raises:
        DialectError: the bound does not fit the dialect, or it has no merge to describe.
    """
    if not dialect.min_branches <= max_branches:
        raise DialectError(
            f"max_branches is {max_branches}; {dialect.name} has at least {dialect.min_branches}"
        )
    rules = _Rules(dialect, min(max_branches, dialect.max_branches))
    start = rules.start(scope)
    return _ebnf(rules, start) if flavour == "xgrammar" else _lark(rules, start)


class _Rules:
    """Rules as ``{name: alternatives}``; each alternative is a list of rule and terminal names."""

    def __init__(self, dialect: Dialect, bound: int) -> None:
        self.dialect, self.bound = dialect, bound
        self.terminals: dict[str, _Terminal] = {}
        self.rules: dict[str, list[list[str]]] = {}

    def start(self, scope: Scope) -> list[list[str]]:
        dialect = self.dialect
        if scope == "branch":
            return [self.branch_body()]
        if scope == "merge":
            if dialect.merge is None:
                raise DialectError(f"{dialect.name} has no merge")
            return [[self.free_to("MERGE_END", dialect.merge.close)]]
        body = "line" if scope == "document" else "step"
        if scope == "document":
            self.rules["line"] = [[*self.block(), "line"], ["ending"]]
        else:
            self.rules["step"] = [self.to_fork(), ["ending"]]
        self.rules["ending"] = [["rest"]]
        self.rules["rest"] = [["TEXT"], []]
        if dialect.think is None:
            return [[body]]
        self.rules["ending"].append([self.free_to("THINK_END", dialect.think.close), "rest"])
        return [[body], [self.free_to("THINK_BEGIN", dialect.think.open), body]]

    # Terminals.

    def terminal(self, name: str, *pieces: tuple[str, str]) -> str:
        self.terminals[name] = _Terminal(name, pieces)
        return name

    def free_to(self, name: str, literal: str) -> str:
        return self.terminal(name, (_FREE, ""), ("", literal))

    def white_to(self, name: str, literal: str) -> str:
        return self.terminal(name, (_WHITE, ""), ("", literal))

    def numbered(self, name: str, tag: Tag, number: int) -> str:
        pieces = ((_WHITE, ""), ("", tag.open), (_WHITE, ""), ("", str(number)), (_INLINE, ""))
        return self.terminal(f"{name}_{number}", *pieces, ("", ":"))

    # Blocks.

    def begin(self) -> list[str]:
        """From the line into a block, up to where its plan's entries or its branches begin."""
        dialect, plan = self.dialect, self.dialect.plan
        if dialect.block is None:
            assert plan is not None
            return [self.free_to("BLOCK_BEGIN", plan.tag.open)]
        begin = [self.free_to("BLOCK_BEGIN", dialect.block.open)]
        return begin if plan is None else [*begin, self.white_to("PLAN_BEGIN", plan.tag.open)]

    def to_fork(self) -> list[str]:
        if self.dialect.plan is None:
            return self.begin()
        return [*self.begin(), self.plan(with_branches=False)]

    def block(self) -> list[str]:
        if self.dialect.plan is None:
            return [*self.begin(), self.branches_counted()]
        return [*self.begin(), self.plan(with_branches=True)]

    def plan(self, *, with_branches: bool) -> str:
        """Entries one after another; the plan may end behind each that makes enough of them."""
        plan = self.dialect.plan
        assert plan is not None
        end = self.white_to("PLAN_END", plan.tag.close)
        for number in range(1, self.bound + 1):
            entries = []
            for kind, tag in plan.items.items():
                name = f"ITEM_{kind.upper()}"
                begin = self.numbered(f"{name}_BEGIN", tag, number)
                entries.append([begin, self.free_to(f"{name}_END", tag.close)])
            self.rules[f"item_{number}"] = entries
            tails = []
            if number >= self.dialect.min_branches:
                tails.append([end, *(self.branches(number) if with_branches else [])])
            if number < self.bound:
                tails.append([f"plan_{number + 1}"])
            self.rules[f"after_{number}"] = tails
            self.rules[f"plan_{number}"] = [[f"item_{number}", f"after_{number}"]]
        return "plan_1"

    def branches(self, count: int) -> list[str]:
        """Exactly ``count`` branches and what closes the block."""
        return [*(self.branch(number) for number in range(1, count + 1)), *self.end()]

    def branches_counted(self) -> str:
        """Branches without a plan, as many as the dialect allows up to the bound."""
        for number in range(1, self.bound + 1):
            tails = [self.end()] if number >= self.dialect.min_branches else []
            if number < self.bound:
                tails.append([f"branches_{number + 1}"])
            self.rules[f"more_{number}"] = tails
            self.rules[f"branches_{number}"] = [[self.branch(number), f"more_{number}"]]
        return "branches_1"

    def branch(self, number: int) -> str:
        tag = self.dialect.branch
        if self.dialect.numbered:
            begin = self.numbered("BRANCH_BEGIN", tag, number)
        else:
            begin = self.white_to("BRANCH_BEGIN", tag.open)
        self.rules[f"branch_{number}"] = [[begin, *self.branch_body()]]
        return f"branch_{number}"

    def branch_body(self) -> list[str]:
        end = self.free_to("BRANCH_END", self.dialect.branch.close)
        if not self.dialect.nesting:
            return [end]
        if "inside" not in self.rules:
            self.rules["inside"] = []  # the blocks inside use this rule
            self.rules["inside"] = [[*self.block(), "inside"], [end]]
        return ["inside"]

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
    lines.append(r"white ::= [ \t\r\n]*")
    lines.append(r"inline ::= [ \t]*")
    lines.extend(free_text_rules(rules.dialect))
    return "\n".join(lines) + "\n"


def _ebnf_piece(kind: str, text: str) -> str:
    return kind or f'"{text}"'


def _lark(rules: _Rules, start: list[list[str]]) -> str:
    free = free_text_regex(rules.dialect)
    shown = {_WHITE: r"[ \t\r\n]*", _INLINE: r"[ \t]*", _FREE: f"(?:{free})*"}
    lines = []
    for name, alternatives in {"start": start, **rules.rules}.items():
        lines.append(f"{name}: {' | '.join(' '.join(names) for names in alternatives)}")
    for terminal in rules.terminals.values():
        pieces = [shown.get(kind) or text.replace("/", r"\/") for kind, text in terminal.pieces]
        lines.append(f"{terminal.name}: /{''.join(pieces)}/")
    lines.append(f"TEXT: /(?:{free})+/")
    return "\n".join(lines) + "\n"
