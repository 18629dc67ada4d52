"""A small task for the loop: the bundled lab model on prompts that it was not trained on."""

from __future__ import annotations

from typing import Any

from anabranch.config import load_config
from anabranch.decoding import Setup
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.rl_tasks import LabPool, grade_lab, open_setup
from anabranch.records import Problem
from anabranch.training.rl import Task
from anabranch.training.rl_config import RLConfig
from anabranch.training.rollouts import LockstepSampler, Sampler
from anabranch.training.sft import load_for_training

#: Without a form marker the bundled model is right in about one of three answers.
POOL = LabPool("chains", ((1, 2), (2, 1)), 1)


#: A reward that varies in every group, whatever is right.
VARIED = (
    "schedule.rewards.varied.terms=[{kind='path_latency', when='always', weight=0.5}]",
    "schedule.stages=[{cycle=[{reward='varied'}]}]",
)


def fresh_model() -> tuple[Any, Any]:
    """The bundled model, in fp32 with tree attention, and its tokenizer."""
    return load_for_training(bundled_model())[0], load_tokenizer(bundled_model())


def small_config(*overrides: str) -> RLConfig:
    base = [
        "steps=3",
        "prompts=2",
        "rollouts=4",
        "learning_rate=1e-4",
        "limits.max_total_tokens=60",
        "threads=1",
        *(VARIED if not any(o.startswith("schedule") for o in overrides) else ()),
    ]
    return load_config(RLConfig, overrides=[*base, *overrides])


def task_of(tokenizer: Any, sampler: Sampler, grade: Any = grade_lab, pool: Any = POOL) -> Task:
    def setup(problem: Problem) -> Setup:
        return open_setup(problem, tokenizer, sampler.engine)

    return Task(pool, setup, grade)


def parts(grade: Any = grade_lab) -> tuple[Any, Any, Sampler, Task]:
    """Model, tokenizer, lockstep sampler and task."""
    model, tokenizer = fresh_model()
    sampler = LockstepSampler(model, tokenizer)
    return model, tokenizer, sampler, task_of(tokenizer, sampler, grade)
