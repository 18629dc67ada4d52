"""Faults at the gateway's edge: slow clients, cut stops, silence, restarts, shutdown, TLS."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.loopback.data import Fault, Manners
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway.store import AuditTrail, Budgets, Database
from anabranch.lab.bundled import bundled_model

Gateways = Callable[..., Any]
QUESTION = {"messages": [{"role": "user", "content": "say it"}]}


def raw(url: str, data: bytes, *, end: bool) -> bytes:
    """What comes back for bytes on the wire; ``end`` closes our side after them."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
        wire.sendall(data)
        if end:
            wire.shutdown(socket.SHUT_WR)
        answer = b""
        while b"}" not in answer and (piece := wire.recv(4096)):
            answer += piece
        return answer


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"


def test_a_body_that_does_not_arrive_is_408(make_gateway: Gateways) -> None:
    gateway = make_gateway(body_seconds=0.2)
    answer = raw(gateway.url, HEAD + b'{"messages":', end=False)
    assert b" 408 " in answer.splitlines()[0]
    assert b'"code":"timeout"' in answer.replace(b" ", b"")


def test_a_client_that_hangs_up_within_its_body(gateway: Any) -> None:
    raw(gateway.url, HEAD + b'{"messages":', end=True)
    with urllib.request.urlopen(f"{gateway.url}/health", timeout=5) as answer:
        assert answer.status == 200
    assert gateway.upstream.served == [] and gateway.watcher.tickets == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("stop", "kept"), [("456", "123"), ("23456789", "1"), ("1", "")])
def test_a_stop_string_over_several_tokens(
    make_gateway: Gateways, stream: bool, stop: str, kept: str
) -> None:
    gateway = make_gateway(script=lambda request: "1234567890")
    gateway.upstream.manners = Manners(tokens_per_event=1)
    events = asyncio.run(ask(gateway.url, stop=[stop], stream=stream))
    choices = [choice for event in events for choice in event["choices"]]
    texts = [
        (choice["delta"] if stream else choice["message"]).get("content") for choice in choices
    ]
    assert "".join(filter(None, texts)) == kept
    assert choices[-1]["finish_reason"] == "stop"


def test_silence_is_filled_with_comments(make_gateway: Gateways) -> None:
    gateway = make_gateway(script=lambda request: "123", keep_alive=0.05)
    gateway.upstream.manners = Manners(pace=0.25)

    async def main() -> str:
        body = {**QUESTION, "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            return await answer.text()

    text = asyncio.run(main())
    assert text.count(": branches are running\n\n") >= 3 and text.endswith("data: [DONE]\n\n")


def test_an_upstream_that_restarts(make_gateway: Gateways) -> None:
    gateway = make_gateway(script=lambda request: "123")
    port = int(gateway.upstream.url.rpartition(":")[2])
    assert asyncio.run(ask(gateway.url))[0]["choices"][0]["message"]["content"] == "123"
    gateway.upstream.__exit__()
    assert asyncio.run(ask(gateway.url))[0]["status"] == 502
    tokenizer = load_tokenizer(bundled_model())
    with LoopbackServer(tokenizer, "456", port=port):
        assert asyncio.run(ask(gateway.url))[0]["choices"][0]["message"]["content"] == "456"
    gateway.upstream.__enter__()  # the fixture closes it


def test_a_cap_above_the_window_becomes_a_smaller_one(make_gateway: Gateways) -> None:
    """vllm#3574's kind: the window is full of prompt and cap together."""
    gateway = make_gateway(script=lambda request: "1" * 500)
    gateway.upstream.manners = Manners(window=64)
    (done,) = asyncio.run(ask(gateway.url, max_tokens=100_000))
    assert done["status"] == 200 and done["choices"][0]["finish_reason"] == "length"
    assert 0 < done["usage"]["completion_tokens"] <= 64


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_cap_holds_on_a_server_that_ignores_it(make_gateway: Gateways, field: str) -> None:
    gateway = make_gateway(script=lambda request: "1" * 500)
    gateway.upstream.manners = Manners(cap=False)
    (done,) = asyncio.run(ask(gateway.url, **{field: 20}))
    assert done["choices"][0]["message"]["content"] == "1" * 20
    assert done["choices"][0]["finish_reason"] == "length"


def test_all_spent_in_reasoning_is_length_and_says_so(make_gateway: Gateways) -> None:
    gateway = make_gateway(script=lambda request: "<Think>" + "1" * 500)
    (done,) = asyncio.run(ask(gateway.url, max_tokens=20))
    (choice,) = done["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is not None
    assert gateway.watcher.tickets[-1].outcome == "truncated"


def test_an_engine_in_trouble_is_not_stormed(make_gateway: Gateways) -> None:
    """Tries again only where the engine's own rules do: the gateway adds no factor to them."""
    gateway = make_gateway()
    refusal = Fault("status", status=400, body='{"error": {"message": "no"}}')
    gateway.upstream.faults.extend([refusal] * 50)
    assert asyncio.run(ask(gateway.url))[0]["status"] == 502
    assert len(gateway.upstream.served) + 50 - len(gateway.upstream.faults) <= 4


async def ask(url: str, **fields: Any) -> list[dict[str, Any]]:
    """The answer, or the events of a stream."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={**QUESTION, **fields}) as answer,
    ):
        if not fields.get("stream"):
            return [{**await answer.json(), "status": answer.status}]
        lines = (await answer.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@contextmanager
def served(upstream: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`anabranch serve` as a process of its own."""
    command = [sys.executable, "-m", "anabranch.cli.app", "serve", "--engine", upstream,
               "--tokenizer", str(bundled_model()), "--port", "0", "--name", "lab",
               *options]  # fmt: skip
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONUNBUFFERED="1")
    )
    assert server.stdout is not None
    try:
        yield server, server.stdout.readline().split()[-1].removesuffix("/v1")
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()


