"""The control of the reward code at its smallest: what is rewarded grows, what costs goes away."""

import copy
from pathlib import Path
from statistics import fmean

import pytest

from anabranch.config import load_config
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.errors import UsageError
from anabranch.jsonl import write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw_distinct
from anabranch.lab.reproduce import claims_of, run_claim
from anabranch.lab.reproduce_page import draw_limits, kept_answers, table
from anabranch.lab.rl_arms import CLAIMS, PAPERS, Claim
from anabranch.lab.rl_measure import ANSWERS, right_within
from anabranch.lab.rl_tasks import (
    LabPool,
    as_problem,
    grade_lab,
    grader_of,
    make_chooser,
    open_sample,
    open_setup,
    pool_of,
)
from anabranch.records import Problem
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


def test_answers_of_arms_become_a_curve_of_limits(tmp_path: Path) -> None:
    claim = CLAIMS["wasted_trials"]
    result = {"arm": "p_grpo", "seed": 0}
    folder = tmp_path / claim.name / "p_grpo-0"
    folder.mkdir(parents=True)
    row = {"kind": "puzzle 1", "forked": True, "tokens": 61}
    write_records(
        folder / ANSWERS,
        [
            {"when": "before", **row, "right": True, "path": 30},
            {"when": "after", **row, "right": True, "path": 37},
            {"when": "after", **row, "right": False, "path": 20},
        ],
    )
    answers = kept_answers(claim, [result, {"arm": "accuracy", "seed": 0}], tmp_path)
    assert set(answers) == {"start", "p_grpo"}
    assert [right_within(answers["p_grpo"][0], limit) for limit in (36, 37)] == [0.0, 0.5]
    draw_limits(answers, tmp_path / "limits.svg")
    assert "limit on the path" in (tmp_path / "limits.svg").read_text()


def test_some_problems_are_unfit_for_forking() -> None:
    tokenizer = load_tokenizer(bundled_model())
    plain, costly = grader_of(0.0), grader_of(0.3)
    lost = 0
    for problem in draw_distinct(3, "chains", (2, 1), 60):
        forked = open_sample(problem, "parallel", tokenizer)
        line = open_sample(problem, "sequential", tokenizer)
        assert plain(as_problem(problem), forked).correct
        assert costly(as_problem(problem), line).correct
        lost += not costly(as_problem(problem), forked).correct
    assert 8 <= lost <= 30


@pytest.mark.parametrize(("family", "size"), [("chains", (2, 1)), ("puzzle", (2,))])
def test_a_damaged_sample_is_wrong_and_well_formed(family: str, size: tuple[int, ...]) -> None:
    tokenizer = load_tokenizer(bundled_model())
    for problem in draw_distinct(3, family, size, 10):
        for form in ("sequential", "parallel"):
            sample = open_sample(problem, form, tokenizer, shift=3)
            verdict = grade_lab(as_problem(problem), sample)
            assert verdict.status == "wrong", sample.text


def test_mixed_pools_take_turns() -> None:
    pool = pool_of((("chains", ((2, 1),)), ("puzzle", ((1,), (2,)))), 4)
    assert [pool[index].family for index in range(4)] == ["chains", "puzzle"] * 2
    assert pool[2] == pool_of((("chains", ((2, 1),)),), 4)[1]
