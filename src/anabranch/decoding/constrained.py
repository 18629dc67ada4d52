"""Constrained decoding: which grammar a call is sent with, and what a limit leaves of its text.

With the grammar of its phase a call cannot write a malformed block: tags stand where they may,
numbers follow the plan, a branch ends only by its own closing tag. A cap may still cut a call
anywhere; :func:`keep_whole` then takes away the piece of a tag or plan at the end, so that what
the runtime writes behind it makes a well-formed text. The grammars themselves are
:mod:`anabranch.dialects.grammar`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from anabranch.decoding.admission import admit
from anabranch.decoding.setup import Setup
from anabranch.decoding.state import Line
from anabranch.dialects import Dialect, PlanItem, grammar
from anabranch.dialects.grammar import Fork
from anabranch.dialects.tags import tag_table
from anabranch.engines.base import Engine, find_grammar
from anabranch.errors import UsageError
from anabranch.records import RequestKind

if TYPE_CHECKING:
    from anabranch.decoding.machine import Machine

_grammar = lru_cache(maxsize=1024)(grammar)


async def with_grammar(setup: Setup, engine: Engine) -> Setup:
    """The setup with the flavour of grammar that the engine takes, where its mode wants one.

    Raises:
        UsageError: the mode is ``constrained``, or a block is to be forced, and the engine takes
            no grammar.
    """
    if setup.mode not in ("constrained", "prompted") or setup.grammar is not None:
        return setup
    found = await find_grammar(engine)
    if found is None and (setup.mode == "constrained" or setup.min_blocks):
        what = "mode constrained needs" if setup.mode == "constrained" else "min_blocks needs"
        raise UsageError(
            f"{what} an engine that takes grammars, and {engine.name} takes none: use vLLM, "
            "SGLang, llama.cpp or an in-process model with anabranch[grammar], or mode prompted "
            "without min_blocks"
        )
    return replace(setup, grammar=found)


def phase_grammar(m: Machine, kind: RequestKind, line: Line) -> str | None:
    """The grammar of a call; None where the setup has none."""
    setup, dialect = m.setup, m.setup.dialect
    if setup.grammar is None:
        return None
    if kind == "merge":
        return _grammar(dialect, setup.grammar, scope="merge")
    if line.answering:
        return _grammar(dialect, setup.grammar, scope="answer")
    fork = _fork(m, line)
    # The bound must fit the dialect also where no block can be opened.
    widest = max(dialect.min_branches, min(setup.limits.max_branches, dialect.max_branches))
    if kind == "branch":
        return _grammar(
            dialect,
            setup.grammar,
            scope="branch",
            branch=line.numbers,
            fork=fork,
            max_branches=widest,
            max_depth=max(1, setup.limits.max_depth),
        )
    return _grammar(
        dialect, setup.grammar, scope="main", fork=fork, begun=_begun(m), max_branches=widest
    )


def _fork(m: Machine, line: Line) -> Fork:
    """Whether a line may open a block now: only if the smallest block would be admitted."""
    dialect, setup = m.setup.dialect, m.setup
    if line is not m.main and not dialect.nesting:
        return "no"
    least = dialect.min_branches if dialect.plan else width(setup)
    items = [PlanItem(number, dialect.branch_kind, "") for number in range(1, least + 1)]
    admitted, _ = admit(m, line, items)
    if len(admitted) < least:
        return "no"
    opened = len(m.record.blocks) + len(m.open_blocks)
    return "must" if line is m.main and opened < setup.min_blocks else "may"


def width(setup: Setup) -> int:
    """Branches of a block in a dialect without a plan."""
    wanted = setup.width() if callable(setup.width) else setup.width
    return wanted or setup.dialect.default_width


def _begun(m: Machine) -> bool:
    think = m.setup.dialect.think
    if think is None or m.record.generated(m.main.context).strip():
        return True
    return think.is_open_in(m.setup.prompt)


def keep_whole(m: Machine, line: Line) -> None:
    """Take away a cut tag or plan from the end of a line that a limit has cut."""
    if m.setup.grammar is None:
        return
    text = m.record.segments[line.context[-1]].text
    kept = whole(text, m.setup.dialect)
    if kept != text:
        m.note("cut_short", f"{text[len(kept) :]!r} at the end of what a limit cut is left out")
        line.context[-1:] = m.record.force(kept)
        line.fresh = line.fresh.removesuffix(text[len(kept) :])


@lru_cache(maxsize=256)
def whole(text: str, dialect: Dialect) -> str:
    """The longest beginning of a text, of one call, that any text may follow."""
    # A block is the end of the call that opens it: one that is here was not forked.
    begin = text.rfind(dialect.block_begin)
    if begin >= 0:
        text = text[:begin]
    at = text.rfind("<")
    if at >= 0 and tag_table(dialect).partial.match(text, at):
        text = text[:at]
    return text
