"""Mode tools: forks by tool calls, over a real loopback server that speaks the chat protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.decoding import BlockOpened, Joined, make_policy, make_setup, run
from anabranch.decoding.events import Event
from anabranch.decoding.tools import ANSWER_NOW, read_calls
from anabranch.engines.chat import ChatEngine
from anabranch.engines.chat_call import ToolCall
from anabranch.engines.loopback import ChatReply, ChatServer, Fault, Manners
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import UsageError
from anabranch.jsonl import dump_line
from anabranch.metrics import trajectory_metrics
from anabranch.records import Limits, Trajectory

Messages = list[dict[str, Any]]


def fork(*titles: str, kind: str = "subtasks") -> tuple[str, dict[str, Any]]:
    return ("fork", {"kind": kind, "branches": list(titles)})


def played(
    script: Any,
    *,
    changes: dict[str, Any] | None = None,
    faults: tuple[Any, ...] = (),
    **setup: Any,
) -> tuple[Trajectory, ChatServer, list[Event]]:
    """Solves a problem with a model that answers each conversation by ``script(messages)``."""
    events: list[Event] = []

    async def main() -> tuple[Trajectory, ChatServer]:
        def answer(served: Any) -> Any:
            return script(served.body["messages"])

        async with ChatServer(CharTokenizer(), answer) as server:
            for name, value in (changes or {}).items():
                setattr(server, name, value)
            engine = ChatEngine(
                server.url, tokenizer=CharTokenizer(), cap_field="max_completion_tokens"
            )
            async with engine:
                await engine.open()
                server.served.clear()
                server.faults.extend(faults)
                limits = Limits(**setup.pop("limits", {}))
                wanted = make_setup("2 + 3?", engine, mode="tools", limits=limits, **setup)
                done = await run(wanted, engine, events.append)
                assert await server.settled()
                return done, server

    done, server = asyncio.run(main())
    Trajectory.model_validate(json.loads(dump_line(done)))
    return done, server, events


def two_subtasks(messages: Messages) -> Any:
    last = messages[-1]
    if last["role"] == "tool":
        return ChatReply("so \\boxed{5}", reasoning="both are in")
    if "Work only on this part" in last["content"]:
        return ChatReply("found " + last["content"][-1])
    return ChatReply("I split it.", calls=(fork("part a", "part b"),))


def test_branches_are_conversations_and_the_join_is_the_tools_result() -> None:
    done, server, events = played(two_subtasks)
    assert done.outcome == "answered" and (done.mode, done.dialect) == ("tools", "tools")
    (block,) = done.blocks
    assert [(b.number, b.kind, b.title, b.outcome) for b in block.branches] == [
        (1, "subtask", "part a", "closed"),
        (2, "subtask", "part b", "closed"),
    ]
    assert [request.kind for request in done.requests] == ["main", "branch", "branch", "main"]
    assert done.text.endswith("<think>both are in</think>so \\boxed{5}")
    assert "1. part a\nfound a" in done.text and "2. part b\nfound b" in done.text
    assert done.retokenized
    joined = server.served[-1].body["messages"]
    assert [message["role"] for message in joined] == ["user", "assistant", "tool"]
    assert joined[1]["tool_calls"][0]["id"] == joined[2]["tool_call_id"]
    assert joined[1]["content"] == "I split it."  # reasoning is not sent back
    branch = next(one for one in server.served if "part a" in str(one.body["messages"][-1]))
    assert "2 + 3?" in branch.body["messages"][0]["content"]
    assert len(branch.body["messages"]) == 1
    kinds = [type(event) for event in events]
    assert kinds.index(BlockOpened) < kinds.index(Joined)


def test_figures_are_those_of_every_mode() -> None:
    done, _, _ = played(two_subtasks)
    figures = trajectory_metrics(done)
    sizes = [len(done.segments[request.output]) for request in done.requests]
    assert figures.total_tokens == sum(sizes)
    assert figures.critical_path == sizes[0] + max(sizes[1:3]) + sizes[3]
    assert figures.subtask_tokens == sum(sizes[1:3])
    assert figures.branches_per_block == (2,)
    assert 0 < figures.plan_tokens < sizes[0]


def test_two_calls_in_one_message_run_at_the_same_time() -> None:
    def script(messages: Messages) -> Any:
        if messages[-1]["role"] == "tool":
            return "done"
        if " only " in messages[-1]["content"]:
            return "x"
        return ChatReply(calls=(fork("a", "b"), fork("c", kind="trials")))

    done, server, _ = played(script)
    (block,) = done.blocks
    assert [(b.number, b.kind) for b in block.branches] == [
        (1, "subtask"),
        (2, "subtask"),
        (3, "trial"),
    ]
    results = [m for m in server.served[-1].body["messages"] if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in results] == ["call_0", "call_1"]
    assert results[1]["content"] == "3. c\nx"


def nested(messages: Messages) -> Any:
    text = str(messages[-1].get("content"))
    if messages[-1]["role"] == "tool":
        return "with " + text.splitlines()[-1]
    if "inner" in text.rpartition("part")[2]:
        return "core"
    if "outer" in text:
        return ChatReply(calls=(fork("inner"),))
    return ChatReply(calls=(fork("outer"),))


def test_calls_nest_to_max_depth() -> None:
    done, server, _ = played(nested, limits={"max_depth": 2})
    assert [block.path for block in done.blocks] == [(1,), (1, 1, 1)]
    assert done.outcome == "answered" and "with with core" in done.text
    deepest = [one for one in server.served if "tools" not in one.body]
    assert deepest and all("inner" in str(one.body["messages"]) for one in deepest)


def test_a_call_beyond_max_depth_is_refused_and_the_model_goes_on() -> None:
    done, _, _ = played(nested, limits={"max_depth": 1})
    assert [block.path for block in done.blocks] == [(1,)]
    assert {"fork_refused"} <= {finding.code for finding in done.findings}
    assert done.outcome == "answered"


def test_bad_calls_get_an_error_and_end_in_an_answer() -> None:
    def script(messages: Messages) -> Any:
        if messages[-1].get("content") == "stop":
            return "5"
        return ChatReply(calls=(("search", {"q": 1}), ("fork", '{"kind": "subtasks", "bran')))

    done, server, _ = played(script, limits={"answer_reserve": 50, "max_total_tokens": 2000})
    results = [m["content"] for m in server.served[1].body["messages"] if m["role"] == "tool"]
    assert results == [
        "error: there is no tool 'search', only fork",
        "error: the arguments are not JSON",
    ]
    assert "tools" not in server.served[-1].body  # it is not asked for ever
    assert len(server.served) < 8
    assert done.blocks == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("[]", "not an object"),
        ('{"kind": "both", "branches": ["a"]}', "use subtasks or trials"),
        ('{"kind": "trials", "branches": "a"}', "not a list of texts"),
        ('{"kind": "trials", "branches": [" "]}', "is empty"),
        ('{"kind": "trials"}', "not a list of texts"),
    ],
)
def test_wrong_arguments_are_named(arguments: str, error: str) -> None:
    (asked,) = read_calls([ToolCall("1", "fork", arguments)])
    assert error in asked.error and asked.items == ()


def test_the_first_conclusive_trial_ends_the_others() -> None:
    def script(messages: Messages) -> Any:
        text = str(messages[-1].get("content"))
        if messages[-1]["role"] == "tool":
            return "\\boxed{5}"
        if "Try only this way" in text:
            return "it is \\boxed{5}" if text.endswith("quick") else "hm " * 500
        return ChatReply(calls=(fork("slow", "quick", kind="trials"),))

    done, server, _ = played(
        script,
        changes={"manners": Manners(pace=0.001)},
        policy=make_policy("first_conclusive"),
    )
    assert [b.outcome for b in done.blocks[0].branches] == ["cancelled", "closed"]
    assert "1. slow\n[cancelled]" in done.text
    assert [one.outcome for one in server.served].count("left") == 1


def test_a_branch_that_fails_leaves_its_siblings() -> None:
    broken = Fault("status", status=500, body='{"error": {"message": "no"}}')
    done, _, _ = played(two_subtasks, faults=(None, broken))
    assert [b.outcome for b in done.blocks[0].branches] == ["failed", "closed"]
    assert done.outcome == "answered" and "1. part a\n[failed]" in done.text


def test_limits_hold_and_the_answer_has_its_reserve() -> None:
    def script(messages: Messages) -> Any:
        text = str(messages[-1].get("content"))
        if text == ANSWER_NOW:
            return "\\boxed{5}"
        if "Work only" in text:
            return "long " * 100
        return ChatReply(calls=(fork("a", "b"),))

    done, server, _ = played(
        script, limits={"max_total_tokens": 400, "max_branch_tokens": 60, "answer_reserve": 30}
    )
    assert [b.outcome for b in done.blocks[0].branches] == ["truncated", "truncated"]
    assert {r.counted_tokens for r in done.requests if r.kind == "branch"} == {60}
    assert sum(request.counted_tokens or 0 for request in done.requests) <= 400
    assert done.text.endswith("\\boxed{5}") and done.outcome == "answered"
    assert server.served[-1].body["max_completion_tokens"] == 30


def test_reasoning_without_an_answer_is_truncated_or_an_error_never_an_answer() -> None:
    done, _, _ = played(lambda _: ChatReply("", "on and on " * 30), limits={"max_total_tokens": 40})
    assert done.outcome == "truncated"
    done, _, _ = played(lambda _: ChatReply("", "hm"))
    assert done.outcome == "protocol_error"
    assert "no_answer" in {finding.code for finding in done.findings}


def test_a_forced_fork_names_the_tool() -> None:
    _, server, _ = played(two_subtasks, min_blocks=1)
    choices = [one.body.get("tool_choice") for one in server.served if "tools" in one.body]
    assert choices[:1] + choices[-1:] == [
        {"type": "function", "function": {"name": "fork"}},
        "auto",
    ]


def test_sequential_goes_through_the_same_code() -> None:
    async def main() -> Trajectory:
        server = ChatServer(CharTokenizer(), lambda _: ChatReply("\\boxed{5}", "hm"))
        async with server, ChatEngine(server.url, cap_field="max_tokens") as engine:
            done = await run(make_setup("2 + 3?", engine, mode="sequential"), engine)
            assert all("tools" not in one.body for one in server.served)
            return done

    done = asyncio.run(main())
    assert (done.mode, done.outcome, done.blocks) == ("sequential", "answered", [])
    assert done.text == "<think>hm</think>\\boxed{5}"
    assert trajectory_metrics(done).critical_path == trajectory_metrics(done).total_tokens


def test_modes_and_engines_that_do_not_fit_are_refused_by_name() -> None:
    async def main() -> None:
        async with ChatServer(CharTokenizer(), "x") as server, ChatEngine(server.url) as engine:
            for mode in ("parallel", "constrained", "prompted"):
                with pytest.raises(UsageError, match=f"mode tools only, not {mode}"):
                    make_setup("1", engine, mode=mode)  # type: ignore[arg-type]

    asyncio.run(main())


@given(data=st.data())
def test_no_limit_is_ever_passed(data: st.DataObject) -> None:
    """Whatever the model does: a recorded outcome, and the server's counts within the limits."""
    total = data.draw(st.integers(20, 300))
    reserve = data.draw(st.integers(0, 15))
    moves = data.draw(st.lists(st.integers(0, 4), min_size=12, max_size=12))
    left = list(moves)

    def script(_: Messages) -> Any:
        move = left.pop() if left else 0
        if move == 4:
            return ChatReply("", "hm " * 20)
        if move == 3:
            return ChatReply(calls=(("fork", "{"),))
        if move:
            return ChatReply("I", calls=(fork(*"abc"[:move]),))
        return "x" * 30

    done, _, _ = played(
        script,
        limits={
            "max_total_tokens": total,
            "answer_reserve": reserve,
            "max_branch_tokens": 80,
            "max_depth": 2,
        },
    )
    assert sum(request.counted_tokens or 0 for request in done.requests) <= total
    assert done.outcome in ("answered", "truncated", "protocol_error")
