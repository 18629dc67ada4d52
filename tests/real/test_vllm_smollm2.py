"""SmolLM2-135M-Instruct on a real vLLM server, on request: ANABRANCH_SMOLLM2 names its folder.

It was trained for no dialect: what is looked at is the engine, with a real tokenizer and bfloat16.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from anabranch.dialects import dialect_names
from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine

pytestmark = pytest.mark.timeout(900)
PROBLEM = "Natalia sold 48 clips in April and half as many in May. How many in all?"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serve):
    folder = os.environ.get("ANABRANCH_SMOLLM2")
    if not folder:
        pytest.skip("ANABRANCH_SMOLLM2 names no folder with SmolLM2-135M-Instruct")
    with serve(Path(folder), tmp_path_factory.mktemp("logs"), "bfloat16", 2048, 2) as running:
        yield running


def test_doctor_tries_everything(server, cli):
    engine = ("--engine", server.url, "--tokenizer", server.model, "--exactness", "--json")
    done = cli("doctor", *engine, "--problem", PROBLEM, "--max-total", "200", code=None)
    found = json.loads(done.stdout)
    assert all(one["seen"] for one in found["abilities"]), found["abilities"]
    exact = found["exactness"]
    print({name: exact[name] for name in ("dtype", "rounding", "surprise", "tokens", "worst")})
    assert exact["tokens"] >= 200 and exact["exact"], exact


def test_branches_of_a_long_prefix_find_it_in_the_cache(server):
    prefix = tuple(server.tokenizer.encode("The river parts and joins again. " * 250))[:1544]

    async def ended(engine, call):
        return [chunk async for chunk in engine.generate(call)][-1].cached_tokens

    async def main():
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            await ended(engine, Call(prefix, (), 1))
            branches = [Call((*prefix, n), (), 32) for n in range(40, 48)]
            return await asyncio.gather(*(ended(engine, branch) for branch in branches))

    assert min(asyncio.run(main())) >= 0.9 * len(prefix)


@pytest.mark.parametrize("dialect", dialect_names())
def test_tags_of_several_tokens_come_through(server, cli, dialect):
    engine = ("--engine", server.url, "--tokenizer", server.model)
    asked = (
        "solve",
        PROBLEM,
        *engine,
        "--dialect",
        dialect,
        "--max-total",
        "150",
        "--reserve",
        "20",
    )
    done = json.loads(cli(*asked, "--json", code=None).stdout)
    assert (
        done["outcome"] in ("answered", "truncated", "protocol_error") and not done["retokenized"]
    )
