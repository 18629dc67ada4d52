"""A thousand streams at once through the gateway, each checked, beside the bare upstream.

Three processes: a loopback engine, the gateway, and this client. Every prompt has an answer of its
own, so a token that is lost, doubled or given to another stream shows. Throughput is the ratio of
the two wall clocks, measured in turn in one run; memory is the gateway's peak. Promise: ≥ 0.7.

    python benchmarks/bench_gateway.py [--streams 1000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.sse import SseReader
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from reporting import add_option, report

TOKENS = 24
PACE = 0.05


def answer_of(prompt: str) -> str:
    """A text that belongs to one prompt alone."""
    number = prompt.rpartition("+")[2].rstrip("=?")
    return (f"{number}+" * TOKENS)[:TOKENS]


def serve_upstream() -> None:
    """The engine's process: prints its URL, runs until its input ends."""
    tokenizer = load_tokenizer(bundled_model())
    server = LoopbackServer(tokenizer, lambda r: answer_of(r.text), manners=Manners(pace=PACE))
    with server:
        print(server.url, flush=True)
        sys.stdin.read()


async def one(session: aiohttp.ClientSession, url: str, number: int, wish: dict[str, Any]) -> int:
    """One stream: its wrong characters; 0 when it got what belongs to it."""
    prompt = f"1+{number}=?"
    body = {"prompt": prompt, "stream": True, "max_tokens": 200, "temperature": 0, **wish}
    text, reader = "", SseReader()
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for piece in answer.content.iter_any():
            for data in reader.feed(piece):
                if data != "[DONE]":
                    for choice in json.loads(data)["choices"]:
                        text += choice["text"]
    return 0 if text == answer_of(prompt) else 1


async def streams(url: str, count: int, wish: dict[str, Any]) -> tuple[float, int]:
    """Wall clock of so many streams at once, and how many of them were wrong."""
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began = time.perf_counter()
        wrong = sum(await asyncio.gather(*(one(session, url, n, wish) for n in range(count))))
        return time.perf_counter() - began, wrong


def start(stack: ExitStack, *command: str) -> tuple[subprocess.Popen[str], str]:
    """A server's process and the URL that it prints last on its first line."""
    process = subprocess.Popen(
        [sys.executable, "-u", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    add_option(parser)
    options = parser.parse_args()
    if options.upstream:
        serve_upstream()
        return
    with ExitStack() as stack:
        _, upstream = start(stack, str(Path(__file__)), "--upstream")
        gateway, url = start(
            stack, "-m", "anabranch.cli.app", "serve", "--engine", upstream, "--tokenizer",
            str(bundled_model()), "--port", "0", "--mode", "sequential", "--max-requests", "100000",
        )  # fmt: skip
        url = url.removesuffix("/v1")
        ratios, bare, through, wrong = [], [], [], 0
        asyncio.run(streams(url, 20, {}))
        for _ in range(options.rounds):
            seconds, bad = asyncio.run(streams(upstream, options.streams, {"model": "loopback"}))
            bare.append(seconds)
            wrong += bad
            seconds, bad = asyncio.run(streams(url, options.streams, {}))
            through.append(seconds)
            wrong += bad
            ratios.append(bare[-1] / seconds)
        memory = psutil.Process(gateway.pid).memory_info().rss / 2**20
    report(
        {
            "streams": options.streams,
            "tokens": TOKENS,
            "wrong_streams": wrong,
            "bare_seconds": [round(s, 3) for s in bare],
            "gateway_seconds": [round(s, 3) for s in through],
            "throughput_ratio": round(statistics.median(ratios), 3),
            "promise": 0.7,
            "gateway_rss_mib": round(memory),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
