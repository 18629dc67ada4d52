"""Blocks inside branches: forks, joins, limits and races of a branch that forks itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anabranch.decoding import FirstConclusive, Joined, OnText, trajectory_from_text
from anabranch.dialects import get_dialect, parse, write
from anabranch.errors import EngineError
from anabranch.metrics import trajectory_metrics

M = {
    "plan": "<Think>p<Parallel><Goal><Outline>1:a</Outline><Outline>2:b</Outline></Goal>",
    "inner": "q<Parallel><Goal><Outline>2.1:c</Outline><Outline>2.2:d</Outline></Goal>",
    "one": "<Path>1:A</Path><Path>2:",
    "two": "<Path>2.1:C</Path><Path>2.2:DD</Path><Conclusion>m</Conclusion></Parallel>",
    "end": "<Conclusion>n</Conclusion></Parallel>",
    "branch": "</Path>",
    "merge": "</Conclusion>",
    "answer": "r</Think>\\boxed{3}",
}
N = {
    "plan": "p<guideline><plan>1:a</plan><plan>2:b</plan></guideline>",
    "inner": "q<guideline><plan>1:c</plan><plan>2:d</plan></guideline>",
    "one": "<step>1:A</step><step>2:",
    "two": "<step>1:C</step><step>2:DD</step><takeaway>m</takeaway>",
    "end": "<takeaway>n</takeaway>",
    "branch": "</step>",
    "merge": "</takeaway>",
    "answer": "\\boxed{3}",
}
CASES = pytest.mark.parametrize(
    ("name", "t"), [("multiverse:compact", M), ("npr:compact", N)], ids=["multiverse", "npr"]
)
OUTER, INNER = (1,), (1, 2, 1)


def whole(t):
    return f"{t['plan']}{t['one']}{t['inner']}{t['two']}s{t['branch']}{t['end']}{t['answer']}"


def calls(t, **changes):
    """What the model writes, call by call, by the block and branch that it stands in."""
    script = {
        "main": [t["plan"], t["answer"]],
        (OUTER, 1): ["A" + t["branch"]],
        (OUTER, 2): [t["inner"], "s" + t["branch"]],
        (INNER, 1): ["C" + t["branch"]],
        (INNER, 2): ["DD" + t["branch"]],
        ("merge", INNER): ["m" + t["merge"]],
        ("merge", OUTER): ["n" + t["merge"]],
    }
    return script | changes.get("instead", {})


def run(play, made, script):
    game = play(made)

    def reply(start):
        places = {"main": "main", "merge": ("merge", start.block)}
        item = script[places.get(start.kind, (start.block, start.branch))].pop(0)
        return [item] if isinstance(item, EngineError) else list(game.answer(start.call, item))

    game.script = reply
    return game.run(), game


@CASES
def test_a_branch_forks_joins_and_goes_on(setup, play, name, t):
    done, game = run(play, setup(name, limits={"max_depth": 2}), calls(t))
    assert done.text == whole(t) and done.outcome == "answered" and not done.findings
    assert parse(done.text, get_dialect(name), strict=True).diagnostics == []
    assert [block.path for block in done.blocks] == [OUTER, INNER]
    assert all(block.outcome == "joined" for block in done.blocks)
    outer, inner = done.blocks
    assert [len(branch.requests) for branch in outer.branches] == [1, 2]
    assert done.requests[inner.opener].block == OUTER
    assert done.requests[inner.opener].branch == 2
    assert done.requests[inner.merge].block == INNER
    assert inner.plan_tokens == len(t["inner"]) - 1
    joined = [event for event in game.events if isinstance(event, Joined)]
    assert [event.block for event in joined] == [INNER, OUTER]
    assert joined[1].text.startswith(t["one"] + t["inner"] + t["two"] + "s" + t["branch"])


@CASES
def test_what_each_call_sees(setup, play, name, t):
    done, _ = run(play, setup(name, limits={"max_depth": 2}), calls(t))
    seen = {
        (r.kind, r.block, r.branch): "".join(done.segments[i].text for i in r.context)
        for r in done.requests
    }
    header = t["two"][: t["two"].index("C")]
    fork = "Q" + t["plan"] + t["one"][t["one"].index("A" + t["branch"]) + len("A" + t["branch"]) :]
    assert seen["branch", INNER, 1] == fork + t["inner"] + header
    assert seen["branch", OUTER, 2] == fork + t["inner"] + t["two"]  # the last one: going on
    assert seen["merge", INNER, None] == fork + t["inner"] + t["two"][: t["two"].index("m</")]
    assert seen["main", (), None] == "Q" + whole(t).removesuffix(t["answer"])


@CASES
def test_figures_of_nested_blocks(setup, play, name, t):
    done, _ = run(play, setup(name, limits={"max_depth": 2}), calls(t))
    close, merge = len(t["branch"]), 1 + len(t["merge"])
    inside = len(t["inner"]) + (2 + close) + merge + (1 + close)
    main = len(t["plan"]) + len(t["answer"]) + 1
    figures = trajectory_metrics(done)
    assert figures.critical_path == main + max(1 + close, inside) + merge
    assert figures.total_tokens == main + (1 + close) + inside + (1 + close) + merge
    assert figures.merge_tokens == 2 * merge
    assert figures.branches_per_block == (2, 2)
    assert figures.tokens_per_branch == (
        1 + close,
        len(t["inner"]) + 1 + close,
        1 + close,
        2 + close,
    )
    assert figures.well_formed


def test_too_deep_a_block_is_written_out_in_one_line(setup, play):
    written = [
        M["inner"] + "<Path>2.1:C</Path>",
        "<Path>2.2:DD</Path>",
        "<Conclusion>",
        "m</Conclusion></Parallel>",
        "s</Path>",
    ]
    script = calls(M, instead={(OUTER, 2): written})
    done, _ = run(play, setup("multiverse:compact"), script)
    assert done.text == whole(M) and not done.findings
    assert [block.path for block in done.blocks] == [OUTER]
    assert len(done.blocks[0].branches[1].requests) == 5


def test_the_same_without_a_tag_around_the_block(setup, play):
    written = [
        N["inner"] + "<step>1:C</step>",
        "<step>2:DD</step>",
        "<takeaway>",
        "m</takeaway>s</step>",
    ]
    script = calls(N, instead={(OUTER, 2): written})
    done, _ = run(play, setup("npr:compact"), script)
    assert done.text == whole(N) and not done.findings


@pytest.mark.parametrize("stop", ["<Conclusion>", "</Parallel>", "</Think>"])
def test_a_branch_that_leaves_its_place_is_closed(setup, play, stop):
    script = calls(M, instead={(OUTER, 2): [M["inner"], "s" + stop]})
    done, _ = run(play, setup("multiverse:compact", limits={"max_depth": 2}), script)
    assert done.text == whole(M) and done.outcome == "answered"
    assert [finding.code for finding in done.findings] == ["missing_close"]
    assert done.blocks[0].branches[1].outcome == "unclosed"


@CASES
def test_what_is_lost_inside_a_branch_leaves_the_rest(setup, play, name, t):
    lost = EngineError("gone")
    script = calls(t, instead={(INNER, 1): [lost], ("merge", INNER): [lost]})
    done, _ = run(play, setup(name, limits={"max_depth": 2}), script)
    text = whole(t).replace(":C<", ":[failed]<").replace(f"m{t['merge']}", t["merge"])
    assert done.text == text and done.outcome == "answered"
    script = calls(t, instead={(OUTER, 2): [t["inner"], lost]})
    done, _ = run(play, setup(name, limits={"max_depth": 2}), script)
    assert f"2:[failed]{t['branch']}" in done.text and done.outcome == "answered"
    assert done.blocks[0].branches[1].outcome == "failed"


def test_a_branch_shares_out_what_is_left_of_its_own(setup, play):
    limits = {"max_depth": 2, "answer_reserve": 40, "min_branch_tokens": 5}
    limits["max_total_tokens"] = len(M["plan"]) + 2 * 200 + limits["answer_reserve"]
    endless = {
        (INNER, 1): ["C" * 999],
        (INNER, 2): ["D" * 999],
        (OUTER, 2): [M["inner"], "s" * 999],
    }
    script = calls(M, instead=endless)
    done, game = run(play, setup("multiverse:compact", limits=limits), script)
    caps = {(s.kind, s.block, s.branch): s.call.max_tokens for s in game.starts}
    left = 200 - len(M["inner"])
    assert caps["branch", INNER, 1] == caps["branch", INNER, 2] == left // 3
    kept = left - 2 * (left // 3)
    assert caps["merge", INNER, None] == kept
    assert caps["branch", OUTER, 2] == kept - len("m</Conclusion>")
    assert done.sampled_tokens <= limits["max_total_tokens"] and done.outcome == "answered"
    assert parse(done.text, get_dialect("multiverse"), strict=True)


def test_a_fork_that_a_branch_cannot_pay_for_is_refused(setup, play):
    limits = {"max_depth": 2, "answer_reserve": 40, "min_branch_tokens": 90}
    limits["max_total_tokens"] = len(M["plan"]) + 2 * 200 + limits["answer_reserve"]
    script = calls(M, instead={(OUTER, 2): [M["inner"], "gone on</Path>", "</Path>"]})
    done, _ = run(play, setup("multiverse:compact", limits=limits), script)
    assert [block.path for block in done.blocks] == [OUTER]
    assert "fork_refused" in [finding.code for finding in done.findings]
    assert done.outcome == "answered"


def test_the_limit_of_a_branch_is_of_all_its_calls(setup, play):
    limits = {"max_depth": 2, "max_branch_tokens": len(M["inner"]) + 4}
    script = calls(M, instead={(OUTER, 2): [M["inner"], "s" * 50]})
    done, game = run(play, setup("multiverse:compact", limits=limits), script)
    assert [s.call.max_tokens for s in game.starts if s.branch == 2 and s.block == OUTER][1] == 4
    assert "</Parallel>ssss</Path>" in done.text
    assert done.blocks[0].branches[1].outcome == "truncated"


@pytest.mark.parametrize("inside", [0, 3, 12])
def test_a_lost_race_ends_everything_inside(setup, play, inside):
    dialect = replace(get_dialect("multiverse:compact"), or_kinds=frozenset({"outline"}))
    made = setup("multiverse:compact", limits={"max_depth": 2})
    made = replace(
        made, dialect=dialect, policy=FirstConclusive(OnText(lambda text: "yes" in text))
    )
    winner = "w" * (len(M["inner"]) + inside) + "yes</Path>"
    slow = {(INNER, 1): ["C" * 99], (INNER, 2): ["D" * 99], (OUTER, 1): [winner]}
    done, game = run(play, made, calls(M, instead=slow))
    outer, inner = done.blocks
    assert [branch.outcome for branch in outer.branches] == ["closed", "cancelled"]
    assert [branch.outcome for branch in inner.branches] == ["cancelled", "cancelled"]
    assert inner.outcome == "open" and outer.outcome == "joined" and len(game.cancelled) == 2
    assert "<Path>2:[cancelled]</Path><Conclusion>n" in done.text and done.outcome == "answered"
    assert done.sampled_tokens == sum(
        len(done.segments[request.output].ids) for request in done.requests
    )


@pytest.mark.parametrize("after", [len(M["plan"]) + 40, len(M["plan"]) + 200])
def test_a_deadline_inside_a_branch_is_answered(setup, play, after):
    limits = {"max_depth": 2, "answer_reserve": 30}
    slow = {(INNER, 1): ["C" * 999], (INNER, 2): ["D" * 999], (OUTER, 1): ["A" * 999]}
    game = play(setup("multiverse:compact", limits=limits))
    script = calls(M, instead=slow)

    def reply(start):
        key = "main" if start.kind == "main" else (start.block, start.branch)
        return list(game.answer(start.call, script[key].pop(0)))

    game.script = reply
    done = game.run(expire_after=after)
    assert done.outcome == "answered" and done.text.endswith("\\boxed{3}")
    assert len(done.blocks) == (1 if after < len(M["plan"]) + 100 else 2)
    assert all(block.outcome == "joined" for block in done.blocks)


# Texts -----------------------------------------------------------------------------------------


@CASES
def test_a_text_with_nested_blocks_becomes_what_decoding_records(setup, play, name, t):
    made = setup(name, limits={"max_depth": 2})
    decoded, _ = run(play, made, calls(t))
    done = trajectory_from_text(whole(t), made)
    assert done.text == whole(t) and not done.findings
    assert [b.path for b in done.blocks] == [OUTER, INNER]

    def calls_of(trajectory):
        return {
            (r.kind, r.block, r.branch, trajectory.ids_of(r.context)): trajectory.segments[
                r.output
            ].ids
            for r in trajectory.requests
        }

    assert calls_of(done) == calls_of(decoded)


@CASES
def test_blocks_that_are_too_deep_stay_text(setup, name, t):
    done = trajectory_from_text(whole(t), setup(name))
    assert done.text == whole(t) and [b.path for b in done.blocks] == [OUTER]


def test_canonical_spacing(setup):
    for name, t in (("multiverse", M), ("npr", N)):
        dialect = get_dialect(name)
        text = write(parse(whole(t), dialect), dialect)
        done = trajectory_from_text(text, setup(name, limits={"max_depth": 2}))
        assert done.text == text and len(done.blocks) == 2 and not done.findings
        sampled = "".join(s.text for s in done.segments if s.origin == "sampled")
        assert dialect.branch.open not in sampled and dialect.merge.open not in sampled


def test_published_examples_become_trajectories(setup, shared_data):
    dialect = get_dialect("multiverse")
    with (shared_data / "traces/multiverse_1k_examples.jsonl").open(encoding="utf-8") as lines:
        rows = sorted((json.loads(line) for line in lines), key=lambda row: len(row["text"]))
    for row in rows[:8]:
        done = trajectory_from_text(row["text"], setup("multiverse", limits={"max_depth": 2}))
        assert done.text == row["text"] and not done.findings
        assert len(done.blocks) == len(list(parse(row["text"], dialect).all_blocks()))
