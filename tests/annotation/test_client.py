"""A real server that is busy, broken, slow or says no: what becomes of the questions."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from anabranch.annotation import (
    Annotator,
    AnswerCache,
    Ask,
    AskFailed,
    Budget,
    BudgetSpent,
    Message,
    Pace,
    Patience,
    Prices,
)
from anabranch.engines.retry import Retries
from anabranch.engines.transport import Transport
from anabranch.errors import EngineError

Reply = tuple[int, Any]
OK = {"choices": [{"message": {"content": '{"n": 1}'}, "finish_reason": "stop"}]}


def said(content: str, finish: str = "stop", **message: str) -> dict[str, Any]:
    return {
        "choices": [{"message": {"content": content, **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }


def question(name: str = "q", **more: Any) -> Ask[Any]:
    schema = more.pop("schema", {"type": "object"})
    read: Callable[[Any], Any] = more.pop("read", lambda data: data["n"])
    return Ask("test", (Message("user", name),), read, schema, **more)


class Clock:
    """Waits take no time; how long was waited is kept."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        await asyncio.sleep(0)


def with_server(
    script: Callable[[int, dict[str, Any]], Reply],
    use: Callable[[Annotator, list[dict[str, Any]]], Any],
    cache: Path,
    **settings: Any,
) -> Any:
    """Runs ``use`` with an annotator of a server that answers request number n by the script."""

    async def main() -> Any:
        seen: list[dict[str, Any]] = []

        async def serve(request: web.Request) -> web.Response:
            seen.append(await request.json())
            status, body = script(len(seen) - 1, seen[-1])
            headers = body.pop("headers", {}) if isinstance(body, dict) else {}
            return web.json_response(body, status=status, headers=headers)

        app = web.Application()
        app.router.add_post("/v1/chat/completions", serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0][:2])
        transport = Transport(url, retries=Retries(attempts=0))
        answers = AnswerCache(cache, "run")
        annotator = Annotator(transport, "m", answers, **{"sleep": Clock(), **settings})
        try:
            return await use(annotator, seen)
        finally:
            await transport.close()
            answers.close()
            await runner.cleanup()

    return asyncio.run(main())


