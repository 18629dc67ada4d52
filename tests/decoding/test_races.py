"""Join policies: what each decides, what the record and training see of it, how it is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.decoding import (
    Checked,
    Decided,
    FirstConclusive,
    Quorum,
    make_policy,
    trajectory_from_text,
)
from anabranch.decoding.judges import answer_in, normalised
from anabranch.decoding.remake import remake
from anabranch.errors import RecordError, UsageError
from anabranch.metrics import summarise, trajectory_metrics
from anabranch.records import Problem, Trajectory

TRIALS = "".join(f"<Trial>{n}:{t}</Trial>" for n, t in enumerate("abc", 1))
PLAN = f"<think>p<Parallel><Outlines>{TRIALS}</Outlines>"
END = "r</think>\\boxed{3}"
BODIES = {
    1: "x" * 60 + "\\boxed{7}</Thread>",
    2: "\\boxed{ 3 }</Thread>",
    3: "yyyyyyyyyy$\\boxed{3}$</Thread>",
}
STUB = "[cancelled]</Thread>"


def decoded(setup, play, policy, pace=0.0, bodies=BODIES, **changes):
    made = replace(setup(**changes), policy=make_policy(policy))
    game = play(made, [PLAN, END], {n: [text] for n, text in bodies.items()}, pace=pace)
    return game.run(), game, made


def bodies_of(done):
    inner = done.text.partition("</Outlines>")[2].partition("</Parallel>")[0]
    return [part.partition(":")[2] for part in inner.split("<Thread>")[1:]]


#: policy, seconds a chunk, outcomes by branch, winners.
RACES = [
    ("all", 0.0, "closed closed closed", ()),
    ("first_conclusive", 0.0, "cancelled closed cancelled", (2,)),
    ("first_conclusive:contains=$", 0.0, "cancelled closed closed", (3,)),
    ("first_conclusive:logprob=-0.6", 0.0, "cancelled closed cancelled", (2,)),
    ("first_conclusive:logprob=-0.4", 0.0, "closed closed closed", ()),
    ("quorum:2", 0.0, "cancelled closed closed", (2, 3)),
    ("quorum:3", 0.0, "closed closed closed", ()),
    ("confidence:0.3", 0.0, "cancelled closed closed", (2, 3)),
    ("confidence:0.2", 0.0, "cancelled closed cancelled", (2,)),
    ("confidence:0.5", 0.0, "closed closed closed", ()),
    ("deadline:21t", 0.0, "truncated closed cancelled", (2,)),
    ("deadline:40t", 0.0, "cancelled closed closed", (2, 3)),
    ("deadline:2t,after=first", 0.0, "cancelled closed cancelled", (2,)),
    ("deadline:25t,after=first", 0.0, "cancelled closed closed", (2,)),
    ("deadline:1s", 0.01, "cancelled closed closed", (2, 3)),
    ("deadline:0.1s", 0.01, "truncated truncated truncated", ()),
    ("deadline:0.1s,after=first", 0.01, "cancelled closed cancelled", (2,)),
]


@pytest.mark.parametrize(("policy", "pace", "outcomes", "winners"), RACES)
def test_what_a_policy_decides_is_done_and_recorded(setup, play, policy, pace, outcomes, winners):
    done, game, _ = decoded(setup, play, policy, pace)
    block = done.blocks[0]
    assert [b.outcome for b in block.branches] == outcomes.split(), block.decisions
    assert block.policy == policy and done.outcome == "answered"
    told = [event for event in game.events if isinstance(event, Decided)]
    assert len(told) == len(block.decisions)
    assert all(one.reason for one in block.decisions)
    assert {n for one in block.decisions for n in one.winners} == set(winners)
    for branch, body in zip(block.branches, bodies_of(done), strict=True):
        assert (body == STUB) == (branch.outcome == "cancelled")
        assert branch.outcome != "closed" or body == BODIES[branch.number]
    assert Trajectory.model_validate(done.to_json()) == done


@pytest.mark.parametrize(("policy", "pace"), [row[:2] for row in RACES])
def test_training_sees_what_the_engine_saw(setup, play, policy, pace):
    done, game, made = decoded(setup, play, policy, pace)
    sent = {start.request: start.call.ids for start in game.starts}
    for unit in done.units():
        assert unit.context == sent[unit.request]
    again = remake(done, made)
    assert [b.outcome for b in again.blocks[0].branches] == [
        b.outcome for b in done.blocks[0].branches
    ]
    assert again.text == done.text and list(again.units()) == list(done.units())


@pytest.mark.parametrize(
    "policy", ["all", "first_conclusive", "quorum:2", "deadline:24t", "deadline:25t,after=first"]
)
def test_the_same_race_comes_out_of_a_text(setup, play, policy):
    done, _, made = decoded(setup, play, policy)
    threads = "".join(f"<Thread>{n}:{body}" for n, body in BODIES.items())
    again = trajectory_from_text(f"{PLAN}{threads}</Parallel>{END}", made)
    assert again.text == done.text
    assert [b.outcome for b in again.blocks[0].branches] == [
        b.outcome for b in done.blocks[0].branches
    ]


def test_a_text_race_by_the_clock(setup):
    made = replace(setup(), policy=make_policy("deadline:4s"))
    threads = "".join(f"<Thread>{n}:{body}" for n, body in BODIES.items())
    done = trajectory_from_text(f"{PLAN}{threads}</Parallel>{END}", made, pace=0.1)
    assert [b.outcome for b in done.blocks[0].branches] == ["cancelled", "closed", "closed"]


def test_a_record_that_was_tampered_with_is_refused(setup, play):
    done, _, made = decoded(setup, play, "first_conclusive")
    blocks = [done.blocks[0].model_copy(update={"decisions": ()})]
    with pytest.raises(RecordError, match="its record"):
        remake(done.model_copy(update={"blocks": blocks}), made)


def test_subtasks_are_waited_for_under_every_policy(setup, play):
    for policy in ("first_conclusive", "quorum:2", "confidence:0.1", "deadline:1t"):
        made = replace(setup(), policy=make_policy(policy))
        plan = PLAN.replace("Trial", "Subtask")
        done = play(made, [plan, END], {n: [text] for n, text in BODIES.items()}).run()
        assert {b.outcome for b in done.blocks[0].branches} == {"closed"}


def test_a_checker_judges_with_the_problem(setup, play):
    problem = Problem(id="p", problem="1+2?", answer="3")
    check = Checked(lambda asked, text: asked.answer in text)
    made = replace(setup(problem=problem), policy=FirstConclusive(check))
    bodies = {1: ["7</Thread>"], 2: ["is 3</Thread>"], 3: ["x" * 50]}
    done = play(made, [PLAN, END], bodies).run()
    assert [b.outcome for b in done.blocks[0].branches] == ["closed", "closed", "cancelled"]


def test_answers_are_compared_by_a_function_of_ones_own(setup, play):
    made = replace(setup(), policy=Quorum(2, lambda branch: str(len(branch.text) > 30)))
    done = play(made, [PLAN, END], {n: [text] for n, text in BODIES.items()}).run()
    assert done.blocks[0].decisions[0].winners == (2, 3) or done.blocks[0].decisions == ()


def test_what_losers_cost_is_counted(setup, play):
    done, _, _ = decoded(setup, play, "first_conclusive")
    figures = trajectory_metrics(done)
    lost = [r for r in done.requests if r.finish == "cancelled"]
    assert figures.loser_tokens == sum(len(done.segments[r.output]) for r in lost) > 0
    summary = summarise([figures])
    assert summary.loser_tokens == figures.loser_tokens
    assert summary.loser_share == figures.loser_tokens / done.sampled_tokens
    waited, _, _ = decoded(setup, play, "all")
    assert trajectory_metrics(waited).loser_tokens == 0


def test_log_probs_are_asked_for_where_they_decide(setup, play):
    with pytest.raises(UsageError, match="needs log-probs"):
        play(replace(setup(logprobs=False), policy=make_policy("confidence:0.8"))).run()


@pytest.mark.parametrize(("policy", "message"), [
    ("best", "unknown join policy 'best': use one of all, first_conclusive"),
    ("all:2", "takes no parameter"),
    ("quorum", "from 2 on, as quorum:2"),
    ("quorum:1", "from 2 on"),
    ("quorum:2.5", "from 2 on"),
    ("quorum:nan", "from 2 on"),
    ("confidence:1.5", "between 0 and 1"),
    ("deadline:5", "deadline:5s or deadline:200t"),
    ("deadline:0s", "above 0"),
    ("deadline:1.5t", "deadline:200t"),
    ("deadline:5s,after=last", "use after=first"),
    ("first_conclusive:", "nothing follows the colon"),
    ("first_conclusive:contains=", "contains=TEXT or logprob=NUMBER"),
    ("first_conclusive:logprob=1", "a mean log-prob"),
])  # fmt: skip
def test_a_wrong_name_is_one_clear_error(policy, message):
    with pytest.raises(UsageError, match=message):
        make_policy(policy)


@pytest.mark.parametrize("policy", [row[0] for row in RACES])
def test_a_policy_s_name_makes_it_again(policy):
    assert make_policy(policy).name == policy


@pytest.mark.parametrize(("text", "answer"), [
    ("a \\boxed{1} b \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
    ("\\boxed{\\frac{1}{2}", None),
    ("Final Answer: 12\nmore", "12"),
    ("none", None),
])  # fmt: skip
def test_answers_in_texts(text, answer):
    assert answer_in(text) == answer


def test_answers_are_normalised():
    assert normalised("$ \\left( 1,\\, 2 \\right). $") == normalised("(1,2)")
