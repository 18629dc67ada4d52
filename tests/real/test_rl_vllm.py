"""Reinforcement learning with rollouts by a real vLLM: weights are proven after each step."""

from __future__ import annotations

import shutil

import pytest

from anabranch.config import load_config
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import EngineError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.rl_tasks import LabPool, grade_lab, make_chooser, open_setup
from anabranch.training.rl import Task, train_rl
from anabranch.training.rl_config import RLConfig
from anabranch.training.rollouts import EngineSampler
from anabranch.training.sft import load_for_training
from anabranch.training.weight_sync import VLLMSync

pytestmark = pytest.mark.timeout(900)
STEPS = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory, serve):
    """A copy of the bundled model in bf16 that may be overwritten, and its server."""
    folder = tmp_path_factory.mktemp("rl") / "policy"
    shutil.copytree(bundled_model(), folder)
    with serve(folder, tmp_path_factory.mktemp("log"), "bfloat16", dev=True) as server:
        yield server


def task(tokenizer, sampler):
    return Task(
        LabPool("chains", ((2, 5), (3, 5)), 3),
        lambda problem: open_setup(problem, tokenizer, sampler.engine),
        grade_lab,
    )


def config(steps):
    return load_config(
        RLConfig,
        overrides=[
            f"steps={steps}",
            "prompts=4",
            "rollouts=4",
            "learning_rate=2e-4",
            "beta2=0.98",
            "limits.max_total_tokens=400",
            "threads=1",
        ],
    )


def test_twenty_steps_with_the_weights_proven_after_each(served):
    model, _ = load_for_training(bundled_model())
    tokenizer = load_tokenizer(bundled_model())
    make_chooser(model, tokenizer, steps=40, tokens=1500)
    engine = CompletionsEngine(served.url, tokenizer=tokenizer)
    sampler = EngineSampler(engine, VLLMSync(served.url, served.model), probe_gap=0.02)
    try:
        result = train_rl(
            model, tokenizer, task(tokenizer, sampler), config(STEPS), sampler=sampler
        )
    finally:
        sampler.close()
    assert result.steps == STEPS
    stepped = [row for row in result.rows if row["sync_gap"] is not None]
    assert len(stepped) >= STEPS // 2
    gaps = [row["sync_gap"] for row in stepped]
    engine_gaps = [row["gap"] for row in result.rows if row["gap"] is not None]
    print(f"largest gap after a hand-over {max(gaps):.2e}, of rollouts {max(engine_gaps):.2e}, "
          f"accuracy {result.rows[0]['accuracy']:.2f} to {result.rows[-1]['accuracy']:.2f}, "
          f"seconds a step {sum(r['seconds'] for r in result.rows) / STEPS:.2f}")  # fmt: skip
    assert max(gaps) <= 2e-2
    assert max(engine_gaps) <= 2e-2
    versions = [row["version"] for row in result.rows]
    assert versions == sorted(versions) and versions[-1] == len(stepped)


def test_a_reload_that_did_not_happen_is_found(served):
    model, _ = load_for_training(bundled_model())
    tokenizer = load_tokenizer(bundled_model())

    class Deaf(VLLMSync):
        async def push(self, model):
            """Says yes and keeps the old weights."""

    prompts = tuple(
        tuple(tokenizer.encode(f"<bos>{problem.text}"))
        for problem in (LabPool("chains", ((2, 5),), n)[0] for n in range(3))
    )
    engine = CompletionsEngine(served.url, tokenizer=tokenizer)
    honest = EngineSampler(engine, VLLMSync(served.url, served.model), probe_prompts=prompts)
    try:
        assert honest.update(model) <= 2e-2
        honest.sync = Deaf(served.url, served.model)
        make_chooser(model, tokenizer, steps=10, tokens=1500)
        with pytest.raises(EngineError):
            honest.update(model)
    finally:
        honest.close()
