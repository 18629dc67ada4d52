"""Which strings end a call, by its kind and place.

Hard stops are sent to the engine. Servers of the OpenAI API take no more than four; what is beyond
that is a soft stop: the machine itself looks for it in what comes back.
"""

from __future__ import annotations

from anabranch.decoding.setup import Setup
from anabranch.decoding.state import Line
from anabranch.records import RequestKind

#: The OpenAI API takes this many stop strings.
MOST = 4


def stops(setup: Setup, kind: RequestKind, line: Line) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The strings that end a call of this kind: sent to the engine, and looked for by us."""
    dialect = setup.dialect
    if kind == "merge":
        return ((dialect.merge_stop,) if dialect.merge_stop else ()), ()
    forking = setup.mode != "sequential" and not line.answering
    if kind == "main":
        return ((dialect.fork_tag,) if forking else ()), ()
    # A branch that closes or joins the block, or the reasoning, has left its place: it is stopped.
    found = [dialect.branch_stop]
    if dialect.nesting and line.depth < setup.limits.max_depth:
        found.append(dialect.fork_tag)
    if dialect.block is not None:
        found.append(dialect.block.close)
    if dialect.merge is not None and dialect.merge_inside:
        found.append(dialect.merge.open)
    if dialect.think is not None:
        found.append(dialect.think.close)
    soft = [f"</{name}>" for name in dialect.think.aliases] if dialect.think is not None else []
    if len(found) > MOST and dialect.block is not None:
        # Where the merge stands inside the block, its tag is nearly always met first.
        found.remove(dialect.block.close)
        soft.append(dialect.block.close)
    return tuple(found), tuple(soft)
