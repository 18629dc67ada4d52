"""Two real vLLM servers: exactness in bfloat16, and a fleet of which one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace

import pytest

from anabranch.decoding import Token, decode, decode_many
from anabranch.engines.completions import CompletionsEngine, Retries, Timeouts
from anabranch.engines.fleet import FleetEngine, Health
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import judge, with_limits
from anabranch.lab.families import draw_distinct
from anabranch.records import Sampling
from anabranch.training.exactness import check_exactness

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def half_server(tmp_path_factory, serve):
    """The bundled model in bfloat16; the last test kills it."""
    with serve(bundled_model(), tmp_path_factory.mktemp("half"), "bfloat16") as running:
        yield running


def test_bfloat16_is_exact_to_its_own_tolerance_and_not_to_that_of_float32(half_server, cli):
    """What the model samples by itself is within 2e-2. Hot draws are off by what the type costs."""

    async def sample():
        async with CompletionsEngine(half_server.url, tokenizer=half_server.tokenizer) as engine:
            setups = [
                replace(
                    with_limits(lab_setup(problem, "parallel", engine.tokenizer), engine, None),
                    sampling=Sampling(temperature=temperature, seed=3),
                    logprobs=True,
                )
                for problem in draw_distinct(34, "chains", (4, 5), 4)
                for temperature in (0.0, 1.0)
            ]
            return await decode_many(setups, engine, concurrency=4)

    found = check_exactness(asyncio.run(sample()), bundled_model(), half_server.tokenizer.decode)
    assert found.dtype == "bfloat16" and found.tokens > 1000
    assert found.worst.difference <= 2e-2, found
    engine = ("--engine", half_server.url, "--tokenizer", bundled_model(), "--exactness", "--json")
    hot = json.loads(cli("doctor", *engine).stdout)["exactness"]
    assert hot["worst"]["difference"] <= max(2e-2, 2 * hot["rounding"]), hot
    strict = cli("doctor", *engine, "--dtype", "float32", code=1)
    assert not json.loads(strict.stdout)["exactness"]["exact"]


def test_a_fleet_serves_the_command_line(lab_server, half_server, cli):
    problem = draw_distinct(39, "chains", (4, 5), 1)[0]
    engines = ("--engine", lab_server.url, "--engine", half_server.url)
    before = lab_server.sampled(), half_server.sampled()
    asked = ("solve", problem.text, *engines, "--tokenizer", bundled_model())
    done = json.loads(cli(*asked, "--routing", "spread", "--replica-limit", "4", "--json").stdout)
    assert done["outcome"] == "answered"
    after = lab_server.sampled(), half_server.sampled()
    assert all(now - then > 20 for now, then in zip(after, before, strict=True))


def test_affinity_keeps_a_trajectory_on_one_server(lab_server, half_server):
    async def main():
        async with fleet(lab_server, half_server, routing="affinity") as engine:
            for problem in draw_distinct(40, "chains", (4, 5), 4):
                counts = [one.calls for one in engine.statistics().replicas]
                setup = with_limits(lab_setup(problem, "parallel", engine.tokenizer), engine, None)
                async for _ in decode(setup, engine):
                    pass
                now = [one.calls for one in engine.statistics().replicas]
                assert sorted(b - a for a, b in zip(counts, now, strict=True)) == [0, 6]

    asyncio.run(main())


def fleet(*servers, **options):
    replicas = [
        CompletionsEngine(
            one.url,
            tokenizer=one.tokenizer,
            retries=Retries(attempts=0),
            timeouts=Timeouts(connect=2),
        )
        for one in servers
    ]
    return FleetEngine(replicas, health=Health(backoff=60), **options)


def test_a_server_that_is_killed_costs_one_retry_of_each_of_its_branches(lab_server, half_server):
    """The last test here: its server does not come back."""

    async def attempt(engine, problem):
        """Freezes the server at the first token of a branch; kills it if one still runs there."""
        setup = with_limits(lab_setup(problem, "parallel", engine.tokenizer), engine, None)
        frozen, killed, done, before = False, [], None, 0

        def decide():
            # Whatever had been sent has arrived by now: a branch that runs is in its middle.
            running = engine.statistics().replicas[1].running
            if running:
                killed.append(running)
                half_server.kill()
            else:
                os.killpg(half_server.process.pid, signal.SIGCONT)

        async for event in decode(replace(setup, logprobs=True), engine):
            branch = isinstance(event, Token) and event.kind == "branch"
            there = engine.statistics().replicas[1]
            if not branch:
                before = there.tokens
            elif not frozen and there.running and there.tokens > before:
                frozen = True
                os.killpg(half_server.process.pid, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(0.5, decide)
            done = event
        return done.trajectory, sum(killed)

    async def main():
        async with fleet(lab_server, half_server, routing="spread") as engine:
            for problem in draw_distinct(45, "chains", (6, 5), 10):
                done, killed = await attempt(engine, problem)
                if killed:
                    break
                await asyncio.sleep(0.6)  # the server is awake again
            return problem, done, killed, engine.statistics()

    problem, done, killed, seen = asyncio.run(main())
    assert killed > 0
    solved = judge(problem, "parallel", done)
    assert solved.correct and solved.well_formed
    branches = [request for request in done.requests if request.kind == "branch"]
    failed = [request for request in branches if request.finish == "error"]
    again = [request for request in branches if request.attempt == 1]
    # A branch that had no token yet goes elsewhere without a retry of its own.
    assert len(failed) == len(again) >= 1
    assert len(failed) + seen.failovers == killed
    assert {request.branch for request in failed} == {request.branch for request in again}
    assert all(request.finish == "stop" for request in again)
    lost = seen.replicas[1]
    assert not lost.healthy and lost.failed == killed and seen.replicas[0].failed == 0
