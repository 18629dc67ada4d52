"""The recipe is data that the trainer and the families accept."""

from __future__ import annotations

import json
import random

import pytest

from anabranch.lab.families import draw
from anabranch.lab.recipe import STAGES, RecipeStage, model_settings
from anabranch.lab.sizes import CHAIN_SIZES, PUZZLE_SIZE
from anabranch.lab.structure import FORMS

WEIGHT_LIMIT = 6_000_000


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_size_and_form_of_a_stage_can_be_drawn(stage: RecipeStage) -> None:
    rng = random.Random(0)
    for mix in stage.mix:
        assert set(mix.forms) <= set(FORMS)
        for size in mix.sizes:
            problem = draw(rng, mix.family, size)
            for form in mix.forms:
                assert problem.check(problem.solve(form).text())


def test_the_last_stage_trains_everything_that_is_measured() -> None:
    sizes = {(mix.family, size) for mix in STAGES[-1].mix for size in mix.sizes}
    assert sizes >= {("chains", size) for size in CHAIN_SIZES}
    assert ("puzzle", PUZZLE_SIZE) in sizes


def test_stage_names_are_distinct_and_summaries_are_json() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert json.loads(json.dumps([stage.summary() for stage in STAGES]))[0]["steps"] > 0


def test_a_stage_is_a_valid_training_configuration() -> None:
    pytest.importorskip("pydantic")
    config = STAGES[0].config(seed=3, scale=0.01)
    assert config.seed == 3
    assert config.steps == round(STAGES[0].steps * 0.01)
    assert STAGES[0].config(seed=3, scale=1e-9).steps == 1


def test_the_weights_are_small_and_heads_are_what_engines_serve() -> None:
    pytest.importorskip("transformers")
    from anabranch.lab.train import new_model

    model = new_model(0)
    assert sum(weight.numel() for weight in model.parameters()) * 2 <= WEIGHT_LIMIT
    assert model_settings()["head_dim"] % 32 == 0
