"""What a fork asks for, and how much of it may start: the plan, the limits, the shares.

Nothing is opened here; that is done in :mod:`anabranch.decoding.forks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.decoding.state import Line, Live
from anabranch.dialects import PlanItem, read_plan

if TYPE_CHECKING:
    from anabranch.decoding.machine import Machine


def read_fork(m: Machine, live: Live) -> list[PlanItem]:
    """The branches asked for, from the text since the last fork of this line alone."""
    dialect, line = m.setup.dialect, live.line
    if dialect.plan is None:
        width = m.setup.width() if callable(m.setup.width) else m.setup.width
        return [
            PlanItem(number=n, kind=dialect.branch_kind, title="")
            for n in range(1, (width or dialect.default_width) + 1)
        ]
    opener = dialect.block_begin
    _, found, text = line.fresh.rpartition(opener)
    if not found:
        m.note("stale_outline", f"{dialect.fork_tag} without a new {opener}: no fork", live)
        return []
    items, diagnostics = read_plan(text if dialect.block else found + text, dialect, line.numbers)
    for diagnostic in diagnostics:
        m.note(diagnostic.code, diagnostic.message, live)
    return items


def admit(m: Machine, line: Line, items: list[PlanItem]) -> tuple[list[PlanItem], str]:
    """The branches that may start, and the limit that refused the others ("" for none)."""
    limits = m.setup.limits
    opened = len(m.record.blocks) + len(m.open_blocks)
    if limits.max_blocks is not None and opened >= limits.max_blocks:
        return [], "max_blocks"
    if line.depth >= limits.max_depth:
        return [], "max_depth"
    count, limit = len(items), ""
    if count > limits.max_branches:
        count, limit = limits.max_branches, "max_branches"
    while count and (short := _short_of(m, line, items, count)):
        count, limit = count - 1, short
    return items[:count], limit


def _short_of(m: Machine, line: Line, items: Sequence[PlanItem], count: int) -> str:
    """The limit that leaves ``count`` branches too little to start with; "" for none."""
    least = m.setup.limits.min_branch_tokens
    share = share_of(m, line, count)
    if share is not None and share < least:
        return "max_total_tokens"
    pot = pot_of(m, line, items, count)
    if pot is not None and pot // (line.depth + 1) < least:
        return "max_prefill_tokens"
    return ""


def share_of(m: Machine, line: Line, count: int) -> int | None:
    """What each of ``count`` new branches may sample; None where nothing limits the total.

    A branch hands out what is left of its own share, and keeps an equal part to go on with.
    """
    if line.share is None:
        return m.budget.shares(count)
    return max(0, line.share - line.spent) // (count + 1)


def pot_of(m: Machine, line: Line, items: Sequence[PlanItem], count: int) -> int | None:
    """Prefill tokens that each of ``count`` new branches may cause; None where nothing limits them.

    The first call of a branch computes its header; every join around it computes its whole text
    again (the first branch's excepted, which stands in the cache: that is not counted on).
    """
    prefill = m.calls.prefill
    if prefill is None:
        return None
    if line is m.main:
        return max(0, prefill.left - fork_cost(m, line, items)) // count
    left = (line.pot or 0) - line.charged
    return max(0, left - fork_cost(m, line, items)) // (count + 1)


def fork_cost(m: Machine, line: Line, items: Sequence[PlanItem]) -> int:
    """Prefill tokens of all that the runtime may write into a block, up to the line's end."""
    dialect = m.setup.dialect
    texts = [dialect.fork_text, dialect.join_text(), dialect.close_merge, dialect.after_merge]
    for item in items:
        texts += [dialect.branch_header(item.number, line.numbers), dialect.branch_separator]
        texts += [dialect.stub(item.number, "cancelled"), dialect.close_branch]
    tokens = sum(len(m.setup.tokenizer.encode(text)) for text in texts if text)
    end = dialect.close_reasoning if line is m.main else ""
    # A branch of the block computes its header at the fork, and every join around it again.
    return tokens * (line.depth + 2) + (len(m.setup.tokenizer.encode(end)) if end else 0)


def plan_tokens(m: Machine, live: Live) -> int:
    """Sampled tokens of the opening call that lie inside the block."""
    at = live.text.rfind(m.setup.dialect.block_begin)
    if at < 0:
        return len(live.ids)
    return m.record.tokens_from(m.record.requests[live.request].output, at)
