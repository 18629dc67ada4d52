"""A completions server that refuses, breaks off, hangs or is not there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from anabranch.engines.base import Call, Chunk
from anabranch.engines.completions import CompletionsEngine, Retries, Timeouts
from anabranch.engines.loopback import Fault, LoopbackServer, Manners
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import ContextWindowError, EngineError, UsageError

TOKENIZER = CharTokenizer()
CALL = Call(ids=tuple(TOKENIZER.encode("prompt")), stop=("</Path>",), max_tokens=400)
TEXT = "0123456789</Path>"
SLOW = Manners(pace=0.002)


@dataclass
class Seen:
    """What a call came to, and what the server saw of it."""

    chunks: list[Chunk] = field(default_factory=list)
    error: EngineError | None = None
    attempts: int = 0
    outcomes: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    settled: bool = False

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


def meet(
    faults: Iterable[Fault | None],
    *,
    manners: Manners = SLOW,
    retries: Retries | None = None,
    timeouts: Timeouts | None = None,
    call: Call = CALL,
) -> Seen:
    """One call that meets these faults in turn."""
    seen = Seen()

    async def wait(seconds: float) -> None:
        seen.waits.append(seconds)

    async def main() -> None:
        async with LoopbackServer(TOKENIZER, TEXT, manners=manners) as server:
            engine = CompletionsEngine(
                server.url, tokenizer=TOKENIZER, retries=retries, timeouts=timeouts
            )
            engine._transport._sleep = wait
            async with engine:
                before = len(server.served)
                server.faults.extend(faults)
                try:
                    async for chunk in engine.generate(call):
                        seen.chunks.append(chunk)
                except EngineError as error:
                    seen.error = error
                seen.settled = await server.settled()
                seen.attempts = len(server.served) - before
                seen.outcomes = [request.outcome for request in server.served[before:]]

    asyncio.run(main())
    return seen


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    seen = meet([Fault("status", status=status), Fault("status", status=status)])
    assert seen.error is None
    assert seen.text == TEXT
    assert seen.attempts == 3
    assert 0.25 <= seen.waits[0] <= 0.5 <= seen.waits[1] <= 1.0


def test_retry_after_is_obeyed() -> None:
    seen = meet([Fault("status", status=429, headers={"Retry-After": "7"})])
    assert seen.error is None
    assert seen.waits == [7.0]


def test_retry_after_beyond_the_deadline_ends_at_once() -> None:
    fault = Fault("status", status=429, headers={"Retry-After": "900"})
    seen = meet([fault], retries=Retries(deadline=60))
    assert seen.error is not None
    assert seen.waits == []
    assert "answered 429: busy" in str(seen.error)


def test_exactly_the_configured_number_of_attempts() -> None:
    """Restates inspect_ai#3558: layers of retries must not multiply."""
    seen = meet([Fault("status")] * 9, retries=Retries(attempts=2))
    assert seen.attempts == 3
    assert seen.error is not None
    assert not seen.error.retryable
    assert str(seen.error).endswith("answered 503: busy (after 3 attempts)")


def test_without_retries_here_the_caller_may_try() -> None:
    seen = meet([Fault("status")], retries=Retries(attempts=0))
    assert seen.error is not None
    assert seen.error.retryable
    assert seen.attempts == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
def test_other_refusals_are_final(status: int) -> None:
    body = '{"error": {"message": "no such thing"}}'
    seen = meet([Fault("status", status=status, body=body)])
    assert seen.attempts == 1
    assert seen.error is not None
    assert not seen.error.retryable
    assert f"/v1/completions answered {status}: no such thing" in str(seen.error)
    assert "\n" not in str(seen.error)


def test_a_refusal_for_the_window_has_the_numbers() -> None:
    message = "maximum context length is 100 tokens and your request has 90 input tokens"
    body = json.dumps({"error": {"message": message}})
    seen = meet([Fault("status", status=400, body=body)])
    assert isinstance(seen.error, ContextWindowError)
    assert (seen.error.window, seen.error.prompt_tokens) == (100, 90)
    assert seen.attempts == 1


@pytest.mark.parametrize("kind", ["reset", "end", "type"])
def test_what_fails_before_any_output_is_sent_again(kind: str) -> None:
    seen = meet([Fault(kind)])  # type: ignore[arg-type]
    assert seen.error is None
    assert seen.text == TEXT
    assert seen.attempts == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("reset", "broke the connection in the middle of its output"),
        ("end", "closed the stream before the output was finished"),
        ("torn", "sent an event that is not JSON"),
        ("garbage", "sent an event that is not JSON"),
        ("error", "broke off the stream: the engine died"),
    ],
)
def test_what_fails_after_a_token_is_left_to_the_caller(kind: str, words: str) -> None:
    seen = meet([Fault(kind, after=3)])  # type: ignore[arg-type]
    assert seen.attempts == 1
    assert seen.text == "012"
    assert seen.error is not None
    assert seen.error.retryable
    assert words in str(seen.error)
    assert seen.settled


