"""Limits at their ends: forced answers in every dialect, prefill, stop strings."""

from __future__ import annotations

import pytest

from anabranch.decoding.state import Line
from anabranch.decoding.stops import MOST, stops
from anabranch.dialects import get_dialect

DIALECTS = ["threadweaver", "parason", "parallel-r1", "multiverse", "npr"]
PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"


@pytest.mark.parametrize("name", ["threadweaver", "parason", "multiverse"])
def test_a_budget_spent_in_reasoning_still_gets_an_answer(setup, play, name):
    # vllm#28266: all of the budget in the reasoning, no content, called a success.
    think = get_dialect(name).think
    made = setup(name, limits={"max_total_tokens": 60, "answer_reserve": 20})
    done = play(made, [think.open + "x" * 99, "\\boxed{3}"]).run()
    assert done.outcome == "answered" and done.text.endswith("\\boxed{3}")
    assert done.text.count(think.close) == 1 and done.sampled_tokens <= 60


def test_reasoning_closed_under_another_name_is_not_closed_again(setup, play):
    made = setup("multiverse", limits={"max_total_tokens": 60, "answer_reserve": 20})
    done = play(made, ["<think>x</think>" + "y" * 99, "\\boxed{3}"]).run()
    assert "</Think>" not in done.text and done.outcome == "answered"


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("depth", [1, 3])
def test_no_call_sends_more_stop_strings_than_the_api_takes(setup, name, depth):
    made = setup(name, limits={"max_depth": depth})
    hard, _ = stops(made, "branch", Line(block=(1,), branch=1))
    assert hard[0] == made.dialect.branch_stop and len(hard) <= MOST


def test_a_branch_that_leaves_its_block_is_stopped_by_a_soft_stop(setup, play):
    items = "<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n</Outline>"
    plan = f"<Think>\n<Parallel>\n<Goal>\n{items}\n</Goal>"
    made = setup("multiverse", limits={"max_depth": 2})
    left = "A</Parallel>and so on, never to end" * 9
    game = play(
        made, [plan, "</Think>\\boxed{3}"], {1: [left], 2: ["B\n</Path>"]}, ["c\n</Conclusion>"]
    )
    done = game.run()
    assert [b.outcome for b in done.blocks[0].branches] == ["unclosed", "closed"]
    assert done.outcome == "answered" and "and so on" not in done.text and game.cancelled


def test_prefill_is_kept_for_the_join_and_the_answer(setup, play):
    made = setup(limits={"max_prefill_tokens": 201, "answer_reserve": 20, "min_branch_tokens": 1})
    bodies = {1: ["A" * 500], 2: ["B" * 500]}
    done = play(made, [PLAN, "r</think>\\boxed{3}"], bodies).run()
    assert done.outcome == "answered" and "AAA</Thread>" in done.text and "BBB<" in done.text
    assert any(f.code == "limit:max_prefill_tokens" for f in done.findings)


def test_a_prompt_beyond_the_prefill_limit_ends_at_once(setup, play):
    game = play(setup(prompt="Q" * 20, limits={"max_prefill_tokens": 10}))
    done = game.run()
    assert done.outcome == "truncated" and not game.starts
