"""Races inside a block: what a join policy is shown, and what becomes of its decision.

Functions over a :class:`~anabranch.decoding.machine.Machine`. The policies themselves are in
:mod:`anabranch.decoding.joins`; closing and joining are the rules of
:mod:`anabranch.decoding.forks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.decoding.events import BranchClosed, Decided, Wake
from anabranch.decoding.joins import BlockView, BranchView, Decision
from anabranch.decoding.state import BlockState, BranchState
from anabranch.records import JoinDecision

if TYPE_CHECKING:
    from anabranch.decoding.machine import Machine

#: Stands for the policy where a limit is named as the reason why a branch was cut.
LIMIT = "join_policy"


def ask(m: Machine, block: BlockState, ended: BranchState | None = None) -> None:
    """Ask the policy about a block, do what it says, and see when to ask again.

    Args:
        m: of the trajectory.
        block: one of its open blocks.
        ended: the branch that has just ended; None when time has passed, or tokens.
    """
    policy = m.setup.policy
    if block.deciding or not any(b.is_or and b.outcome is None for b in block.branches):
        return
    view = view_of(m, block, ended)
    decision = policy.decide(view)
    if decision is not None and decision.losers:
        _carry_out(m, block, decision)
        return
    due = policy.wake(view)
    if due is not None and due > view.seconds and due != block.due:
        block.due = due
        m.emit(Wake(block.started + due))


def view_of(m: Machine, block: BlockState, ended: BranchState | None = None) -> BlockView:
    """What a policy sees of a block now."""
    return BlockView(
        tuple(_branch_view(m, block, branch) for branch in block.branches),
        m.now - block.started,
        ended.number if ended else None,
        block.path,
    )


def score(m: Machine, branch: BranchState) -> float | None:
    """Mean log-prob of a branch's own sampled tokens, lost attempts left out."""
    total, count = 0.0, 0
    for number in branch.requests:
        request = m.record.requests[number]
        segment = m.record.segments[request.output]
        if request.finish == "error" or not segment.ids:
            continue
        if segment.logprobs is None:
            return None
        total += sum(segment.logprobs)
        count += len(segment.ids)
    return total / count if count else None


def _branch_view(m: Machine, block: BlockState, branch: BranchState) -> BranchView:
    ended = branch.ended if branch.ended is not None else m.now
    return BranchView(
        number=branch.number,
        is_or=branch.is_or,
        outcome=branch.outcome,
        text=branch.text,
        kind=branch.kind,
        title=branch.title,
        tokens=branch.line.spent,
        logprob=branch.logprob,
        seconds=ended - block.started,
        problem=m.setup.problem,
    )


def _carry_out(m: Machine, block: BlockState, decision: Decision) -> None:
    block.deciding = True
    block.decisions.append(
        JoinDecision(
            losers=decision.losers,
            winners=decision.winners,
            reason=decision.reason,
            keep=decision.keep,
        )
    )
    m.emit(Decided(block.path, decision.winners, decision.losers, decision.reason))
    losers = [b for b in block.branches if b.number in decision.losers and b.is_or]
    for branch in losers:
        if branch.outcome is not None:
            continue
        if decision.keep:
            m.cut_branch(block, branch, LIMIT)
        else:
            _drop(m, block, branch)
    block.deciding = False
    m.settle(block)


def _drop(m: Machine, block: BlockState, branch: BranchState) -> None:
    m.cancel_branch(block, branch)
    branch.outcome, branch.ended = "cancelled", m.now
    branch.body = m.record.force(m.setup.dialect.stub(branch.number, "cancelled"))
    tokens = branch.line.path - block.line.path
    m.emit(BranchClosed(block.path, branch.number, "cancelled", tokens))
