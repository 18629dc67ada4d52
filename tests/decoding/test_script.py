"""Texts become trajectories by running the machine: what comes out is what decoding records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from anabranch.decoding import Decision, FirstConclusive, JoinPolicy, OnText, trajectory_from_text
from anabranch.errors import DialectError

AND = (
    "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
    "<Thread>1:A</Thread><Thread>2:BB</Thread></Parallel>q"
    "<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask><Subtask>3:c</Subtask>"
    "</Outlines><Thread>1:A</Thread><Thread>2:B</Thread><Thread>3:C</Thread></Parallel>"
    "r</think>\\boxed{3}"
)
R1 = (
    "x\n<Parallel>\n<Path>\na\n</Path>\n<Path>\nb\n</Path>\n<Path>\nc\n</Path>\n</Parallel>\n"
    "<Summary>\ns\n</Summary>\ny\n<Parallel>\n<Path>\na\n</Path>\n<Path>\nb\n</Path>\n</Parallel>\n"
    "<Summary>\nt\n</Summary>\nFinal Answer: 3"
)


@pytest.mark.parametrize(("dialect", "text"), [("parason:compact", AND), ("parallel-r1", R1)])
def test_the_text_comes_back_and_the_runtime_s_part_is_forced(setup, dialect, text):
    done = trajectory_from_text(text, setup(dialect))
    assert done.text == text and done.outcome == "answered" and not done.findings
    assert done.ids[-1] == 0, "the end of text is sampled"
    sampled = "".join(s.text for s in done.segments if s.origin == "sampled")
    header = setup(dialect).dialect.branch.open
    assert header not in sampled and len(done.blocks) == 2


def test_widths_of_a_dialect_without_a_plan_follow_the_text(setup):
    done = trajectory_from_text(R1, setup("parallel-r1"))
    assert [len(b.branches) for b in done.blocks] == [3, 2]


def test_a_race_in_lockstep_cancels_what_had_not_finished(setup):
    text = (
        "<think><Parallel><Outlines><Trial>1:a</Trial><Trial>2:b</Trial></Outlines>"
        "<Thread>1:aaaaaaaaaaaaaaaaaaaa</Thread><Thread>2:yes</Thread></Parallel></think>!"
    )
    made = replace(setup(), policy=FirstConclusive(OnText(lambda text: "yes" in text)))
    done = trajectory_from_text(text, made)
    assert "<Thread>1:[cancelled]</Thread><Thread>2:yes</Thread>" in done.text
    lost = next(r for r in done.requests if r.finish == "cancelled")
    assert done.segments[lost.output].text == "aaaaaaaaaaaaa"[: len("yes</Thread>")]


@dataclass(frozen=True)
class Chosen(JoinPolicy):
    """Cancels the named branches once any other has closed."""

    numbers: frozenset[int]

    def decide(self, block):
        if block.ended is None or block.ended in self.numbers:
            return None
        return Decision(tuple(n for n in block.running() if n in self.numbers), (block.ended,))


def test_any_set_of_siblings_can_be_cancelled(setup):
    made = replace(setup(), policy=Chosen(frozenset({1, 3})))
    text = AND[AND.index("q<Parallel>") + 1 :].replace("Subtask", "Trial")
    done = trajectory_from_text("<think>" + text, made, first=2)
    assert [b.outcome for b in done.blocks[0].branches] == ["cancelled", "closed", "cancelled"]
    assert "<Thread>1:[cancelled]</Thread><Thread>2:B</Thread><Thread>3:[cancelled]" in done.text


@pytest.mark.parametrize(
    "text",
    [
        AND.replace("<Thread>1:A", "<Thread> 1:A", 1),
        AND.replace("</Thread></Parallel>", "</Thread> </Parallel>", 1),
        AND.replace("BB</Thread>", "BB", 1),
    ],
)
def test_a_text_that_is_not_canonical_names_the_place(setup, text):
    with pytest.raises(DialectError, match=r"character \d+"):
        trajectory_from_text(text, setup())
