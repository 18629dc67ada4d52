"""Requests with tools go through to the engine's chat endpoint, and are booked."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.loopback.chat import ChatReply, ChatServer
from anabranch.engines.loopback.data import Reply
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway import Defaults, Model, Service, create_app
from anabranch.lab.bundled import bundled_model

TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
ASKED: list[Any] = [{"role": "user", "content": "add 1 and 2"}]


class Both(ChatServer):
    """Chat and completions on one port, as a real server has them."""

    #: Bytes that a cut stream sends; None: streams go to their end.
    cut: bytes | None = None

    def _routes(self, app: web.Application) -> None:
        LoopbackServer._routes(self, app)
        app.router.add_post("/v1/chat/completions", self._chat)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        kind = ChatServer if "messages" in body else LoopbackServer
        return kind._prompt(self, body)

    def _refuse(self, body: dict[str, Any]) -> web.Response | None:
        return super()._refuse(body) if "messages" in body else LoopbackServer._refuse(self, body)

    def _events(self, served: Any, reply: Any) -> Iterable[str]:
        if "messages" in served.body:
            return super()._events(served, reply)
        return LoopbackServer._events(self, served, Reply("12"))

    async def _answer(self, request: Any, served: Any, fault: Any) -> web.StreamResponse:
        kind = ChatServer if "messages" in served.body else LoopbackServer
        return await kind._answer(self, request, served, fault)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.cut is None:
            return await self._generate(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.cut)
        assert request.transport is not None
        request.transport.abort()
        return response


@dataclass
class Passing:
    url: str
    upstream: Both
    watcher: Any
    client: openai.OpenAI


@pytest.fixture(scope="module")
def running(listen: Any, watcher_class: Any) -> Iterator[Passing]:
    tokenizer = load_tokenizer(bundled_model())
    reply = ChatReply("12", calls=(("add", "1+2"),))
    script: Any = lambda request: reply  # noqa: E731
    upstream = Both(tokenizer, script)
    with upstream:
        service = Service(
            {"lab": Model("lab", CompletionsEngine(upstream.url, tokenizer=tokenizer))},
            Defaults(dialect="threadweaver"),
        )
        watcher = watcher_class()
        service.observers.add(watcher)
        with listen(create_app(service)) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            yield Passing(url, upstream, watcher, client)


@pytest.fixture
def passing(running: Passing) -> Passing:
    running.watcher.tickets.clear()
    running.upstream.cut = None
    return running


def ticket(passing: Passing) -> Any:
    asyncio.run(_settled(passing))
    (one,) = passing.watcher.tickets
    return one


async def _settled(passing: Passing) -> None:
    async with asyncio.timeout(5):
        while not passing.watcher.tickets:  # noqa: ASYNC110 - another thread's list
            await asyncio.sleep(0.005)


def test_streamed_calls_come_back_and_are_booked(passing: Passing) -> None:
    chunks = list(
        passing.client.chat.completions.create(
            model="lab", messages=ASKED, tools=TOOLS, stream=True
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert calls[0].function is not None and calls[0].function.name == "add"
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert arguments == "1+2"
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for it"
    booked = ticket(passing)
    assert (booked.mode, booked.outcome) == ("passed", "answered")
    assert booked.spent.sampled == booked.spent.path > 0 and booked.spent.prompt > 0
    assert not booked.spent.estimated


def test_a_client_that_asks_for_the_usage_gets_it(passing: Passing) -> None:
    *_, last = passing.client.chat.completions.create(
        model="lab", messages=ASKED, tools=TOOLS, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert last.usage is not None and last.usage.completion_tokens == ticket(passing).spent.sampled


def test_results_of_tools_pass_too(passing: Passing) -> None:
    messages = [*ASKED, {"role": "tool", "tool_call_id": "call_0", "content": "3"}]
    done = passing.client.chat.completions.create(model="lab", messages=messages)
    assert done.choices[0].message.content == " "
    assert ticket(passing).mode == "passed"
    body = passing.upstream.served[-1].body
    assert body["messages"][-1]["role"] == "tool" and body["model"] == "loopback"


def test_a_stream_cut_before_its_usage_is_booked_as_estimated(passing: Passing) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"1"}}]}\n\n'
    passing.upstream.cut = event * 5

    async def main() -> bytes:
        got = b""
        body = {"messages": ASKED, "tools": TOOLS, "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{passing.url}/v1/chat/completions", json=body) as answer,
        ):
            try:
                async for piece in answer.content.iter_any():
                    got += piece
            except aiohttp.ClientError:
                return got
        return got

    got = asyncio.run(main())
    assert b"[DONE]" not in got and b'"error"' in got
    booked = ticket(passing)
    assert booked.spent.estimated and booked.spent.sampled == 5 and booked.outcome == "failed"


def test_an_engines_refusal_comes_back_as_it_is(passing: Passing) -> None:
    passing.upstream.refused = ("tools",)
    try:
        with pytest.raises(openai.BadRequestError, match="Unsupported parameter: 'tools'"):
            passing.client.chat.completions.create(model="lab", messages=ASKED, tools=TOOLS)
    finally:
        passing.upstream.refused = ()
    assert ticket(passing).outcome == "failed"


@pytest.mark.parametrize("shift", [{"n": "x"}, {"max_tokens": 1e400}, {"stream": "yes"}])
def test_odd_fields_are_the_engines_business(
    passing: Passing, shift: dict[str, Callable[..., Any]]
) -> None:
    async def main() -> int:
        body = json.dumps({"messages": ASKED, "tools": TOOLS, "max_tokens": 5, **shift})
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{passing.url}/v1/chat/completions", data=body) as answer,
        ):
            await answer.read()
            return answer.status

    assert asyncio.run(main()) < 500