@pytest.mark.parametrize("kind", ["joined", "merged"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_joined_events_are_read_one_by_one(kind: str, line_end: str) -> None:
    manners = replace(SLOW, line_end=line_end, comments=True)
    seen = meet([Fault(kind, after=2)], manners=manners)  # type: ignore[arg-type]
    assert seen.error is None
    assert seen.text == TEXT
    assert [token for chunk in seen.chunks for token in chunk.ids] == TOKENIZER.encode(TEXT)


def test_an_event_that_comes_twice_counts_once() -> None:
    seen = meet([Fault("double", after=3)])
    assert seen.error is None
    assert seen.text == TEXT


def test_an_event_that_comes_twice_counts_once_by_the_servers_running_count() -> None:
    seen = meet([Fault("double", after=3)], call=replace(CALL, logprobs=False))
    assert seen.error is None
    assert seen.text == TEXT


def test_an_event_that_comes_twice_without_a_place_or_count_is_noticed() -> None:
    manners = replace(SLOW, running_usage=False)
    call = replace(CALL, logprobs=False)
    seen = meet([Fault("double", after=3)], call=call, manners=manners)
    assert seen.error is not None
    assert seen.error.retryable
    assert "a part came twice" in str(seen.error)
    assert all(chunk.finish is None for chunk in seen.chunks)


def test_a_stream_that_falls_silent_is_closed_and_not_sent_again() -> None:
    """Restates openai-python#3828: a started generation is not repeated by time-out."""
    seen = meet([Fault("stall", after=3)], timeouts=Timeouts(between=0.05))
    assert seen.attempts == 1
    assert seen.text == "012"
    assert seen.error is not None
    assert not seen.error.retryable
    assert "was silent for 0.05 s in the middle of its output" in str(seen.error)
    assert seen.outcomes == ["left"]


def test_a_server_that_never_begins_is_closed() -> None:
    began = time.monotonic()
    seen = meet([Fault("stall")], timeouts=Timeouts(first=0.2))
    assert time.monotonic() - began < 2
    assert seen.attempts == 1
    assert seen.error is not None
    assert str(seen.error).endswith("gave no output within 0.2 s")
    assert seen.outcomes == ["left"]


def test_the_deadline_bounds_all_attempts_together() -> None:
    seen = meet([Fault("status"), Fault("stall")], retries=Retries(deadline=0.6, backoff=0.01))
    assert seen.attempts == 2
    assert seen.error is not None
    assert "gave no output within" in str(seen.error)


def test_leaving_the_iterator_closes_the_connection() -> None:
    """Restates vllm#54947 and sglang#36333: a client that is gone must be seen to be gone."""

    async def main() -> tuple[bool, list[str]]:
        manners = Manners(pace=0.01)
        server = LoopbackServer(TOKENIZER, "x" * 10_000, manners=manners)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            outputs = [engine.generate(replace(CALL, max_tokens=9_000)) for _ in range(8)]
            for output in outputs:
                assert (await anext(output)).text
            assert server.running == 8
            for output in outputs:
                await output.aclose()
            settled = await server.settled(1.0)
            return settled, [request.outcome for request in server.served[2:]]

    assert asyncio.run(main()) == (True, ["left"] * 8)


@pytest.mark.parametrize("fault", [None, Fault("stall"), Fault("stall", after=2)])
def test_cancelling_the_task_closes_the_connection(fault: Fault | None) -> None:
    async def main() -> tuple[bool, str]:
        manners = Manners(pace=0.01)
        server = LoopbackServer(TOKENIZER, "x" * 10_000, manners=manners)
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            server.faults.append(fault)

            async def consume() -> None:
                async for _ in engine.generate(CALL):
                    pass

            task = asyncio.create_task(consume())
            await server.until(lambda: len(server.served) == 3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await server.settled(1.0), server.served[-1].outcome

    assert asyncio.run(main()) == (True, "left")


def test_a_server_that_is_down_is_one_line() -> None:
    async def main() -> None:
        async with LoopbackServer(TOKENIZER) as server:
            url = server.url
        engine = CompletionsEngine(url + "/v1", tokenizer=TOKENIZER, retries=Retries(backoff=0.001))
        with pytest.raises(EngineError) as caught:
            await engine.open()
        expected = f"cannot reach {url}: Connection refused; is the server running?"
        assert str(caught.value) == expected + " (after 3 attempts)"

    asyncio.run(main())


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", "http://h:x"])
def test_what_is_not_a_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="is not a server URL"):
        CompletionsEngine(url, tokenizer=TOKENIZER)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_every_form_of_the_url_is_taken(ending: str) -> None:
    engine = CompletionsEngine("http://host:80/base" + ending, tokenizer=TOKENIZER)
    assert engine.name == "http://host:80/base"


def test_an_idle_connection_is_not_used_beyond_the_servers_patience() -> None:
    """A pooled connection that the server has closed costs nothing but a new connection."""

    async def main() -> str:
        server = LoopbackServer(TOKENIZER, "ok")
        async with server, CompletionsEngine(server.url, tokenizer=TOKENIZER) as engine:
            port = int(server.url.rsplit(":", 1)[1])
            await server.__aexit__()
            again = LoopbackServer(TOKENIZER, "ok again", port=port)
            async with again:
                chunks = [chunk async for chunk in engine.generate(CALL)]
            return "".join(chunk.text for chunk in chunks)

    assert asyncio.run(main()) == "ok again"
