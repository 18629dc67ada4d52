"""CPU time of the completions client per streamed request of 64 chunks. Prints JSON.

The server runs in a process of its own and sends one chunk of every stream at each step, as a
batching engine does, so no two chunks of a stream arrive together. Only this process's CPU time is
counted. Beside it stands what aiohttp alone takes to read the same bytes. Promise: ≤ 1.2 ms.

    python benchmarks/bench_client.py [--requests 2048] [--concurrency 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp

from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer
from anabranch.lab.tokenizer import save_tokenizer
from reporting import add_option, report

CHUNKS = 64
PROMISE_MS = 1.2
PACE = 0.004
TEXT = ("12+34=46;" * CHUNKS)[: CHUNKS - 1]  # and an end token


class Figures(NamedTuple):
    """Per request."""

    cpu_ms: float
    chunks: float


def lab_tokenizer() -> HFTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        return load_tokenizer(folder)


def serve() -> None:
    """The server's process: prints its URL, runs until its input ends."""
    server = LoopbackServer(lab_tokenizer(), TEXT, manners=Manners(pace=PACE))
    with server:
        print(server.url, flush=True)
        sys.stdin.read()


def prompt() -> list[int]:
    return lab_tokenizer().encode("1+2=?" * 40)


async def cpu_of(one: Callable[[], Awaitable[int]], requests: int, concurrency: int) -> Figures:
    """Milliseconds of CPU, and chunks, per call of ``one``; the first calls are warm-up."""
    await asyncio.gather(*(one() for _ in range(concurrency)))

    async def work() -> int:
        return sum([await one() for _ in range(requests // concurrency)])

    cpu = time.process_time()
    chunks = sum(await asyncio.gather(*(work() for _ in range(concurrency))))
    cpu = time.process_time() - cpu
    made = requests // concurrency * concurrency
    return Figures(1000 * cpu / made, chunks / made)


async def with_engine(url: str, requests: int, concurrency: int) -> Figures:
    call = Call(tuple(prompt()), ("</Thread>", "</think>"), 1000)
    async with CompletionsEngine(url, tokenizer=lab_tokenizer()) as engine:

        async def one() -> int:
            chunks = [chunk async for chunk in engine.generate(call)]
            assert sum(len(chunk.ids) for chunk in chunks) == CHUNKS
            return len(chunks)

        return await cpu_of(one, requests, concurrency)


async def with_aiohttp(url: str, requests: int, concurrency: int) -> Figures:
    body = {
        "model": "loopback",
        "prompt": prompt(),
        "max_tokens": 1000,
        "stream": True,
        "return_token_ids": True,
        "logprobs": 0,
    }
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> int:
            chunks = 0
            async with session.post(url + "/v1/completions", json=body) as response:
                while await response.content.readany():
                    chunks += 1
            return chunks

        return await cpu_of(one, requests, concurrency)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    add_option(parser)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        size = (url, options.requests, options.concurrency)
        rounds = [
            (asyncio.run(with_engine(*size)), asyncio.run(with_aiohttp(*size)))
            for _ in range(options.rounds)
        ]
        server.communicate()
    best = min(own.cpu_ms for own, _ in rounds)
    result = {
        "benchmark": "client",
        "cpu_ms": round(best, 3),
        "cpu_ms_median": round(statistics.median(own.cpu_ms for own, _ in rounds), 3),
        "aiohttp_alone_cpu_ms": round(min(bare.cpu_ms for _, bare in rounds), 3),
        "chunks": round(rounds[0][0].chunks, 1),
        "concurrency": options.concurrency,
        "promise_ms": PROMISE_MS,
        "kept": best <= PROMISE_MS,
    }
    report(result, options.json)


if __name__ == "__main__":
    main()
