"""What a fork asks for, and how much of it may start: the plan, the limits, the shares.

Nothing is opened here; that is done in :mod:`anabranch.decoding.forks`.
"""

from __future__ import annotations

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
    while count and (share := share_of(m, line, count)) is not None:
        if share >= limits.min_branch_tokens:
            break
        count, limit = count - 1, "max_total_tokens"
    return items[:count], limit


def share_of(m: Machine, line: Line, count: int) -> int | None:
    """What each of ``count`` new branches may sample; None where nothing limits the total.

    A branch hands out what is left of its own share, and keeps an equal part to go on with.
    """
    if line.share is None:
        return m.budget.shares(count)
    return max(0, line.share - line.spent) // (count + 1)


def plan_tokens(m: Machine, live: Live) -> int:
    """Sampled tokens of the opening call that lie inside the block."""
    at = live.text.rfind(m.setup.dialect.block_begin)
    if at < 0:
        return len(live.ids)
    return m.record.tokens_from(m.record.requests[live.request].output, at)
