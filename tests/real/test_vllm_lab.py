"""The bundled model behind a real vLLM server: fork-join is right, cached, and exact."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.engines.completions import CompletionsEngine
from anabranch.lab.bundled import bundled_model
from anabranch.lab.evaluate import FIRST_SUCCESS, solve_all
from anabranch.lab.families import draw_distinct
from anabranch.lab.sizes import PUZZLE_SIZE

pytestmark = pytest.mark.timeout(600)
BLOCK = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory, serve):
    with serve(bundled_model(), tmp_path_factory.mktemp("logs")) as running:
        yield running


def solve(server, problems, form, **options):
    async def main():
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            return await solve_all(engine, problems, form, concurrency=8, **options)

    return asyncio.run(main())


@pytest.mark.parametrize("form", ["sequential", "parallel"])
def test_both_families_are_solved(server, form):
    problems = [p for k in (2, 4, 6) for p in draw_distinct(31, "chains", (k, 5), 8)]
    problems += draw_distinct(31, "puzzle", PUZZLE_SIZE, 12)
    solved = solve(server, problems, form)
    assert sum(one.correct for one in solved) >= 0.95 * len(solved)
    assert all(one.forked == (form == "parallel") and one.well_formed for one in solved)


def test_branches_find_their_prefix_in_the_cache(server):
    solved = solve(server, draw_distinct(32, "chains", (6, 5), 6), "parallel")
    for one in solved:
        for request in one.trajectory.requests:
            if request.kind == "branch":
                shared = len(one.trajectory.ids_of(request.context[:-1]))
                assert request.cached_tokens >= shared // BLOCK * BLOCK - BLOCK
    cached = sum(r.cached_tokens for one in solved for r in one.trajectory.requests)
    assert cached > 0


def test_losers_of_a_race_stop_on_the_server(server):
    solved = solve(
        server, draw_distinct(33, "puzzle", PUZZLE_SIZE, 12), "parallel", policy=FIRST_SUCCESS
    )
    assert sum(one.correct for one in solved) >= 10
    assert any(b.outcome == "cancelled" for s in solved for b in s.trajectory.blocks[0].branches)

    async def idle():
        for _ in range(20):
            if server.running() == 0:
                return True
            await asyncio.sleep(0.05)
        return False

    assert asyncio.run(idle())


def test_every_sampled_token_has_the_log_prob_that_training_gives_it(server):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32)

    async def main():
        from anabranch.decoding import run
        from anabranch.lab.data import lab_setup

        problem = draw_distinct(34, "chains", (4, 5), 1)[0]
        async with CompletionsEngine(server.url, tokenizer=server.tokenizer) as engine:
            return await run(lab_setup(problem, "parallel", server.tokenizer), engine)

    done = asyncio.run(main())
    worst = 0.0
    for unit in done.units():
        ids = torch.tensor([[*unit.context, *unit.completion]])
        with torch.inference_mode():
            scores = model(ids).logits.log_softmax(-1)[0, len(unit.context) - 1 : -1]
        own = scores.gather(1, torch.tensor(unit.completion)[:, None])[:, 0]
        worst = max(worst, (own - torch.tensor(unit.logprobs)).abs().max().item())
    assert worst <= 1e-4, worst
