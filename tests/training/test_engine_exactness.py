"""The exactness check: equal for the engine that ran the same weights, and finds what differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.decoding import solve
from anabranch.engines.local import LocalEngine
from anabranch.errors import ModelError, UsageError
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import lab_setup
from anabranch.lab.evaluate import with_limits
from anabranch.lab.families import draw_distinct
from anabranch.records import Sampling
from anabranch.training.exactness import check_exactness


@pytest.fixture(scope="module")
def solved():
    engine = LocalEngine(bundled_model())
    problem = draw_distinct(34, "chains", (4, 5), 1)[0]
    setup = with_limits(lab_setup(problem, "parallel", engine.tokenizer), engine, None)
    # The model is sure of nearly every token; only hot draws are sensitive to its logits.
    hot = replace(setup, logprobs=True, sampling=Sampling(temperature=2.0, seed=3))
    return solve(hot, engine), engine.tokenizer.decode


def changed(done, request, place, by):
    """The same trajectory, with one log-prob that is wrong."""
    index = done.requests[request].output
    scores = list(done.segments[index].logprobs)
    scores[place] += by
    segments = list(done.segments)
    segments[index] = segments[index].model_copy(update={"logprobs": tuple(scores)})
    return done.model_copy(update={"segments": segments})


def test_the_engine_of_the_same_weights_is_exact(solved):
    done, decode = solved
    found = check_exactness([done], bundled_model(), decode, dtype="float32")
    assert found.exact and found.tolerance == 1e-4 and found.surprise > 0.1
    assert done.blocks
    assert found.tokens == done.sampled_tokens and found.unscored == 0
    # The weights are stored in bfloat16, so without a word that is what is allowed.
    rounded = check_exactness([done], bundled_model(), decode)
    assert rounded.tolerance == 2e-2 and 1e-3 < rounded.rounding < 0.3
    assert rounded.allowed == max(2e-2, 2 * rounded.rounding)


@pytest.mark.parametrize(("request_number", "place"), [(0, 0), (2, 3), (3, 1)])
def test_the_one_wrong_token_is_named(solved, request_number, place):
    done, decode = solved
    wrong = changed(done, request_number, place, -2.0)
    found = check_exactness([done, wrong], bundled_model(), decode)
    assert not found.exact and found.worst.difference == pytest.approx(2.0, abs=1e-3)
    ids = done.segments[done.requests[request_number].output].ids
    worst = found.worst
    assert (worst.trajectory, worst.request, worst.place) == (1, request_number, place)
    assert (worst.token, worst.text) == (ids[place], decode([ids[place]]))
    assert worst.branch == done.requests[request_number].branch
    assert decode(list(ids[:place])).endswith(worst.before)


def test_other_weights_are_found(solved, tmp_path):
    from transformers import AutoModelForCausalLM

    done, decode = solved
    model = AutoModelForCausalLM.from_pretrained(bundled_model())
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.mul_(1.05)
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((bundled_model() / "tokenizer.json").read_bytes())
    assert not check_exactness([done], tmp_path, decode, dtype="float32").exact


def test_what_cannot_be_compared_is_refused(solved, tmp_path):
    done, decode = solved
    bare = [s.model_copy(update={"logprobs": None}) for s in done.segments]
    with pytest.raises(UsageError, match="no log-probs"):
        check_exactness([done.model_copy(update={"segments": bare})], bundled_model(), decode)
    with pytest.raises(UsageError, match="text only"):
        check_exactness([done.model_copy(update={"retokenized": True})], bundled_model(), decode)
    with pytest.raises(UsageError, match="no tolerance for 'int4'"):
        check_exactness([done], bundled_model(), decode, dtype="int4")
    with pytest.raises(ModelError, match=r"config\.json"):
        check_exactness([done], tmp_path, decode)
