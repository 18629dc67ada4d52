"""Bodies from clients and events from the engine that nobody planned: never a server error."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.engines.loopback.data import Reply
from anabranch.gateway.bodies import LABELS, NEUTRAL, ChatBody, CompletionBody, Extension

#: ANABRANCH_FUZZ=5000 for a long run.
MANY = int(os.environ.get("ANABRANCH_FUZZ", "60"))
QUICK = settings(
    max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *LABELS, *NEUTRAL} - {"n"})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"])},
    optional={"content": JSON, "tool_calls": JSON},
)
GOOD = st.just([{"role": "user", "content": "1"}])
EXTENSION = st.dictionaries(st.sampled_from(sorted(Extension.model_fields)), JSON, max_size=3)
BODY = st.fixed_dictionaries(
    {"messages": GOOD | st.lists(MESSAGE, max_size=3) | JSON, "prompt": st.just("1") | JSON},
    optional={"anabranch": EXTENSION, "max_tokens": st.integers(1, 9), "n": st.integers(-1, 3)},
)
EXTRA = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2)


async def post(url: str, path: str, data: bytes) -> tuple[int, str, bytes]:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.post(url + path, data=data, headers=headers) as answer,
    ):
        return answer.status, answer.content_type, await answer.read()


def check(got: tuple[int, str, bytes], allowed: int = 500) -> None:
    status, kind, content = got
    assert status < allowed, content
    if status >= 400:
        error = json.loads(content)["error"]
        assert error["message"] and error["type"]
    elif kind == "text/event-stream":
        for line in content.decode().split("\n\n"):
            if line and not line.startswith(":") and line != "data: [DONE]":
                json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_bodies(one_gateway: Any, path: str) -> None:
    @QUICK
    @given(BODY, EXTRA)
    def run(body: dict[str, Any], extra: dict[str, Any]) -> None:
        keep = "messages" if path.startswith("chat") else "prompt"
        data = {**{k: v for k, v in body.items() if k not in ("messages", "prompt")}, **extra}
        data[keep] = body[keep]
        # 502: this engine has no chat endpoint that requests with tools could go on to.
        got = asyncio.run(post(one_gateway.url, f"/v1/{path}", json.dumps(data).encode()))
        check(got, allowed=503)
        assert got[0] != 500

    run()


@pytest.mark.parametrize("path", ["chat/completions", "feedback"])
def test_bytes(one_gateway: Any, path: str) -> None:
    @QUICK
    @given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
    def run(data: bytes) -> None:
        check(asyncio.run(post(one_gateway.url, f"/v1/{path}", data)))

    run()


#: Fields in odd orders and of any type.
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=9) | JSON,
        "token_ids": st.lists(st.integers(0, 99), max_size=3) | JSON,
        "logprobs": JSON,
        "finish_reason": st.none() | st.sampled_from(["stop", "length", "abort", ""]) | JSON,
        "stop_reason": JSON,
        "index": st.integers(0, 2),
    },
)
USAGE = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "prompt_tokens_details"]),
    st.integers(0, 9) | JSON,
    max_size=2,
)
EVENT = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE | JSON) | JSON, "usage": USAGE | JSON}
)
EVENTS = st.lists(EVENT | JSON.map(json.dumps) | st.text(max_size=30), max_size=5)


def test_events_of_the_engine(make_gateway: Callable[..., Any]) -> None:
    replies: list[Any] = []
    gateway = make_gateway(script=lambda request: replies[-1] if replies else "12")
    body = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 5}

    @QUICK
    @given(EVENTS, st.booleans())
    def run(events: list[Any], stream: bool) -> None:
        replies.append(Reply(raw=tuple(events)))
        data = json.dumps({**body, "stream": stream}).encode()
        check(asyncio.run(post(gateway.url, "/v1/chat/completions", data)), allowed=503)

    run()
    assert {ticket.outcome for ticket in gateway.watcher.tickets} <= {
        "answered", "truncated", "failed"
    }  # fmt: skip
