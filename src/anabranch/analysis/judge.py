"""Steps of a sequential trace by a model behind an endpoint, with the questions of curation."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.analysis.structure import Kind, Step, Structure
from anabranch.annotation import Annotator
from anabranch.annotation import steps as asked
from anabranch.annotation.groups import Grouping, ask_for_groups
from anabranch.annotation.lines import LINE_END, split_lines
from anabranch.annotation.traces import read_trace


async def judge(
    problem: str, text: str, annotator: Annotator, line_end: str = LINE_END
) -> Structure:
    """The structure of a trace as a model sees it; the answer behind the reasoning is left out.

    A trace of one line is one step, and nobody is asked.

    Args:
        problem: what the trace is about, "" where it is not known.
        text: the trace.
        annotator: the model.
        line_end: as the pattern of :func:`anabranch.annotation.lines.split_lines`; steps begin and
            end at lines.

    Raises:
        AskFailed: no usable answer came.
        BudgetSpent, EngineError: as :meth:`anabranch.annotation.Annotator.ask`.
    """
    trace = read_trace(text)
    lines = split_lines(trace.thought, line_end)
    if not trace.thought.strip():
        return Structure(text, ())
    if len(lines) < 2:
        return Structure(text, (Step(trace.start, trace.start + len(trace.thought), "serial"),))
    found = await annotator.ask(asked.ask_for_steps(problem, lines))
    grouping = Grouping({}, ())
    if len(found) > 1:
        grouping = await annotator.ask(ask_for_groups(problem, lines, found))
    ends = [0, *lines.ends()]
    places = [(trace.start + ends[s.first - 1], trace.start + ends[s.last]) for s in found]
    return Structure(text, _leaves(found, places, grouping))


def _leaves(
    found: Sequence[asked.Step], places: Sequence[tuple[int, int]], grouping: Grouping
) -> tuple[Step, ...]:
    """Steps without sub-steps, each with the kind of its group or of the group of its parent."""
    parents = {step.parent for step in found}
    leaves = [n for n, step in enumerate(found) if step.number not in parents]
    at = {found[n].number: place for place, n in enumerate(leaves)}
    kinds: dict[str, Kind] = {one: g.kind for g in grouping.groups for one in g.steps}
    made = []
    for n in leaves:
        step = found[n]
        kind: Kind = kinds.get(step.number) or kinds.get(step.parent) or "serial"
        wanted = [*grouping.needs.get(step.number, ()), *grouping.needs.get(step.parent, ())]
        # A step with parts is done when all of them are.
        needs = {
            at[leaf] for one in wanted for leaf in at if leaf == one or leaf.startswith(f"{one}.")
        }
        made.append(Step(*places[n], kind, tuple(sorted(x for x in needs if x < at[step.number]))))
    return tuple(made)
