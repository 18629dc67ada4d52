"""The machine's rules, one table row a case. A token is a character here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.decoding import BlockOpened, BranchClosed, FirstConclusive, Joined, LimitHit, OnText
from anabranch.dialects import get_dialect, parse
from anabranch.engines import Chunk
from anabranch.errors import ContextWindowError, EngineError

PLAN = "<think>p<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
TRIALS = PLAN.replace("Subtask", "Trial")
END = "r</think>\\boxed{3}"
JOINED = PLAN + "<Thread>1:A</Thread><Thread>2:BB</Thread></Parallel>" + END


def codes(trajectory):
    return [finding.code for finding in trajectory.findings]


def test_a_block_is_forked_joined_and_answered(setup, play):
    game = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["BB</Thread>"]})
    done = game.run()
    assert done.outcome == "answered"
    assert done.text == JOINED
    assert parse(done.text, get_dialect("parason")).well_formed
    assert [r.kind for r in done.requests] == ["main", "branch", "branch", "main"]
    assert [b.outcome for b in done.blocks[0].branches] == ["closed", "closed"]
    assert done.blocks[0].plan_tokens == len(PLAN) - len("<think>p")
    assert done.findings == []


def test_a_branch_sees_its_own_header_and_no_sibling(setup, play):
    game = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["BB</Thread>"]})
    done = game.run()
    contexts = ["".join(done.segments[i].text for i in r.context) for r in done.requests]
    assert contexts[1] == "Q" + PLAN + "<Thread>1:"
    assert contexts[2] == "Q" + PLAN + "<Thread>2:"
    assert contexts[3] == "Q" + JOINED.removesuffix(END)
    for start, context in zip(game.starts, contexts, strict=True):
        assert "".join(map(chr, start.call.ids)) == context


def test_only_what_the_model_wrote_is_sampled(setup, play):
    done = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["BB</Thread>"]}).run()
    sampled = [s for s in done.segments if s.origin == "sampled"]
    assert [s.text for s in sampled] == [PLAN, "A</Thread>", "BB</Thread>", END]
    assert all(len(s.logprobs) == len(s.ids) for s in sampled)
    forced = "".join(s.text for s in done.segments if s.origin == "forced")
    assert forced == "<Thread>1:<Thread>2:</Parallel>"
    assert done.sampled_tokens == sum(len(s.ids) for s in sampled)


def test_seeds_differ_and_are_reproducible(setup, play):
    def seeds():
        game = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["BB</Thread>"]})
        game.run()
        return [start.call.seed for start in game.starts]

    assert seeds() == seeds()
    assert len(set(seeds())) == 4


def test_events_tell_the_story(setup, play):
    game = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["BB</Thread>"]})
    game.run()
    opened = next(e for e in game.events if isinstance(e, BlockOpened))
    assert opened.plan == ((1, "subtask", "a"), (2, "subtask", "b"))
    closed = [(e.branch, e.outcome) for e in game.events if isinstance(e, BranchClosed)]
    assert closed == [(1, "closed"), (2, "closed")]
    joined = next(e for e in game.events if isinstance(e, Joined))
    assert joined.text == "<Thread>1:A</Thread><Thread>2:BB</Thread></Parallel>"


def test_sequential_mode_never_stops_at_a_fork(setup, play):
    game = play(setup(mode="sequential"), [JOINED])
    done = game.run()
    assert done.text == JOINED and done.blocks == [] and game.starts[0].call.stop == ()


def test_parallel_r1_opens_its_width_and_asks_for_a_summary(setup, play):
    main = ["Let me see.\n\n<Parallel>", "\nFinal Answer: 3"]
    paths = {1: ["one\n</Path>"], 2: ["two\n</Path>"]}
    done = play(setup("parallel-r1"), main, paths, ["both\n</Summary>"]).run()
    assert done.text == (
        "Let me see.\n\n<Parallel>\n<Path>\none\n</Path>\n<Path>\ntwo\n</Path>\n</Parallel>\n"
        "<Summary>\nboth\n</Summary>\nFinal Answer: 3"
    )
    assert parse(done.text, get_dialect("parallel-r1")).well_formed
    assert [r.kind for r in done.requests] == ["main", "branch", "branch", "merge", "main"]
    assert done.blocks[0].merge == 3


def test_a_merge_that_does_not_close_is_closed(setup, play):
    main, paths = ["<Parallel>", "\nFinal Answer: 3"], {1: ["a\n</Path>"], 2: ["b\n</Path>"]}
    done = play(setup("parallel-r1"), main, paths, ["both"]).run()
    assert "missing_close" in codes(done) and "both\n</Summary>\nFinal" in done.text
    assert done.outcome == "answered"


# Malformed output: each case has one recorded outcome, and the answer is reached -----------------


@pytest.mark.parametrize(
    ("plan", "code", "numbers"),
    [
        (PLAN.replace("2:b", "1:b"), "duplicate_number", [1]),
        (PLAN.replace("2:b", "4:b"), "number_gap", [1, 4]),
        (PLAN.replace("<Subtask>2:b</Subtask>", ""), "one_branch", [1]),
    ],
)
def test_a_plan_with_a_fault_forks_what_it_names(setup, play, plan, code, numbers):
    branches = {number: ["x</Thread>"] for number in numbers}
    done = play(setup(), [plan, END], branches).run()
    assert code in codes(done)
    assert [b.number for b in done.blocks[0].branches] == numbers
    assert done.outcome == "answered" and done.text.endswith(END)


def test_a_stale_plan_is_not_used_again(setup, play):
    game = play(
        setup(), [PLAN, "and again</Outlines>", END], {1: ["A</Thread>"], 2: ["B</Thread>"]}
    )
    done = game.run()
    assert len(done.blocks) == 1 and "stale_outline" in codes(done)
    assert done.outcome == "answered" and done.text.endswith("and again</Outlines>" + END)


def test_a_quoted_fork_tag_does_not_fork(setup, play):
    # sglang#33151: a server that stops at the first occurrence of a quoted stop string.
    quoted = "<think>I will close with </Outlines>"
    rest = PLAN.removeprefix("<think>p")
    done = play(setup(), [quoted, rest, END], {1: ["A</Thread>"], 2: ["B</Thread>"]}).run()
    assert len(done.blocks) == 1 and codes(done)[0] == "stale_outline"
    assert done.outcome == "answered"


def test_an_empty_plan_goes_on_in_one_line(setup, play):
    done = play(setup(), ["<think><Parallel><Outlines></Outlines>", END]).run()
    assert "empty_plan" in codes(done) and done.blocks == [] and done.outcome == "answered"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("A", "A</Thread>"),
        ("A</Parallel>", "A</Thread>"),
        ("A</think>", "A</Thread>"),
    ],
)
def test_a_branch_that_does_not_close_is_closed(setup, play, written, kept):
    done = play(setup(), [PLAN, END], {1: [written], 2: ["B</Thread>"]}).run()
    assert done.blocks[0].branches[0].outcome == "unclosed"
    assert f"<Thread>1:{kept}<Thread>2:B</Thread></Parallel>" in done.text
    assert "missing_close" in codes(done) and done.outcome == "answered"
    joined = done.ids_of(done.requests[-1].context)
    assert 0 not in joined, "an end-of-text token inside the join"


def test_a_nested_block_stays_text_without_nesting(setup, play):
    inner = "<Parallel><Outlines><Subtask>1:x</Subtask></Outlines></Thread>"
    game = play(setup(), [PLAN, END], {1: [inner], 2: ["B</Thread>"]})
    done = game.run()
    assert len(game.starts) == 4 and len(done.blocks) == 1
    assert "nested_block" in codes(done) and done.outcome == "answered"


def test_reasoning_left_open_is_closed_and_answered(setup, play):
    done = play(setup(), ["<think>hm", "\\boxed{3}"]).run()
    assert done.text == "<think>hm</think>\\boxed{3}"
    assert "think_unclosed" in codes(done) and done.outcome == "answered"


class Words:
    """Joins two letters to one token where they meet: pieces encode differently from the whole."""

    eos_ids = frozenset({0})
    bos_id = None

    def encode(self, text):
        ids = []
        for char in text:
            if char == "e" and ids and ids[-1] == ord("h"):
                ids[-1] = 1
            else:
                ids.append(ord(char))
        return ids

    def decode(self, ids):
        return "".join({0: "", 1: "he"}.get(token, chr(token)) for token in ids)


def test_drift_is_counted_where_an_engine_gives_only_text(setup, play):
    # trl#5224: ids to text to ids is no bijection; here "h" and "e" meet at a join.
    made = setup(retokenized=True, tokenizer=Words())
    game = play(made)
    pieces = [("h", "stop"), ("e", "eos")]
    game.script = lambda start: [
        Chunk((ord(pieces[0][0]),), pieces[0][0]),
        Chunk(finish=pieces.pop(0)[1]),
    ]
    done = game.run()
    assert done.retokenized and done.text == "he"
    assert done.drift == 2, "one id that differs, one too many"
    assert not play(setup(), ["<think>a</think>b"]).run().retokenized


# Failures ------------------------------------------------------------------------------------


def test_a_failed_branch_is_retried_and_its_tokens_are_counted(setup, play):
    broken = EngineError("reset", retryable=True)
    game = play(setup(), [PLAN, END], {1: [broken, "A</Thread>"], 2: ["BB</Thread>"]})
    done = game.run()
    assert done.text == JOINED and done.outcome == "answered"
    assert [r.attempt for r in done.requests if r.branch == 1] == [0, 1]
    assert done.sampled_tokens == len(PLAN) + 1 + len("A</Thread>BB</Thread>") + len(END) + 1
    assert len({s.call.seed for s in game.starts}) == 5


@pytest.mark.parametrize("retryable", [True, False])
def test_a_branch_lost_for_good_leaves_a_stub_and_its_siblings(setup, play, retryable):
    broken = EngineError("dead", retryable=retryable)
    done = play(setup(), [PLAN, END], {1: [broken, broken], 2: ["BB</Thread>"]}).run()
    assert "<Thread>1:[failed]</Thread><Thread>2:BB</Thread>" in done.text
    assert [b.outcome for b in done.blocks[0].branches] == ["failed", "closed"]
    assert "request_failed" in codes(done) and done.outcome == "answered"


def test_a_lost_main_line_ends_with_what_was_paid_for(setup, play):
    game = play(setup(retries=0))
    game.script = lambda start: [Chunk((65,), "A", (-1.0,)), EngineError("gone", retryable=True)]
    done = game.run()
    assert done.outcome == "failed" and done.text == "A" and done.sampled_tokens == 1


# Limits --------------------------------------------------------------------------------------


def test_a_long_branch_is_cut_and_the_trajectory_answers(setup, play):
    limits = {"max_branch_tokens": 5}
    game = play(setup(limits=limits), [PLAN, END], {1: ["A" * 50], 2: ["B</Thread>"]})
    done = game.run()
    assert [s.call.max_tokens for s in game.starts[1:3]] == [5, 5]
    assert done.blocks[0].branches[0].outcome == "truncated"
    assert done.outcome == "answered" and "<Thread>1:AAAAA</Thread>" in done.text


def test_branches_share_the_total_and_leave_the_reserve(setup, play):
    limits = {"max_total_tokens": len(PLAN) + 100 + 40, "answer_reserve": 40}
    game = play(setup(limits=limits), [PLAN, "\\boxed{3}"], {1: ["A" * 500], 2: ["B" * 500]})
    done = game.run()
    assert [s.call.max_tokens for s in game.starts[1:3]] == [50, 50]
    assert done.text.endswith("</Parallel></think>\\boxed{3}")
    assert done.sampled_tokens <= limits["max_total_tokens"]
    assert done.outcome == "answered" and "limit:max_total_tokens" in codes(done)


def test_a_retry_cannot_spend_what_its_siblings_hold(setup, play):
    limits = {"max_total_tokens": len(PLAN) + 100}
    game = play(setup(limits=limits, retries=1), [PLAN])
    lost = [Chunk((65,), "A", (-1.0,))] * 40 + [EngineError("reset", retryable=True)]
    plain = game.answer

    def script(start):
        if start.kind == "main":
            return plain(start.call, PLAN)
        first = start.branch == 1 and not any(s.branch == 1 for s in game.starts[:-1])
        return list(lost) if first else plain(start.call, "B" * 999)

    game.script = script
    done = game.run()
    assert done.sampled_tokens == limits["max_total_tokens"]
    assert done.outcome == "truncated"


def test_the_path_limit_holds_across_a_block(setup, play):
    limits = {"max_path_tokens": len(PLAN) + 30, "answer_reserve": 20}
    game = play(setup(limits=limits), [PLAN, "\\boxed{3}"], {1: ["A" * 99], 2: ["B</Thread>"]})
    done = game.run()
    assert [s.call.max_tokens for s in game.starts[1:]] == [10, 10, 20]
    assert done.outcome == "answered" and done.text.endswith("</think>\\boxed{3}")


def test_without_a_reserve_the_end_is_a_truncation(setup, play):
    done = play(setup(limits={"max_total_tokens": 6}), ["<think>forever"]).run()
    assert done.outcome == "truncated" and done.text == "<think"


def test_on_exhausted_stop_ends_although_a_reserve_is_left(setup, play):
    limits = {"max_total_tokens": 20, "answer_reserve": 10, "on_exhausted": "stop"}
    done = play(setup(limits=limits), ["<think>" + "x" * 50]).run()
    assert done.outcome == "truncated" and done.sampled_tokens == 10


@pytest.mark.parametrize("limits", [{"max_blocks": 1}, {"max_blocks": 0}, {"max_depth": 0}])
def test_a_refused_fork_goes_on_in_one_line(setup, play, limits):
    # Parallel-R1's released loop ended without an answer when its last fork was spent.
    mains = [PLAN, PLAN.removeprefix("<think>p"), END]
    allowed = limits.get("max_blocks", 0)
    if not allowed:
        mains = [PLAN, END]
    done = play(setup(limits=limits), mains, {1: ["A</Thread>"], 2: ["B</Thread>"]}).run()
    assert len(done.blocks) == allowed
    assert "fork_refused" in codes(done) and done.outcome == "answered"
    assert done.text.endswith(END)


def test_fewer_branches_when_the_plan_is_too_wide(setup, play):
    done = play(setup(limits={"max_branches": 1}), [PLAN, END], {1: ["A</Thread>"]}).run()
    assert [b.outcome for b in done.blocks[0].branches] == ["closed", "skipped"]
    assert "<Thread>1:A</Thread><Thread>2:[cancelled]</Thread>" in done.text


def test_a_deadline_cuts_branches_and_forces_the_answer(setup, play):
    limits = {"deadline": 1.0, "answer_reserve": 30}
    game = play(setup(limits=limits), [PLAN, "\\boxed{3}"], {1: ["A" * 99], 2: ["B" * 99]})
    done = game.run(expire_after=len(PLAN) + 1 + 6)
    assert "<Thread>1:AAA</Thread><Thread>2:BBB</Thread></Parallel></think>\\boxed{3}" in done.text
    assert len(game.cancelled) == 2 and done.outcome == "answered"
    assert any(isinstance(e, LimitHit) and e.limit == "deadline" for e in game.events)


def test_the_window_is_a_limit_with_a_reserve_too(setup, play):
    made = setup(limits={"answer_reserve": 20}, window=1 + 60)
    done = play(made, ["<think>" + "x" * 99, "\\boxed{3}"]).run()
    assert done.outcome == "answered" and done.text.endswith("x</think>\\boxed{3}")


def test_a_window_smaller_than_promised_is_learnt_from_the_error(setup, play):
    # vllm#42474: 400 when prompt and cap exceed the window.
    game = play(setup(window=1000))
    errors = [ContextWindowError("too long", window=100, prompt_tokens=3)]
    game.script = lambda start: [errors.pop()] if errors else list(game.answer(start.call, "<x>ok"))
    done = game.run()
    assert done.outcome == "answered" and [s.call.max_tokens for s in game.starts] == [999, 97]


@pytest.mark.parametrize("window", [100, None])
def test_a_window_error_is_never_repeated_for_ever(setup, play, window):
    game = play(setup(window=1000))
    game.script = lambda start: [ContextWindowError("too long", window=window)]
    done = game.run()
    assert done.outcome == "context_exhausted" and len(game.starts) <= 2


def test_an_engine_that_ignores_its_cap_is_cut(setup, play):
    # ray#53922: max_completion_tokens silently dropped.
    game = play(setup(limits={"max_total_tokens": 10}))
    game.script = lambda start: [Chunk(tuple(b"0123456"), "0123456", (0.0,) * 7)] * 3
    done = game.run()
    assert done.text == "0123456012" and done.sampled_tokens == 10
    assert "cap_ignored" in codes(done) and game.cancelled == [0]


def test_every_call_carries_a_cap(setup, play):
    game = play(setup(), [PLAN, END], {1: ["A</Thread>"], 2: ["B</Thread>"]})
    game.run()
    assert all(start.call.max_tokens > 0 for start in game.starts)


# Races ---------------------------------------------------------------------------------------


def test_the_first_conclusive_trial_cancels_the_others(setup, play):
    policy = FirstConclusive(OnText(lambda text: "yes" in text))
    made = replace(setup(), policy=policy)
    game = play(made, [TRIALS, END], {1: ["a" * 40], 2: ["yes</Thread>"]})
    done = game.run()
    assert "<Thread>1:[cancelled]</Thread><Thread>2:yes</Thread></Parallel>" in done.text
    assert [b.outcome for b in done.blocks[0].branches] == ["cancelled", "closed"]
    lost = next(r for r in done.requests if r.finish == "cancelled")
    assert 0 < len(done.segments[lost.output].ids) <= 13, "what the loser cost is kept"
    assert done.blocks[0].policy == "first_conclusive"


def test_an_inconclusive_trial_waits_for_the_others(setup, play):
    made = replace(setup(), policy=FirstConclusive(OnText(lambda text: "yes" in text)))
    done = play(made, [TRIALS, END], {1: ["a" * 20 + "</Thread>"], 2: ["no</Thread>"]}).run()
    assert [b.outcome for b in done.blocks[0].branches] == ["closed", "closed"]


def test_subtasks_never_race(setup, play):
    made = replace(setup(), policy=FirstConclusive(OnText(lambda text: True)))
    done = play(made, [PLAN, END], {1: ["a" * 20 + "</Thread>"], 2: ["yes</Thread>"]}).run()
    assert [b.outcome for b in done.blocks[0].branches] == ["closed", "closed"]
