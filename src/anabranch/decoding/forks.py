"""The rules of fork and join: what a call's end means, and what becomes of malformed output.

Functions over a :class:`~anabranch.decoding.machine.Machine`; each malformed case has one recorded
outcome, and the line goes on towards an answer while tokens remain (SYSTEMS: stale outlines,
duplicate numbers, branches that never close, text that ends inside a branch, refused forks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.decoding import races
from anabranch.decoding.admission import admit, fork_cost, plan_tokens, pot_of, read_fork, share_of
from anabranch.decoding.constrained import keep_whole
from anabranch.decoding.events import BlockOpened, BranchClosed, Forced, Joined, LimitHit
from anabranch.decoding.state import BlockState, BranchState, Line, Live
from anabranch.dialects import PlanItem
from anabranch.records import BranchOutcome, RequestKind

if TYPE_CHECKING:
    from anabranch.decoding.machine import Machine


def completed(m: Machine, live: Live, output: int) -> None:
    """A call ended by itself, by its cap, or by a stop string."""
    if live.kind == "merge":
        _merged(m, live, output)
        return
    line, dialect = live.line, m.setup.dialect
    line.context.append(output)
    line.path += len(live.ids)
    line.own += len(live.ids)
    line.fresh += live.text
    if live.finish == "stop" and live.stop == dialect.fork_tag and _may_fork(m, live):
        return
    if line is not m.main:
        if live.finish == "stop" and live.ids and _ends_inner_part(m, live):
            m.resume(line)
        else:
            _branch_ended(m, live, output)
    elif live.finish == "stop" and live.ids:
        m.resume(line)
    elif live.finish == "length":
        keep_whole(m, line)
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
        _close(m, block, branch, "truncated", _body(line, branch, m))
    else:
        m.exhausted(line, limit)


def failed(m: Machine, live: Live, *, window: bool) -> None:
    """A call failed for good: a branch leaves a stub, a main line ends the trajectory."""
    if live.kind == "merge" and live.block is not None:
        _close_merge(m, live.block, "the merge failed")
    elif live.block is not None and live.branch is not None:
        stub = m.setup.dialect.stub(live.branch.number, "failed")
        _close(m, live.block, live.branch, "failed", m.record.force(stub))
    else:
        live.line.context.append(m.record.requests[live.request].output)
        m.finish("context_exhausted" if window else "failed")


# Forks -----------------------------------------------------------------------------------------


def _may_fork(m: Machine, live: Live) -> bool:
    """Handle a fork tag; False when the line has not been taken care of (a branch's own end)."""
    line = live.line
    items = read_fork(m, live)
    if not items:
        m.resume(line)
        return True
    admitted, limit = admit(m, line, items)
    if limit:
        rule = m.setup.limits.on_refused_fork
        m.note("fork_refused", f"{limit}: {len(admitted)} of {len(items)} branches start", live)
        m.emit(LimitHit(limit, rule))
        if rule == "stop" and line is m.main:
            keep_whole(m, line)
            m.finish("truncated")
            return True
        if m.setup.grammar is not None and (not admitted or rule == "sequential"):
            # No phase's grammar writes the branches of a block in one line: they are skipped.
            _open(m, live, items, set())
            return True
        if not admitted or rule == "sequential":
            m.resume(line)
            return True
    _open(m, live, items, {item.number for item in admitted})
    return True


def _open(m: Machine, live: Live, items: list[PlanItem], admitted: set[int]) -> None:
    line, dialect = live.line, m.setup.dialect
    line.blocks += 1
    path = (*line.block, line.branch, line.blocks) if line.branch is not None else (line.blocks,)
    m.force(line, dialect.fork_text)
    if dialect.plan is None and admitted:
        items = [item for item in items if item.number in admitted]
    block = BlockState(path, line, live.request, plan_tokens(m, live), [], list(line.context))
    block.started = m.now
    for item in items:
        header = m.record.force(dialect.branch_header(item.number, line.numbers))[0]
        own = Line(path, item.number, [*block.base, header], line.path, parent=line)
        is_or = item.kind in dialect.or_kinds
        block.branches.append(BranchState(item.number, item.kind, item.title, is_or, own, header))
    m.opened(block)
    m.emit(BlockOpened(path, tuple((item.number, item.kind, item.title) for item in items)))
    share = share_of(m, line, max(1, len(admitted)))
    pot = pot_of(m, line, items, max(1, len(admitted)))
    if pot is not None:
        line.charge(fork_cost(m, line, items))
    starting = [b for b in block.branches if b.number in admitted]
    for branch in block.branches:
        if branch not in starting:
            branch.outcome = "skipped"
            branch.body = m.record.force(dialect.stub(branch.number, "cancelled"))
    for branch in starting:
        branch.line.share, branch.line.pot = share, pot
        m.emit(Forced(path, branch.number, dialect.branch_header(branch.number, line.numbers)))
    for branch in starting:
        if branch.outcome is None:  # no branch before it, cut at once, has decided the block
            m.sample_branch(block, branch)
    m.settle(block)
    if not block.joining:
        races.ask(m, block)


# Branches --------------------------------------------------------------------------------------


def owner(m: Machine, line: Line) -> tuple[BlockState, BranchState]:
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


def _ends_inner_part(m: Machine, live: Live) -> bool:
    """Whether a branch's call stopped at a tag of a block that the branch writes out itself.

    So it does where a fork inside it was refused, or is too deep: the text goes on in one line.
    """
    dialect, line = m.setup.dialect, live.line
    if not dialect.nesting:
        return False
    branch = owner(m, line)[1]
    own = line.context[line.context.index(branch.header) + 1 :]
    text = m.record.generated(own)
    if live.cut_at is not None:
        return False
    if live.stop == dialect.branch_stop:
        return text.count(dialect.branch.open) >= text.count(dialect.branch.close)
    end = dialect.block or dialect.merge
    if end is None:
        return False
    begun, ended = text.count(dialect.block_begin), text.count(end.close)
    if live.stop == end.close:
        return begun >= ended
    merge = dialect.merge
    return merge is not None and live.stop == merge.open and begun > ended


def soft_stop(m: Machine, live: Live) -> str | None:
    """The stop string, of those not sent to the engine, at which a call has to end now."""
    for stop in live.soft:
        at = live.text.find(stop)
        if at < 0:
            continue
        line, dialect = live.line, m.setup.dialect
        branch = owner(m, line)[1]
        own = line.context[line.context.index(branch.header) + 1 :]
        text = m.record.generated(own) + live.text[: at + len(stop)]
        of_block = dialect.block is not None and stop == dialect.block.close
        if not of_block or text.count(dialect.block_begin) < text.count(stop):
            live.cut_at = at
            return stop
    return None


def _branch_ended(m: Machine, live: Live, output: int) -> None:
    line, dialect = live.line, m.setup.dialect
    block, branch = owner(m, line)
    if live.finish == "stop" and live.stop == dialect.branch_stop:
        at = line.context.index(branch.header)
        _close(m, block, branch, "closed", line.context[at + 1 :])
        return
    outcome: BranchOutcome = "truncated" if live.finish == "length" else "unclosed"
    if live.finish == "stop" and live.stop:
        m.note("missing_close", f"branch {branch.number} ran into {live.stop}", live)
        at = len(live.text) - len(live.stop) if live.cut_at is None else live.cut_at
        line.context[-1:] = m.record.force(live.text[:at])
    elif live.finish == "eos":
        m.note("missing_close", f"the text ended inside branch {branch.number}", live)
        line.context[-1:] = m.record.without_eos(output)
    else:
        keep_whole(m, line)
        m.note(f"limit:{live.limit}", f"branch {branch.number} was cut", live)
        m.emit(LimitHit(live.limit, f"branch {branch.number} cut"))
    _close(m, block, branch, outcome, _body(line, branch, m))


def _close(
    m: Machine, block: BlockState, branch: BranchState, outcome: BranchOutcome, body: list[int]
) -> None:
    branch.outcome, branch.body, branch.ended = outcome, body, m.now
    branch.text = "".join(m.record.segments[index].text for index in body)
    branch.logprob = races.score(m, branch)
    if branch.logprob is None and branch.is_or and m.setup.policy.needs_logprobs:
        m.note("no_logprobs", f"branch {branch.number} has no vote: the engine gave no log-probs")
    m.emit(BranchClosed(block.path, branch.number, outcome, branch.line.path - block.line.path))
    races.ask(m, block, branch)
    m.settle(block)


# Joins -----------------------------------------------------------------------------------------


def join_texts(m: Machine, block: BlockState) -> None:
    """Put the branches behind the fork, as text, and let the line go on or be merged."""
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
    keep_whole(m, block.line)
    _close_merge(m, block, "the merge did not close itself")


def _close_merge(m: Machine, block: BlockState, why: str) -> None:
    m.note("missing_close", why)
    m.force(block.line, m.setup.dialect.close_merge + m.setup.dialect.after_merge)
    m.joined(block)
    m.resume(block.line)


def _main_ended(m: Machine, line: Line) -> None:
    """The model ended its text; reasoning that is still open is closed and answered."""
    think = m.setup.dialect.think
    text = m.setup.prompt + m.record.generated(line.context)
    if think is not None and not line.answering and think.is_open_in(text):
        m.note("think_unclosed", f"the text ended before {think.close}")
        line.answering = m.setup.limits.answer_reserve > 0
        m.close_reasoning(line)
        m.resume(line)
        return
    m.finish("answered")
