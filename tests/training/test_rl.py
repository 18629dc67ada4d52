"""The loop: it learns, it is measured, it resumes to the same weights, and its faults are loud."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_cases import POOL, fresh_model, parts, small_config, task_of

from anabranch.decoding import Setup
from anabranch.engines.base import Call
from anabranch.engines.local import LocalEngine
from anabranch.errors import AnabranchError, EngineError, ModelError, UsageError
from anabranch.jsonl import read_records
from anabranch.lab.rl_tasks import grade_lab
from anabranch.records import Problem, Trajectory, Verdict
from anabranch.training.rl import RLResult, train_rl
from anabranch.training.rollouts import EngineSampler, LockstepSampler
from anabranch.training.weight_sync import LocalSync


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def unchanged(model: Any, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def run(grade: Any = grade_lab, *overrides: str, **more: Any) -> tuple[RLResult, Any]:
    model, tokenizer, sampler, task = parts(grade)
    before = weights(model)
    config = small_config(*overrides)
    return train_rl(model, tokenizer, task, config, sampler=sampler, **more), before


def always(status: str) -> Callable[[Problem, Trajectory], Verdict]:
    return lambda problem, trajectory: Verdict(status=status, reason="so")  # type: ignore[arg-type]


def test_a_step_trains_and_says_what_it_did(tmp_path: Path) -> None:
    result, before = run(grade_lab, "steps=2", "keep_trajectories=1", output=tmp_path)
    assert result.steps == 2
    assert not unchanged(result.model, before)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["version"] for row in rows] == [1, 2]
    for row in rows:
        assert row["stepped"] and row["reward_name"] == "varied"
        assert row["gap"] < 1e-4 and row["gap_max"] < 1e-3
        assert row["groups_drawn"] == 2
        assert row["part_base"] == pytest.approx(2 * row["accuracy"] - 1)
        assert row["seconds"] >= row["seconds_sampling"] + row["seconds_update"]
    kept = list(read_records(tmp_path / "trajectories" / "step-2.jsonl", Trajectory))
    assert [t.policy_version for t in kept] == ["1", "1"]
    assert all(t.verdict is not None and t.sampled_tokens <= 60 for t in kept)
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_the_same_seed_gives_the_same_bits() -> None:
    one, before = run(grade_lab, "learning_rate=1e-3")
    other, _ = run(grade_lab, "learning_rate=1e-3")
    assert not unchanged(one.model, before)
    assert unchanged(one.model, weights(other.model))


def test_kill_and_resume_gives_the_same_weights(tmp_path: Path) -> None:
    job = [sys.executable, str(Path(__file__).parent / "rl_job.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(
        [*job, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.strip() == "step 3":
            break
    killed.send_signal(signal.SIGKILL)
    killed.stdout.close()
    killed.wait()
    done = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert done & {"checkpoint-2", "checkpoint-3"}
    subprocess.run([*job, str(tmp_path / "run"), "resume"], check=True, env=environment)
    model, tokenizer, sampler, task = parts()
    config = small_config("steps=4", "save_every=1")
    whole = train_rl(model, tokenizer, task, config, sampler=sampler)
    other, _ = fresh_model()
    other.load_state_dict(type(other).from_pretrained(tmp_path / "run" / "model").state_dict())
    assert unchanged(whole.model, weights(other))
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="learning_rate"):
        train_rl(
            model,
            tokenizer,
            task,
            small_config("steps=4", "save_every=1", "learning_rate=1e-2"),
            output=tmp_path / "run",
            resume=True,
            sampler=sampler,
        )


@pytest.mark.parametrize("status", ["correct", "wrong"])
def test_equal_rewards_leave_the_weights_alone(status: str) -> None:
    result, before = run(always(status), "steps=2", "schedule=accuracy")
    assert unchanged(result.model, before)
    assert [row["stepped"] for row in result.rows] == [False, False]
    assert result.rows[0]["groups_all_right" if status == "correct" else "groups_all_wrong"] == 2


def test_all_truncated_is_harmless() -> None:
    base = "schedule.rewards.r={base={kind='correctness', truncated=0.0}}"
    stages = "schedule.stages=[{cycle=[{reward='r'}]}]"
    overrides = ("steps=1", "limits.max_total_tokens=2", "limits.on_exhausted=stop", base, stages)
    result, before = run(grade_lab, *overrides)
    assert unchanged(result.model, before)
    assert result.rows[0]["share_truncated"] == 1.0
    assert result.rows[0]["loss"] == 0.0
    assert result.rows[0]["tokens"] == 16


def test_every_rollout_malformed_is_counted() -> None:
    def malformed(problem: Problem, trajectory: Trajectory) -> Verdict:
        return Verdict(status="unparsed")

    result, before = run(malformed, "steps=1", "schedule=accuracy")
    assert unchanged(result.model, before)
    row = result.rows[0]
    assert row["share_unparsed"] + row["share_truncated"] + row["share_failed"] == 1.0


def test_nothing_to_learn_stops_with_a_report(tmp_path: Path) -> None:
    with pytest.raises(AnabranchError, match=r"no rollout had an advantage in 2 steps") as raised:
        run(always("wrong"), "steps=9", "patience=2", "schedule=accuracy", output=tmp_path)
    assert "groups_all_wrong 2" in str(raised.value)
    assert (tmp_path / "checkpoint-2").is_dir()


def test_dynamic_sampling_is_bounded_and_reported() -> None:
    """DAPO#22: a sampler that never fills."""
    result, _ = run(always("correct"), "steps=1", "dynamic.draws=3", "schedule=accuracy")
    row = result.rows[0]
    assert (row["groups_drawn"], row["groups_kept"], row["groups_all_right"]) == (6, 0, 6)
    result, _ = run(grade_lab, "steps=1", "dynamic.draws=4")
    row = result.rows[0]
    assert row["groups_kept"] == row["groups_learnable"]
    # Drawn until there are enough, or to the bound.
    assert row["groups_kept"] == 2 or row["groups_drawn"] == 8


