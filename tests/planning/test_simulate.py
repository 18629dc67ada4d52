"""Simulated replicas: the arithmetic of queues that can be done by hand, and the command."""

import asyncio
import random
from typing import Any

import pytest

from anabranch.engines.profile import Profile, save_profile
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import UsageError
from anabranch.jsonl import write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import reference_trajectory
from anabranch.lab.families import draw
from anabranch.metrics import trajectory_metrics
from anabranch.planning import Arm, ProfiledReplica, Traffic, Work, simulate
from anabranch.records import Trajectory

STEP = 0.01


def profile(**fields: Any) -> Profile:
    return Profile(**{"base": STEP, "engine": "test", **fields})


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Trajectory]]:
    tokenizer = load_tokenizer(bundled_model())
    rng = random.Random(0)
    problems = [draw(rng, "chains", (4, 3)) for _ in range(5)]
    return {
        form: [reference_trajectory(problem, form, tokenizer) for problem in problems]  # type: ignore[arg-type]
        for form in ("parallel", "sequential")
    }


def served(replica_profile: Profile, works: list[tuple[float, int, int]]) -> list[float]:
    """When calls ``(arrival, prompt, tokens)`` are done, all on one replica."""

    async def main() -> list[float]:
        replica = ProfiledReplica(replica_profile)
        loop = asyncio.get_running_loop()
        ends = [0.0] * len(works)

        async def one(number: int, arrival: float, prompt: int, tokens: int) -> None:
            await asyncio.sleep(arrival)
            await replica.serve(Work(tuple(range(number * 1000, number * 1000 + prompt)), tokens))
            ends[number] = loop.time()

        await asyncio.gather(*(one(n, *work) for n, work in enumerate(works)))
        assert replica.sampled == sum(tokens for _, _, tokens in works) and not replica.calls
        await replica.close()
        return ends

    return run_virtual(main())


def test_a_lone_call_takes_a_step_for_each_token() -> None:
    assert served(profile(), [(0, 10, 25)]) == [pytest.approx(25 * STEP)]
    assert served(profile(latency=0.5), [(0, 10, 25)]) == [pytest.approx(25 * STEP + 0.5)]
    # The prompt is computed in the first step.
    assert served(profile(prefill=0.001), [(0, 10, 25)]) == [pytest.approx(25 * STEP + 0.01)]


def test_a_batch_shares_its_steps_and_pays_for_each_output() -> None:
    ends = served(profile(sequence=0.001), [(0, 10, 20), (0, 10, 10)])
    assert ends[1] == pytest.approx(10 * (STEP + 0.002))
    assert ends[0] == pytest.approx(10 * (STEP + 0.002) + 10 * (STEP + 0.001))


def test_context_grows_with_every_token() -> None:
    (end,) = served(profile(base=0.0, context=1e-4), [(0, 10, 5)])
    # The prompt's step, then four with 11 … 14 tokens before them.
    assert end == pytest.approx(1e-4 * (10 + 11 + 12 + 13 + 14), rel=0.15)


def test_no_more_run_than_may() -> None:
    ends = served(profile(max_num_seqs=1), [(0, 10, 10), (0, 10, 10), (0, 10, 10)])
    assert ends == [pytest.approx(STEP * 10 * n) for n in (1, 2, 3)]


def test_a_late_call_waits_for_the_step_that_runs() -> None:
    ends = served(profile(), [(0, 10, 100), (0.2345, 10, 10)])
    assert ends[0] == pytest.approx(1.0)
    assert ends[1] == pytest.approx(0.24 + 10 * STEP)


def test_a_cancelled_call_leaves_the_batch() -> None:
    async def main() -> float:
        replica = ProfiledReplica(profile(max_num_seqs=1))
        first = asyncio.ensure_future(replica.serve(Work((1, 2), 1000)))
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(replica.serve(Work((3, 4), 5)))
        await asyncio.sleep(0.1)
        first.cancel()
        await second
        await replica.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 11  # not behind all thousand tokens of the first


