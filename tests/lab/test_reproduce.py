"""The control of the reward code at its smallest: what is rewarded grows, what costs goes away."""

import copy
from pathlib import Path
from statistics import fmean

import pytest

from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.reproduce import claims_of, run_claim
from anabranch.lab.reproduce_page import table
from anabranch.lab.rl_arms import CLAIMS, PAPERS, Claim
from anabranch.lab.rl_tasks import LabPool, grade_lab, make_chooser, open_setup
from anabranch.records import Problem
from anabranch.training.config import load_config
from anabranch.training.rl import Task, train_rl
from anabranch.training.rl_config import RLConfig
from anabranch.training.rollouts import LockstepSampler
from anabranch.training.sft import load_for_training


def test_a_rewarded_form_grows_and_a_punished_one_goes() -> None:
    start, _ = load_for_training(bundled_model())
    tokenizer = load_tokenizer(bundled_model())
    make_chooser(start, tokenizer, steps=30, tokens=800, sizes=((2, 2),), rate=1e-3)
    activation = {}
    for weight in (0.5, -0.5):
        model = copy.deepcopy(start)
        sampler = LockstepSampler(model, tokenizer)

        def setup(problem: Problem, sampler: LockstepSampler = sampler) -> object:
            return open_setup(problem, tokenizer, sampler.engine)

        term = f"{{kind='parallel_use', when='always', weight={weight}}}"
        config = load_config(
            RLConfig,
            overrides=[
                "steps=8",
                "prompts=4",
                "rollouts=8",
                "learning_rate=5e-4",
                "limits.max_total_tokens=150",
                f"schedule.rewards.r.terms=[{term}]",
                "schedule.stages=[{cycle=[{reward='r'}]}]",
            ],
        )
        task = Task(LabPool("chains", ((2, 2),), 1), setup, grade_lab)  # type: ignore[arg-type]
        rows = train_rl(model, tokenizer, task, config, sampler=sampler).rows
        activation[weight] = fmean(row["activation"] for row in rows[-3:])
    assert activation[0.5] > activation[-0.5] + 0.4, activation


def test_names_of_claims_and_arms(tmp_path: Path) -> None:
    for paper in PAPERS:
        assert claims_of(paper)
    with pytest.raises(UsageError, match="nothing is known of 'grpo'; known: threadweaver"):
        claims_of("grpo")
    with pytest.raises(UsageError, match="control has no arm 'x'; known: accuracy, p_grpo"):
        run_claim(CLAIMS["control"], tmp_path, seeds=[0], arms=["x"])


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_every_arm_is_a_valid_configuration(claim: Claim) -> None:
    for arm in claim.arms:
        config = RLConfig.model_validate({"schedule": dict(arm.schedule), "steps": arm.steps})
        assert config.schedule.at(arm.steps).reward


def test_table_shows_the_interval_over_seeds() -> None:
    def result(seed: int, path: float) -> dict[str, object]:
        figures = dict.fromkeys(CLAIMS["control"].figures, 1.0)
        return {
            "arm": "p_grpo",
            "seed": seed,
            "steps": 40,
            "before": {**figures, "path": 100.0},
            "after": {**figures, "path": path},
            "cpu_seconds": 50.0,
        }

    text = table(CLAIMS["control"], [result(0, 78.0), result(1, 82.0)])
    # Student's t of one degree of freedom: 12.706 · 2.828 / √2.
    assert "100 → 80 ± 25" in text
    assert "| p_grpo | 2 | 40 |" in text