def test_a_grader_that_errs_on_everything_stops() -> None:
    def broken(problem: Problem, trajectory: Trajectory) -> Verdict:
        raise KeyError("gold")

    with pytest.raises(AnabranchError, match=r"grader failed on 8 of 8 .*KeyError: 'gold'"):
        run(broken)
    with pytest.raises(AnabranchError, match="grader failed on 8 of 8"):
        run(always("timeout"))


def test_a_grader_that_errs_sometimes_takes_rollouts_out() -> None:
    seen: list[str] = []

    def sometimes(problem: Problem, trajectory: Trajectory) -> Verdict:
        seen.append(trajectory.id)
        if len(seen) % 4 == 0:
            return Verdict(status="error", reason="busy")
        return grade_lab(problem, trajectory)

    result, _ = run(sometimes, "steps=1")
    assert result.rows[0]["share_ungradable"] == 0.25


def test_a_gradient_that_is_no_number_stops_and_keeps_the_batch(tmp_path: Path) -> None:
    model, tokenizer, sampler, task = parts()
    before = weights(model)
    parameter = next(model.parameters())
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(ModelError, match=r"step 1: the gradient's norm is nan.*failed-step-1"):
        train_rl(model, tokenizer, task, small_config(), sampler=sampler, output=tmp_path)
    assert unchanged(model, before)
    kept = list(read_records(tmp_path / "failed-step-1.jsonl", Trajectory))
    assert len(kept) == 8 and all(t.verdict for t in kept)


class Mortal:
    """A local engine that dies for good at a call, until it is started again."""

    def __init__(self, engine: LocalEngine, dies_at: int) -> None:
        self.inner, self.dies_at, self.calls, self.dead = engine, dies_at, 0, False
        self.name, self.model, self.tokenizer = "mortal", engine.model, engine.tokenizer
        self.capabilities = engine.capabilities

    async def generate(self, call: Call) -> Any:
        self.calls += 1
        self.dead = self.dead or self.calls == self.dies_at
        if self.dead:
            raise EngineError("connection refused")
        async for chunk in self.inner.generate(call):
            yield chunk

    async def close(self) -> None:
        await self.inner.close()


class Restart:
    """Weight sync that also starts a dead engine again."""

    def __init__(self, engine: Mortal) -> None:
        self.engine, self.inner = engine, LocalSync(engine.inner, shared=True)
        self.restarts = 0

    async def push(self, model: Any) -> None:
        if self.engine.dead:
            self.engine.dead = False
            self.restarts += 1
        await self.inner.push(model)


def with_engine(dies_at: int, *overrides: str) -> tuple[RLResult, Restart]:
    model, tokenizer = fresh_model()
    engine = Mortal(LocalEngine(model, tokenizer, threads=1), dies_at)
    sync = Restart(engine)
    sampler = EngineSampler(engine, sync, probe_gap=1e-3)
    try:
        task = task_of(tokenizer, sampler)
        result = train_rl(
            model, tokenizer, task, small_config("steps=2", *overrides), sampler=sampler
        )
    finally:
        sampler.close()
    return result, sync


