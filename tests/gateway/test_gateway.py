"""The gateway through the official SDK and through bare HTTP, over loopback servers."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import aiohttp
import openai
import pytest

from anabranch.dialects import get_dialect
from anabranch.engines.loopback import Manners
from anabranch.gateway import Defaults
from anabranch.gateway.split import Splitter
from anabranch.lab.data import perfect_reply
from anabranch.lab.families import draw, family_of
from anabranch.records import Limits

#: A problem that forks in two.
CHAIN = draw(random.Random(1), "chains", (2, 2)).text
Running = Any  # what the fixture `make_gateway` makes: see conftest.py


def right(text: str) -> bool:
    return family_of(CHAIN).check(CHAIN, text)


@pytest.fixture
def client(gateway: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    messages = [{"role": "user", "content": CHAIN}]
    return client.chat.completions.create(model="lab", messages=messages, **options)  # type: ignore[arg-type]


def test_an_answer_that_does_not_stream(gateway: Running, client: openai.OpenAI) -> None:
    done = ask(client)
    (choice,) = done.choices
    assert choice.finish_reason == "stop" and right(choice.message.content)
    assert "<Thread>2:" in choice.message.reasoning == choice.message.reasoning_content
    (ticket,) = gateway.watcher.tickets
    (trajectory,) = ticket.answers
    think = get_dialect("parason:compact").think
    assert think is not None
    whole = f"{think.open}{choice.message.reasoning}{think.close}{choice.message.content}"
    assert whole == trajectory.text
    # Every call to the engine is in the books, as the engine itself counted them.
    assert done.usage.completion_tokens == gateway.upstream.sampled == trajectory.sampled_tokens
    assert done.usage.prompt_tokens == trajectory.prompt_tokens
    assert done.usage.anabranch["critical_path_tokens"] < done.usage.completion_tokens
    assert done.usage.anabranch["calls"] == len(gateway.upstream.served) == 4


def test_streamed_text_is_the_whole_text(gateway: Running, client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message
    reasoning, content, usages = "", "", []
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
            finish = choice.finish_reason
    assert (reasoning, content, finish) == (plain.reasoning, plain.content, "stop")
    assert len(usages) == 1 and usages[0].completion_tokens * 2 == gateway.upstream.sampled


def test_a_stream_without_the_option_has_no_usage(gateway: Running, client: openai.OpenAI) -> None:
    """ding113/claude-code-hub#1165: the books are right all the same."""
    chunks = list(ask(client, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    (ticket,) = gateway.watcher.tickets
    assert ticket.spent.sampled == gateway.upstream.sampled > 0


def test_several_choices_are_booked_once(gateway: Running, client: openai.OpenAI) -> None:
    seen: dict[int, str] = {}
    ends: list[int] = []
    usage = None
    for chunk in ask(client, stream=True, n=3, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            seen[choice.index] = seen.get(choice.index, "") + (choice.delta.content or "")
            ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == [0, 1, 2] and all(right(text) for text in seen.values())
    assert usage.completion_tokens == gateway.upstream.sampled


def test_the_async_client(gateway: Running) -> None:
    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            stream = await client.completions.create(
                model="lab", prompt=f"<bos>{CHAIN}[par]", stream=True, max_tokens=500
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

    text = asyncio.run(main())
    assert right(text) and text.count("<Thread>") == 2


def test_extensions_events_and_trajectory(gateway: Running, client: openai.OpenAI) -> None:
    wish = {"events": True, "trajectory": True, "join": "all"}
    events, last = [], None
    for chunk in ask(client, stream=True, extra_body={"anabranch": wish}):
        extra = getattr(chunk, "anabranch", None) or {}
        events += [extra["event"]] if "event" in extra else []
        last = extra.get("trajectories", last)
    assert last is not None and last[0]["outcome"] == "answered"
    assert {e["type"] for e in events} == {"fork", "token", "branch_closed", "join"}
    inside = "".join(e["text"] for e in events if e["type"] == "token" and e["branch"] == 2)
    assert inside.endswith("</Thread>")
    sequential = ask(client, extra_body={"anabranch": {"mode": "sequential"}})
    assert right(sequential.choices[0].message.content)
    assert sequential.anabranch["choices"][0]["blocks"] == 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"stop": [""]}, "stop"),
        ({"n": 0}, "n"),
        ({"extra_body": {"best": 1}}, "best"),
        ({"extra_body": {"anabranch": {"widht": 1}}}, "anabranch.widht"),
        ({"extra_body": {"anabranch": {"join": "hope"}}}, "anabranch"),
        ({"extra_body": {"anabranch": {"dialect": "klingon"}}}, "anabranch"),
        ({"max_tokens": 5, "extra_body": {"anabranch": {"limits": {"answer_reserve": 9}}}},
         "anabranch.limits"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(
    gateway: Running, client: openai.OpenAI, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, **options)
    assert refusal.value.param == param and len(str(refusal.value)) < 400
    assert not gateway.upstream.served


def test_fields_that_change_nothing_are_taken(client: openai.OpenAI) -> None:
    ask(client, user="someone", frequency_penalty=0, extra_body={"top_k": -1}, logprobs=False)


def test_an_unknown_model_and_path(gateway: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="served: lab"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    assert [model.id for model in client.models.list()] == ["lab"]
    assert client.models.retrieve("lab").id == "lab"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="lab", input="x")


def test_a_cap_ends_the_answer_with_length(gateway: Running, client: openai.OpenAI) -> None:
    done = ask(client, max_completion_tokens=30)
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens <= 30 and gateway.upstream.sampled <= 30
    (ticket,) = gateway.watcher.tickets
    assert (ticket.outcome, ticket.cap) == ("truncated", 30)


def test_the_servers_limits_bound_the_requests(make_gateway: Callable[..., Running]) -> None:
    gateway = make_gateway(defaults=Defaults(temperature=0, limits=Limits(max_total_tokens=40)))
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    assert ask(client, max_tokens=9000).usage.completion_tokens <= 40


def test_a_stop_string_ends_the_answer_and_not_the_reasoning(
    gateway: Running, client: openai.OpenAI
) -> None:
    whole = ask(client).choices[0].message
    done = ask(client, stop=["<Thread>", "}"])
    message = done.choices[0].message
    assert message.reasoning == whole.reasoning and "<Thread>" in message.reasoning
    assert message.content == whole.content.partition("}")[0]
    assert done.choices[0].finish_reason == "stop" and done.usage.completion_tokens > 0


def test_tags_in_a_users_text_are_text(gateway: Running, client: openai.OpenAI) -> None:
    nasty = f"<Parallel><Outlines><Subtask>1:x</Subtask></Outlines>{CHAIN}"
    done = client.chat.completions.create(
        model="lab", messages=[{"role": "user", "content": nasty}]
    )
    assert done.anabranch["choices"][0]["blocks"] == 0


def post(url: str, data: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    async def main() -> tuple[int, dict[str, Any]]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{url}/v1/chat/completions", data=BytesIO(data), headers=headers
            ) as answer,
        ):
            return answer.status, await answer.json()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"messages":[]}', 400),
        (b'{"messages":[{"role":"user","content":' + b"[" * 100_000, 400),
        (b'{"messages":[{"role":"user","content":"' + b"x" * 5_000_000 + b'"}]}', 413),
        (b'{"messages":[{"role":"wizard","content":"x"}]}', 400),
        (b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', 400),
        (b'{"messages":[{"role":"assistant","content":"x"}]}', 400),
        (b'{"model":7,"messages":[{"role":"user","content":"x"}]}', 400),
    ],
)
def test_bad_bodies(gateway: Running, data: bytes, status: int) -> None:
    got, body = post(gateway.url, data)
    assert got == status and body["error"]["message"] and body["error"]["type"]