def test_sigterm_under_load_loses_nothing(tmp_path: Path) -> None:
    store = Database(str(tmp_path / "store.db"))
    store.migrate()
    Budgets(store).set("tokens", 100_000)
    reply, count = "7" * 30, 12
    options = ("--store", str(tmp_path / "store.db"), "--no-key", "--drain-seconds", "0.3")
    tokenizer = load_tokenizer(bundled_model())
    with (
        LoopbackServer(tokenizer, reply) as upstream,
        served(upstream.url, *options) as (server, url),
    ):
        upstream.manners = Manners(pace=0.03)

        async def main() -> list[list[dict[str, Any]]]:
            asked = [asyncio.ensure_future(ask(url, max_tokens=100)) for _ in range(count)]
            asked += [
                asyncio.ensure_future(ask(url, max_tokens=100, stream=True)) for _ in range(count)
            ]
            assert await asyncio.to_thread(_until, lambda: upstream.running == 2 * count)
            server.send_signal(signal.SIGTERM)
            await _says_draining(url)
            refused = (await ask(url, max_tokens=100))[0]
            assert refused["status"] == 503 and refused["error"]["code"] == "draining"
            return list(await asyncio.gather(*asked))

        answers = asyncio.run(main())
        assert server.wait(10) == 0
    for events in answers:
        parts = [c.get("message") or c["delta"] for event in events for c in event["choices"]]
        assert "".join(part.get("content") or "" for part in parts) == reply
    assert AuditTrail(store).verify()[1] is None
    (budget,) = Budgets(store).list()
    assert budget.reserved == 0 and budget.spent >= 2 * count * len(reply)
    store.close()


async def _says_draining(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(50):
            async with session.get(f"{url}/ready") as answer:
                if answer.status == 503:
                    assert (await answer.json())["status"] == "draining"
                    return
    raise AssertionError("/ready never said that it drains")


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_tls(tmp_path: Path, fails: Callable[..., str]) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert "belong together" in fails("serve", "--tls-cert", str(cert))
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with (
        LoopbackServer(load_tokenizer(bundled_model()), "12") as upstream,
        served(upstream.url, *options) as (_, url),
    ):
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(f"{url}/ready", context=context, timeout=10) as answer:
            assert answer.status == 200