def test_a_bad_answer_goes_back_with_its_fault(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return 200, said("nothing" if number == 0 else '{"n": 7}')

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert await annotator.ask(question()) == 7
        assert [m["role"] for m in seen[1]["messages"]] == ["user", "assistant", "user"]
        assert "no JSON object" in seen[1]["messages"][2]["content"]
        assert (annotator.budget.requests, annotator.budget.sampled) == (2, 10)

    with_server(script, use, tmp_path / "a.sqlite")


def test_after_all_tries_the_last_answer_is_kept(tmp_path: Path) -> None:
    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        with pytest.raises(AskFailed) as failed:
            await annotator.ask(question())
        assert (failed.value.reason, failed.value.answer) == ("unusable_answer", "no")
        assert len(seen) == 3

    with_server(lambda *_: (200, said("no")), use, tmp_path / "a.sqlite")


def test_a_cut_answer_is_asked_for_again(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return 200, said('{"n": 3}', "length" if number == 0 else "stop")

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert await annotator.ask(question()) == 3
        assert "more briefly" in seen[1]["messages"][2]["content"]

    with_server(script, use, tmp_path / "a.sqlite")


def test_a_busy_server_uses_up_no_try_and_stops_everybody_once(tmp_path: Path) -> None:
    # curator#205: the first requests all get 429, and no row may be lost for it.
    def script(number: int, body: dict[str, Any]) -> Reply:
        if number < 40:
            return 429, {"headers": {"Retry-After": "0.05"}, "error": "slow down"}
        return 200, said('{"n": 1}')

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        asks = [annotator.ask(question(f"q{n}")) for n in range(200)]
        assert await asyncio.gather(*asks) == [1] * 200

    patience = Patience(tries=3, attempts=1)
    with_server(
        script, use, tmp_path / "a.sqlite", patience=patience, sleep=asyncio.sleep, concurrency=8
    )


@pytest.mark.parametrize("first", [500, 503, "broken"])
def test_failures_are_tried_again(tmp_path: Path, first: int | str) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        if number == 0:
            return (200, ["no completion"]) if first == "broken" else (int(first), {"error": "x"})
        return 200, said('{"n": 1}')

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert await annotator.ask(question()) == 1

    pace = Pace(sleep=Clock())
    with_server(script, use, tmp_path / "a.sqlite", patience=Patience(pause=0.01), pace=pace)


def test_a_server_that_stays_broken_fails_that_question_alone(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        bad = body["messages"][0]["content"] == "bad"
        return (500, {"error": "x"}) if bad else (200, said('{"n": 1}'))

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        with pytest.raises(AskFailed, match="after 4 attempts") as failed:
            await annotator.ask(question("bad"))
        assert failed.value.reason == "unreachable"
        assert await annotator.ask(question("good")) == 1

    with_server(script, use, tmp_path / "a.sqlite")


def test_a_refused_request_is_not_sent_again(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return (413, {"error": "too long"}) if number == 0 else (200, said('{"n": 1}'))

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        with pytest.raises(AskFailed, match="too long"):
            await annotator.ask(question("long"))
        assert await annotator.ask(question("short")) == 1
        assert len(seen) == 2

    with_server(script, use, tmp_path / "a.sqlite")


def test_a_wrong_key_stops_the_run(tmp_path: Path) -> None:
    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        for n in range(2):
            with pytest.raises(AskFailed):
                await annotator.ask(question(f"q{n}"))
        with pytest.raises(EngineError, match="is the API key right"):
            await annotator.ask(question("q2"))

    with_server(lambda *_: (401, {"error": "no key"}), use, tmp_path / "a.sqlite")


def test_an_endpoint_without_schemas_is_found_out_once(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        known = "response_format" not in body
        return (200, said('{"n": 1}')) if known else (400, {"error": "unknown response_format"})

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert [await annotator.ask(question(f"q{n}")) for n in range(3)] == [1, 1, 1]
        assert len(seen) == 4

    with_server(script, use, tmp_path / "a.sqlite")


def test_no_question_is_lost_while_that_is_found_out(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        known = "response_format" not in body
        return (200, said('{"n": 1}')) if known else (400, {"error": "unknown response_format"})

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        asked = [annotator.ask(question(f"q{n}")) for n in range(64)]
        assert await asyncio.gather(*asked) == [1] * 64
        assert sum("response_format" in body for body in seen) <= 16

    with_server(script, use, tmp_path / "a.sqlite", concurrency=16)


def test_a_request_that_is_refused_for_itself_leaves_schemas_on(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        long = body["messages"][0]["content"] == "long"
        return (400, {"error": "too long"}) if long else (200, said('{"n": 1}'))

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        with pytest.raises(AskFailed, match="too long"):
            await annotator.ask(question("long"))
        assert ["response_format" in body for body in seen] == [True, False]
        assert await annotator.ask(question("short")) == 1
        assert annotator.schemas and "response_format" in seen[-1]

    with_server(script, use, tmp_path / "a.sqlite")


def test_reasoning_apart_is_put_back_into_a_text(tmp_path: Path) -> None:
    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert await annotator.ask(question(schema=None, read=str)) == "<think>so</think>\\boxed{2}"

    script = lambda *_: (200, said("\\boxed{2}", reasoning_content="so"))  # noqa: E731
    with_server(script, use, tmp_path / "a.sqlite")


def test_answers_are_paid_for_once_and_survive(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> int:
        await annotator.ask(question("a lone surrogate \udc81 and U+2028 \u2028"))
        return len(seen)

    script = lambda *_: (200, said('{"n": 1, "x": "\\udc81"}'))  # noqa: E731
    assert with_server(script, use, path) == 1
    assert with_server(script, use, path) == 0

    async def spent(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        assert (annotator.budget.requests, annotator.budget.prompt) == (1, 10)
        await annotator.ask(question("a lone surrogate \udc81 and U+2028 \u2028", sample=1))
        assert annotator.budget.requests == 2

    with_server(script, spent, path)


def test_the_budget_is_never_overspent(tmp_path: Path) -> None:
    budget = Budget(tokens=1000, money=1.0, prices=Prices(1000.0, 1000.0))

    async def use(annotator: Annotator, seen: list[dict[str, Any]]) -> None:
        asks = [annotator.ask(question(f"q{n}", max_tokens=50)) for n in range(200)]
        done = await asyncio.gather(*asks, return_exceptions=True)
        stopped = [one for one in done if isinstance(one, BudgetSpent)]
        assert stopped and len(stopped) < 200
        assert "a larger one goes on" in str(stopped[0])
        assert budget.prompt + budget.sampled <= 1000
        assert budget.cost <= 1.0

    with_server(lambda *_: (200, said('{"n": 1}')), use, tmp_path / "a.sqlite", budget=budget)


def test_pace_spaces_requests_and_honours_pauses() -> None:
    async def main() -> list[float]:
        clock = Clock()
        loop = asyncio.get_running_loop()
        pace = Pace(requests=60, tokens=600, sleep=clock)
        now = loop.time()
        loop.time = lambda: now + sum(clock.waited)  # type: ignore[method-assign]
        await pace.turn()
        await pace.turn()
        pace.took(100)
        await pace.turn()
        pace.pause(30)
        await pace.turn()
        return clock.waited

    waited = asyncio.run(main())
    assert [round(w, 3) for w in waited] == [1.0, 11.0, 30.0]