def test_alone_an_answer_takes_its_critical_path(recorded: dict[str, list[Trajectory]]) -> None:
    for form, name in (("sequential", "sequential"), ("parallel", "fork-join")):
        arm = Arm(name, recorded[form][:1])  # type: ignore[arg-type]
        figures = simulate(profile(), arm, Traffic(concurrency=1, count=3), 1)
        path = trajectory_metrics(recorded[form][0]).critical_path
        assert figures.p50 == pytest.approx(path * STEP, rel=0.02)
    assert figures.answers == 3 and figures.utilisation == pytest.approx(1.0, abs=0.02)


def test_replicas_share_the_load_and_cost_what_they_cost(
    recorded: dict[str, list[Trajectory]],
) -> None:
    arm = Arm("fork-join", recorded["parallel"])
    kind = profile(max_num_seqs=4)
    crowded = simulate(kind, arm, Traffic(concurrency=64, count=64), 1, price=3.6)
    shared = simulate(kind, arm, Traffic(concurrency=64, count=16), 4, price=3.6)
    assert shared.p50 < 0.4 * crowded.p50
    assert shared.answers_per_second == pytest.approx(4 * crowded.answers_per_second, rel=0.25)
    assert shared.cost == pytest.approx(1000 * 4 * 0.001 / shared.answers_per_second)


def test_a_thousand_replicas_are_simulated_by_a_part(recorded: dict[str, list[Trajectory]]) -> None:
    arm = Arm("fork-join", recorded["parallel"])
    many = simulate(profile(), arm, Traffic(rate=500.0, count=5), 1000)
    assert many.simulated < 1000 and many.answers == 5 * many.simulated
    assert many.answers_per_second == pytest.approx(500, rel=0.5)
    again = simulate(profile(), arm, Traffic(rate=500.0, count=5), 1000)
    assert again == many


def test_holding_branches_back_keeps_the_engine_from_being_crowded(
    recorded: dict[str, list[Trajectory]],
) -> None:
    busy = profile(sequence=0.01)
    traffic = Traffic(concurrency=16, count=32)
    free = simulate(busy, Arm("fork-join", recorded["parallel"]), traffic, 1)
    held = simulate(busy, Arm("load-aware", recorded["parallel"], room=16), traffic, 1)
    idle = simulate(busy, Arm("load-aware", recorded["parallel"], 16), Traffic(concurrency=1), 1)
    assert held.held_back > 0 and free.held_back == idle.held_back == 0
    assert held.tokens_per_second == pytest.approx(free.tokens_per_second, rel=0.3)


def test_what_cannot_be_planned_is_refused(recorded: dict[str, list[Trajectory]]) -> None:
    with pytest.raises(UsageError, match="no trajectories"):
        simulate(profile(), Arm("fork-join", []), Traffic(rate=1), 1)
    with pytest.raises(UsageError, match="one of them"):
        simulate(profile(), Arm("fork-join", recorded["parallel"]), Traffic(), 1)


def test_the_command(
    cli: Any, fails: Any, tmp_path: Any, recorded: dict[str, list[Trajectory]]
) -> None:
    for form, rows in recorded.items():
        write_records(tmp_path / f"{form}.jsonl", rows)
    save_profile(profile(knee=8), tmp_path / "profile.json")
    said = cli("plan", tmp_path / "profile.json", tmp_path / "parallel.jsonl", "--sequential",
               tmp_path / "sequential.jsonl", "--concurrency", 2, "--replicas", "1,30",
               "--price", 2, "--count", 3).stdout  # fmt: skip
    assert said.count("fork-join") == said.count("load-aware") == said.count("sequential") == 2
    assert "were simulated" in said
    assert "one of them" in fails("plan", tmp_path / "profile.json", tmp_path / "parallel.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert "holds no trajectory" in fails(
        "plan", tmp_path / "profile.json", tmp_path / "empty.jsonl", "--rate", 1
    )
    (tmp_path / "bad.json").write_text("{}")
    assert "base" in fails("plan", tmp_path / "bad.json", tmp_path / "parallel.jsonl", "--rate", 1)
