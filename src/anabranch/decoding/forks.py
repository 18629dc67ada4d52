"""The rules of fork and join: what a call's end means, and what becomes of malformed output.

Functions over a :class:`~anabranch.decoding.machine.Machine`; each malformed case has one recorded
outcome, and the line goes on towards an answer while tokens remain (SYSTEMS: stale outlines,
duplicate numbers, branches that never close, text that ends inside a branch, refused forks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.decoding.events import BlockOpened, BranchClosed, Forced, Joined, LimitHit
from anabranch.decoding.joins import BranchView
from anabranch.decoding.state import BlockState, BranchState, Line, Live
from anabranch.dialects import PlanItem, read_plan
from anabranch.records import BranchOutcome, RequestKind

if TYPE_CHECKING:
    from anabranch.decoding.machine import Machine
    from anabranch.decoding.setup import Setup


def stops(setup: Setup, kind: RequestKind, line: Line) -> tuple[str, ...]:
    """The strings that end a call of this kind."""
    dialect = setup.dialect
    if kind == "merge":
        return (dialect.merge_stop,) if dialect.merge_stop else ()
    forking = setup.mode == "parallel" and not line.answering
    if kind == "main":
        return (dialect.fork_tag,) if forking else ()
    # A branch that closes the block or the reasoning has left its place: it is stopped there.
    found = [dialect.branch_stop]
    if dialect.nesting and line.depth < setup.limits.max_depth:
        found.append(dialect.fork_tag)
    if dialect.block is not None:
        found.append(dialect.block.close)
    if dialect.think is not None:
        found.append(dialect.think.close)
    return tuple(found)


def completed(m: Machine, live: Live, output: int) -> None:
    """A call ended by itself, by its cap, or by a stop string."""
    if live.kind == "merge":
        _merged(m, live, output)
        return
    line, dialect = live.line, m.setup.dialect
    line.context.append(output)
    line.path += len(live.ids)
    line.fresh += live.text
    if live.finish == "stop" and live.stop == dialect.fork_tag and _may_fork(m, live):
        return
    if live.branch is not None or line is not m.main:
        _branch_ended(m, live, output)
    elif live.finish == "stop" and live.ids:
        m.resume(line)
    elif live.finish == "length":
        m.exhausted(line, live.limit)
    else:
        _main_ended(m, line)


def no_room(
    m: Machine,
    kind: RequestKind,
    line: Line,
    block: BlockState | None,
    branch: BranchState | None,
    limit: str,
) -> None:
    """A call that no limit leaves room for."""
    if kind == "merge" and block is not None:
        _close_merge(m, block, f"no room for the merge ({limit})")
    elif branch is not None and block is not None:
        _close(m, block, branch, "truncated", m.record.force(m.setup.dialect.close_branch))
    elif line is not m.main:
        owner, hanging = _owner(m, line)
        _close(m, owner, hanging, "truncated", _body(line, hanging, m))
    else:
        m.exhausted(line, limit)


def failed(m: Machine, live: Live, *, window: bool) -> None:
    """A call failed for good: a branch leaves a stub, a main line ends the trajectory."""
    if live.kind == "merge" and live.block is not None:
        _close_merge(m, live.block, "the merge failed")
    elif live.block is not None and live.branch is not None:
        stub = m.setup.dialect.stub(live.branch.number, "failed")
        _close(m, live.block, live.branch, "failed", m.record.force(stub))
    elif live.line is not m.main:
        owner, hanging = _owner(m, live.line)
        stub = m.setup.dialect.stub(hanging.number, "failed")
        _close(m, owner, hanging, "failed", m.record.force(stub))
    else:
        live.line.context.append(m.record.requests[live.request].output)
        m.finish("context_exhausted" if window else "failed")


# Forks -----------------------------------------------------------------------------------------


def _may_fork(m: Machine, live: Live) -> bool:
    """Handle a fork tag; False when the line has not been taken care of (a branch's own end)."""
    line = live.line
    items = _plan(m, live)
    if not items:
        m.resume(line)
        return True
    admitted, limit = _admit(m, line, items)
    if limit:
        rule = m.setup.limits.on_refused_fork
        m.note("fork_refused", f"{limit}: {len(admitted)} of {len(items)} branches start", live)
        m.emit(LimitHit(limit, rule))
        if rule == "stop" and line is m.main:
            m.finish("truncated")
            return True
        if not admitted or rule == "sequential":
            m.resume(line)
            return True
    _open(m, live, items, {item.number for item in admitted})
    return True


def _plan(m: Machine, live: Live) -> list[PlanItem]:
    """The branches asked for, from the text since the last fork of this line alone."""
    dialect, line = m.setup.dialect, live.line
    if dialect.plan is None:
        width = m.setup.width() if callable(m.setup.width) else m.setup.width
        return [
            PlanItem(number=n, kind=dialect.branch_kind, title="")
            for n in range(1, (width or dialect.default_width) + 1)
        ]
    opener = dialect.block.open if dialect.block else dialect.plan.tag.open
    _, found, text = line.fresh.rpartition(opener)
    if not found:
        m.note("stale_outline", f"{dialect.fork_tag} without a new {opener}: no fork", live)
        return []
    items, diagnostics = read_plan(text if dialect.block else found + text, dialect)
    for diagnostic in diagnostics:
        m.note(diagnostic.code, diagnostic.message, live)
    return items


def _admit(m: Machine, line: Line, items: list[PlanItem]) -> tuple[list[PlanItem], str]:
    """The branches that may start, and the limit that refused the others ("" for none)."""
    limits = m.setup.limits
    if limits.max_blocks is not None and line.blocks >= limits.max_blocks:
        return [], "max_blocks"
    if line.depth >= limits.max_depth:
        return [], "max_depth"
    count, limit = len(items), ""
    if count > limits.max_branches:
        count, limit = limits.max_branches, "max_branches"
    share = m.budget.shares(count)
    if share is not None and share < limits.min_branch_tokens:
        free = share * count
        count, limit = min(count, free // limits.min_branch_tokens), "max_total_tokens"
    return items[:count], limit


def _open(m: Machine, live: Live, items: list[PlanItem], admitted: set[int]) -> None:
    line, dialect = live.line, m.setup.dialect
    line.blocks += 1
    path = (*line.block, line.branch, line.blocks) if line.branch is not None else (line.blocks,)
    m.force(line, dialect.fork_text)
    if dialect.plan is None:
        items = [item for item in items if item.number in admitted]
    block = BlockState(path, line, live.request, _plan_tokens(m, live), [], list(line.context))
    for item in items:
        header = m.record.force(dialect.branch_header(item.number))[0]
        own = Line(path, item.number, [*block.base, header], line.path)
        is_or = item.kind in dialect.or_kinds
        block.branches.append(BranchState(item.number, item.kind, item.title, is_or, own, header))
    m.opened(block)
    m.emit(BlockOpened(path, tuple((item.number, item.kind, item.title) for item in items)))
    share = m.budget.shares(len(admitted))
    starting = [b for b in block.branches if b.number in admitted]
    for branch in block.branches:
        if branch not in starting:
            branch.outcome = "skipped"
            branch.body = m.record.force(dialect.stub(branch.number, "cancelled"))
    for branch in starting:
        branch.share = share
        m.emit(Forced(path, branch.number, dialect.branch_header(branch.number)))
    for branch in starting:
        m.sample_branch(block, branch)


def _plan_tokens(m: Machine, live: Live) -> int:
    """Sampled tokens of the opening call that lie inside the block."""
    dialect = m.setup.dialect
    opener = dialect.block.open if dialect.block else dialect.fork_tag
    at = live.text.rfind(opener)
    if at < 0:
        return len(live.ids)
    return m.record.tokens_from(m.record.requests[live.request].output, at)


# Branches --------------------------------------------------------------------------------------


def _owner(m: Machine, line: Line) -> tuple[BlockState, BranchState]:
    """The block and branch that a branch's line belongs to."""
    for block in m.open_blocks:
        for branch in block.branches:
            if branch.line is line:
                return block, branch
    raise AssertionError("a branch line without its block")


def _body(line: Line, branch: BranchState, m: Machine) -> list[int]:
    """What a branch has written behind its header, closed by force."""
    at = line.context.index(branch.header)
    return [*line.context[at + 1 :], *m.record.force(m.setup.dialect.close_branch)]


def _branch_ended(m: Machine, live: Live, output: int) -> None:
    line, dialect = live.line, m.setup.dialect
    block, branch = _owner(m, line)
    if live.finish == "stop" and live.stop == dialect.branch_stop:
        at = line.context.index(branch.header)
        _close(m, block, branch, "closed", line.context[at + 1 :])
        return
    outcome: BranchOutcome = "truncated" if live.finish == "length" else "unclosed"
    if live.finish == "stop" and live.stop:
        m.note("missing_close", f"branch {branch.number} ran into {live.stop}", live)
        kept = live.text.removesuffix(live.stop)
        line.context[-1:] = m.record.force(kept)
    elif live.finish == "eos":
        m.note("missing_close", f"the text ended inside branch {branch.number}", live)
        line.context[-1:] = m.record.without_eos(output)
    else:
        m.note(f"limit:{live.limit}", f"branch {branch.number} was cut", live)
        m.emit(LimitHit(live.limit, f"branch {branch.number} cut"))
    _close(m, block, branch, outcome, _body(line, branch, m))


def _close(
    m: Machine, block: BlockState, branch: BranchState, outcome: BranchOutcome, body: list[int]
) -> None:
    branch.outcome, branch.body = outcome, body
    branch.text = "".join(m.record.segments[index].text for index in body)
    m.emit(BranchClosed(block.path, branch.number, outcome, branch.line.path - block.line.path))
    if outcome == "closed":
        _cancel_losers(m, block, branch)
    if all(b.outcome is not None for b in block.branches):
        _join(m, block)


def _cancel_losers(m: Machine, block: BlockState, winner: BranchState) -> None:
    views = [BranchView(b.number, b.is_or, b.outcome is not None, b.text) for b in block.branches]
    losers = set(m.setup.policy.losers(views, winner.number))
    for branch in block.branches:
        if branch.number in losers and branch.outcome is None:
            m.cancel_branch(branch)
            branch.outcome = "cancelled"
            branch.body = m.record.force(m.setup.dialect.stub(branch.number, "cancelled"))
            tokens = branch.line.path - block.line.path
            m.emit(BranchClosed(block.path, branch.number, "cancelled", tokens))


# Joins -----------------------------------------------------------------------------------------


def _join(m: Machine, block: BlockState) -> None:
    dialect, line = m.setup.dialect, block.line
    context = list(block.base)
    separator = m.record.force(dialect.branch_separator)
    for place, branch in enumerate(block.branches):
        context += separator if place else []
        context += [branch.header, *branch.body]
    context += m.record.force(dialect.join_text())
    line.context = context
    line.path = max([line.path, *(b.line.path for b in block.branches)])
    line.fresh = ""
    m.emit(Joined(block.path, m.record.generated(context[len(block.base) :])))
    if dialect.merge_stop:
        m.sample_merge(block)
    else:
        m.joined(block)
        m.resume(line)


def _merged(m: Machine, live: Live, output: int) -> None:
    block = live.block
    assert block is not None
    block.merge = live.request
    block.line.context.append(output)
    block.line.path += len(live.ids)
    if live.finish == "stop" and live.stop == m.setup.dialect.merge_stop:
        m.force(block.line, m.setup.dialect.after_merge)
        m.joined(block)
        m.resume(block.line)
        return
    block.line.context[-1:] = m.record.without_eos(output)
    _close_merge(m, block, "the merge did not close itself")


def _close_merge(m: Machine, block: BlockState, why: str) -> None:
    m.note("missing_close", why)
    m.force(block.line, m.setup.dialect.close_merge + m.setup.dialect.after_merge)
    m.joined(block)
    m.resume(block.line)


def _main_ended(m: Machine, line: Line) -> None:
    """The model ended its text; reasoning that is still open is closed and answered."""
    think = m.setup.dialect.think
    if think is not None and not line.answering:
        text = m.setup.prompt + m.record.generated(line.context)
        if text.rfind(think.open) > text.rfind(think.close):
            m.note("think_unclosed", f"the text ended before {think.close}")
            line.answering = m.setup.limits.answer_reserve > 0
            m.close_reasoning(line)
            m.resume(line)
            return
    m.finish("answered")
