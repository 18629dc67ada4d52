"""Constrained decoding on a real vLLM server with a tiny random model: nothing but the grammar
makes its output well formed.

Takes about a minute, most of it the server's start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from anabranch.decoding import Setup, decode_many, run
from anabranch.dialects import get_dialect, parse
from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine
from anabranch.records import Limits, Sampling, Trajectory

if TYPE_CHECKING:
    from conftest import Serve, Server

WINDOW = 1024
DIALECTS = ["threadweaver", "parason", "parallel-r1", "parason:compact", "multiverse", "npr"]
LIMITS = Limits(
    max_total_tokens=900,
    max_path_tokens=500,
    max_branch_tokens=40,
    max_branches=3,
    max_blocks=3,
    max_depth=2,
    answer_reserve=16,
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, serve: Serve, random_llama: Callable[..., None]
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("random")
    random_llama(folder)
    with serve(folder, folder) as running:
        yield running


def setups(server: Server, dialect: str, count: int, min_blocks: int = 1) -> list[Setup]:
    prompt = "<bos>12+34=?"
    return [
        Setup(
            dialect=get_dialect(dialect),
            tokenizer=server.tokenizer,
            prompt=prompt,
            prompt_ids=tuple(server.tokenizer.encode(prompt)),
            sampling=Sampling(temperature=1.0, seed=seed),
            limits=LIMITS,
            mode="constrained",
            min_blocks=min_blocks,
            window=WINDOW,
            id=f"{dialect}-{seed}",
        )
        for seed in range(count)
    ]


def decoded(server: Server, wanted: list[Setup]) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            return await decode_many(wanted, engine, concurrency=4)

    return asyncio.run(main())


def test_the_server_takes_grammars(server: Server) -> None:
    async def main() -> None:
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            assert engine.capabilities.grammar is None
            assert await engine.find_grammar() == "xgrammar"
            assert engine.capabilities.grammar == "xgrammar"

    asyncio.run(main())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_random_model_is_well_formed(server: Server, dialect: str) -> None:
    done = decoded(server, setups(server, dialect, 6) + setups(server, dialect, 2, min_blocks=0))
    for one in done:
        document = parse(one.text, get_dialect(dialect))
        assert document.well_formed, (document.diagnostics, one.text)
        codes = {finding.code for finding in one.findings}
        assert "request_failed" not in codes, one.findings
        # A forced block is missing only where a limit came before its plan was complete.
        assert one.blocks or "cut_short" in codes or one not in done[:6]
        assert one.outcome in ("answered", "truncated")
        assert one.grammar == "xgrammar" and not one.retokenized
    assert any(one.blocks for one in done)


def test_bookkeeping_stays_exact(server: Server) -> None:
    for one in decoded(server, setups(server, "parason", 4)):
        for request in one.requests:
            output = one.segments[request.output]
            ends = request.finish == "eos"
            ids = output.ids[:-1] if ends else output.ids
            assert output.text == server.tokenizer.decode(ids)
            assert output.logprobs is not None and len(output.logprobs) == len(output.ids)
            assert len(output.ids) <= (request.max_tokens or 0)


def test_log_probs_are_of_what_the_grammar_leaves(server: Server) -> None:
    """Unlike those of the in-process engine, which are of the raw logits; see docs/modes.md."""
    prompt = tuple(server.tokenizer.encode("<bos>12+34=?"))
    call = Call(prompt, (), 4, temperature=1.0, seed=3, grammar='root ::= "12" [0-9]{2}')

    async def main() -> list[float]:
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            await engine.find_grammar()
            chunks = [chunk async for chunk in engine.generate(call)]
        return [score for chunk in chunks for score in chunk.logprobs or ()]

    one, two, *free = asyncio.run(main())
    assert (one, two) == (0.0, 0.0)  # the only token that was allowed
    assert all(score < -1 for score in free)


def test_the_same_seed_gives_the_same_trajectory(server: Server) -> None:
    async def main() -> tuple[Trajectory, Trajectory]:
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            (wanted,) = setups(server, "npr", 1)
            return await run(wanted, engine), await run(wanted, engine)

    first, again = asyncio.run(main())
    assert first.ids == again.ids