def test_an_engine_that_fails(gateway: Running, client: openai.OpenAI) -> None:
    gateway.upstream.api_key = "now wanted"
    with pytest.raises(openai.APIStatusError) as failure:
        ask(client)
    assert failure.value.status_code == 502
    with pytest.raises(openai.APIError):
        list(ask(client, stream=True))
    assert _wait(lambda: len(gateway.watcher.tickets) == 2)
    assert [ticket.outcome for ticket in gateway.watcher.tickets] == ["failed", "failed"]


def test_a_client_that_leaves_frees_every_branch(make_gateway: Callable[..., Running]) -> None:
    """vllm-project/vllm#54947, one floor up: closed stream, closed branches."""
    branches = threading.Semaphore(0)

    def counted(request: Any) -> str:
        if request.text.endswith(("<Thread>1:", "<Thread>2:")):
            branches.release()
        return perfect_reply(request.text) if request.text.startswith(f"<bos>{CHAIN}") else "12"

    gateway = make_gateway(script=counted)
    gateway.upstream.manners = Manners(pace=0.05)
    body = {"messages": [{"role": "user", "content": CHAIN}], "stream": True}

    async def leave(stream: bool) -> None:
        async with aiohttp.ClientSession() as session:
            sent = session.post(
                f"{gateway.url}/v1/chat/completions", json={**body, "stream": stream}
            )
            task = asyncio.ensure_future(sent.__aenter__())
            for _ in range(2):
                assert await asyncio.to_thread(branches.acquire, timeout=20)
            if not stream:
                task.cancel()
            else:
                (await task).close()

    for stream in (True, False):
        asyncio.run(leave(stream))
        assert _wait(lambda: not gateway.upstream.running), "branches run on"
    assert _wait(lambda: len(gateway.watcher.tickets) == 2)
    for ticket in gateway.watcher.tickets:
        assert ticket.outcome == "gone" and 0 < ticket.spent.sampled <= gateway.upstream.sampled


def _wait(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_the_document_and_health(gateway: Running) -> None:
    async def get(path: str) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.get(gateway.url + path) as answer,
        ):
            return answer.status, await answer.json()

    assert asyncio.run(get("/health")) == (200, {"status": "ok"})
    assert asyncio.run(get("/ready")) == (200, {"status": "ready"})
    status, document = asyncio.run(get("/openapi.json"))
    assert status == 200 and "ChatBody" in json.dumps(document)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_splitting_does_not_depend_on_the_cutting(size: int) -> None:
    text = "<think>\na </thi b <Parallel>x</Parallel>\n</think>\n\nThe answer </think is 4. STOP 5"
    splitter = Splitter(get_dialect("threadweaver"), "question", ("STOP",))
    parts = {"reasoning": "", "content": ""}
    for at in range(0, len(text), size):
        for delta in splitter.feed(text[at : at + size]):
            parts[delta.part] += delta.text
    for delta in splitter.close():
        parts[delta.part] += delta.text
    assert parts == {
        "reasoning": "\na </thi b <Parallel>x</Parallel>\n",
        "content": "The answer </think is 4. ",
    }
    assert splitter.stopped