def test_an_engine_that_dies_in_a_step_has_it_redone() -> None:
    undisturbed, _ = with_engine(0)
    disturbed, sync = with_engine(5)
    assert sync.restarts == 1
    assert disturbed.rows[0]["retried"] >= 3
    for one, other in zip(undisturbed.rows, disturbed.rows, strict=True):
        for name in ("accuracy", "reward", "tokens", "groups_drawn", "trained", "version"):
            assert one[name] == other[name], name
    assert disturbed.rows[1]["sync_gap"] < 1e-4


def test_an_engine_that_stays_dead_ends_the_run() -> None:
    with pytest.raises(EngineError, match=r"rollouts failed after 0 retries: .*refused.*resume"):
        with_engine(3, "engine_retries=0")


class Late(LockstepSampler):
    """Says of its first rollout that it is of an older policy."""

    def sample(self, setups: Sequence[Setup]) -> list[Trajectory]:
        first, *rest = super().sample(setups)
        return [first.model_copy(update={"policy_version": "-1"}), *rest]


def test_stale_rollouts_take_no_part() -> None:
    model, tokenizer = fresh_model()
    sampler = Late(model, tokenizer)
    task = task_of(tokenizer, sampler)
    one = train_rl(model, tokenizer, task, small_config("steps=1"), sampler=sampler)
    assert one.rows[0]["stale"] == 1
    model, tokenizer = fresh_model()
    sampler = Late(model, tokenizer)
    task = task_of(tokenizer, sampler)
    config = small_config("steps=1", "max_staleness=1")
    other = train_rl(model, tokenizer, task, config, sampler=sampler)
    assert other.rows[0]["stale"] == 0
    assert one.rows[0]["tokens"] < other.rows[0]["tokens"]


def test_several_epochs_and_kl_need_old_and_reference() -> None:
    result, _ = run(grade_lab, "epochs=3", "loss.kl=0.1", "learning_rate=1e-3", "steps=2")
    assert result.rows[0]["kl"] > 0
    assert result.rows[1]["clipped"] > 0


def test_stops_on_sigterm_and_goes_on(tmp_path: Path) -> None:
    def interrupt(row: dict[str, Any]) -> None:
        if row["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    first, _ = run(grade_lab, "steps=2", output=tmp_path, on_step=interrupt)
    assert first.interrupted and first.steps == 1
    second, _ = run(grade_lab, "steps=2", output=tmp_path, resume=True)
    assert not second.interrupted and second.steps == 2
    whole, _ = run(grade_lab, "steps=2")
    assert unchanged(whole.model, weights(second.model))


def test_no_forks_are_allowed_and_answers_are_still_possible() -> None:
    result, _ = run(grade_lab, "steps=1", "limits.max_blocks=0", "prompts=4", "rollouts=8")
    assert result.rows[0]["activation"] == 0.0
    assert result.rows[0]["share_truncated"] + result.rows[0]["share_unparsed"] < 1


def test_problems_come_once_a_pass_and_by_difficulty() -> None:
    from anabranch.training.rl_problems import Problems

    given = [
        Problem.model_validate({"id": str(n), "problem": "1?", "difficulty": n / 10})
        for n in range(10)
    ]
    problems = Problems({"main": given}, seed=3)
    assert sorted(p.id for p in problems.draw("main", 10)) == [str(n) for n in range(10)]
    easy = Problems(given, seed=3).draw("main", 6, difficulty=0.25)
    assert {p.id for p in easy} == {"0", "1", "2"}
    with pytest.raises(UsageError, match="no pool of problems 'easy'; known: main"):
        problems.draw("easy", 1)
    with pytest.raises(UsageError, match="no problem up to difficulty"):
        Problems(given[5:], seed=0).draw("main", 1, difficulty=0.1)
    with pytest.raises(UsageError, match="'main' is empty"):
        Problems([], seed=0)
    assert POOL[3] == POOL[3] != POOL[4]


def test_lockstep_and_engine_give_the_same_rollouts() -> None:
    """One machine, two drivers: the same seeds give the same answers."""
    from anabranch.records import Sampling

    model, tokenizer = fresh_model()
    lockstep = LockstepSampler(model, tokenizer, concurrency=3)
    task = task_of(tokenizer, lockstep)
    setups = [
        replace(
            task.setup(POOL[n]),
            id=str(n),
            sampling=Sampling(temperature=1.0, seed=n),
            problem=POOL[n],
            limits=small_config().limits,
        )
        for n in range(6)
    ]
    other = EngineSampler(LocalEngine(model, tokenizer, threads=1), None)
    try:
        for one, two in zip(lockstep.sample(setups), other.sample(setups), strict=True):
            assert one.ids == two.ids
            assert [r.kind for r in one.requests] == [r.kind for r in two.requests]
            assert one.outcome == two.outcome
    finally:
        other.close()
