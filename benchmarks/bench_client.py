"""CPU time of the completions client per streamed request of 64 chunks. Prints JSON.

The server runs in a process of its own and paces its chunks, so that each arrives by itself as it
would from a real engine; only this process's CPU time is counted. Promise: ≤ 1.2 ms.

    python benchmarks/bench_client.py [--requests 2000] [--concurrency 32]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer
from anabranch.lab.tokenizer import save_tokenizer

CHUNKS = 64
PROMISE_MS = 1.2
PACE = 0.004
TEXT = ("12+34=46;" * CHUNKS)[: CHUNKS - 1]  # and an end token


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


async def measure(url: str, requests: int, concurrency: int) -> dict[str, float]:
    tokenizer = lab_tokenizer()
    call = Call(tuple(tokenizer.encode("1+2=?" * 40)), ("</Thread>", "</think>"), 1000)
    chunks = tokens = 0
    async with CompletionsEngine(url, tokenizer=tokenizer) as engine:

        async def work(count: int) -> None:
            nonlocal chunks, tokens
            for _ in range(count):
                async for chunk in engine.generate(call):
                    chunks += 1
                    tokens += len(chunk.ids)

        await asyncio.gather(*(work(1) for _ in range(concurrency)))
        chunks = tokens = 0
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(requests // concurrency) for _ in range(concurrency)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    made = requests // concurrency * concurrency
    assert tokens == made * CHUNKS
    return {
        "ms_cpu_per_request": round(1000 * cpu / made, 3),
        "chunks_per_request": round(chunks / made, 1),
        "requests_per_second": round(made / wall, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
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
        rounds = [
            asyncio.run(measure(url, options.requests, options.concurrency))
            for _ in range(options.rounds)
        ]
        server.communicate()
    best = min(each["ms_cpu_per_request"] for each in rounds)
    result = {
        "benchmark": "client",
        "ms_cpu_per_request": statistics.median(each["ms_cpu_per_request"] for each in rounds),
        "best_ms": best,
        "promise_ms": PROMISE_MS,
        "kept": best <= PROMISE_MS,
        "rounds": rounds,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
