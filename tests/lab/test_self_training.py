"""The self-training experiment end to end, at a tiny size, from the bundled model."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from anabranch.errors import UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.families import draw
from anabranch.lab.self_training import SIZES, START, Plan, training_problems
from anabranch.lab.self_training_results import experiment, table, write_into
from anabranch.lab.structure import held_out

PLAN = Plan(rows=2, first_steps=2, problems=2, samples=2, rounds=1, steps=2, rate=1e-5, held_out=2)


def test_an_arm_is_measured_once_and_goes_into_the_page(tmp_path, monkeypatch):
    # Sizes that the bundled model was trained on, so that its answers are right.
    monkeypatch.setitem(SIZES, "chains", (2, 5))
    monkeypatch.setitem(SIZES, "puzzle", (3,))
    monkeypatch.setattr("anabranch.lab.self_training.LIMITS", _no_limits())
    monkeypatch.setattr("anabranch.lab.self_training_results.LIMITS", _no_limits())
    shutil.copytree(bundled_model(), tmp_path / "start" / "model")
    notes = []
    result = experiment(tmp_path, seeds=(0,), plan=PLAN, note=notes.append)
    assert list(result["stages"]) == ["start", "few rows", "round 1"]
    assert all(cell["format"]["of"] == 2 for cell in result["stages"]["round 1"].values())
    assert result["stages"]["start"]["chains"]["correct"]["share"] > 0.5
    assert (
        result["rounds"][0]["decoded"]
        == 8
        == (result["rounds"][0]["kept"] + sum(result["rounds"][0]["why"].values()))
    )
    again = []
    assert experiment(tmp_path, seeds=(0,), plan=PLAN, note=again.append) == result
    assert again == [] and notes

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    write_into(page, result)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert table(result) in text and json.loads(page.with_suffix(".json").read_text()) == result
    page.write_text("no marks")
    with pytest.raises(UsageError, match="marks"):
        write_into(page, result)


def _no_limits():
    from anabranch.records import Limits

    return Limits()


def test_problems_of_an_arm_are_of_the_training_split_and_differ_by_seed():
    plan = Plan(problems=20)
    one, other = training_problems(plan, 0), training_problems(plan, 1)
    assert len(one) == 20 * plan.rounds * len(SIZES) == len({p.problem for p in one})
    assert not any(held_out(problem.problem) for problem in one)
    assert len({p.problem for p in one} & {p.problem for p in other}) < len(one) / 2


def test_forks_of_the_start_model_are_smaller_than_what_is_measured():
    rng = random.Random(0)
    for stage in START:
        for mix in stage.mix:
            for size in mix.sizes:
                problem = draw(rng, mix.family, size)
                for form in mix.forms:
                    assert problem.check(problem.solve(form).text())
                if "parallel" in mix.forms:
                    assert size != SIZES[mix.family]
                    assert all(a <= b for a, b in zip(size, SIZES[mix.family], strict=True))
