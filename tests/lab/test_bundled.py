"""The model that comes with the package: small, loadable by others, and right on fresh problems."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.checkpoint import load_checkpoint_info, missing_files
from anabranch.dialects import get_dialect
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import DIALECT, PROMPTS
from anabranch.lab.evaluate import FIRST_SUCCESS, solve_all
from anabranch.lab.families import draw_distinct
from anabranch.lab.sizes import CHAIN_SIZES, PUZZLE_SIZE
from anabranch.records import Limits

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def solve():
    """Solve problems with the bundled model, in one event loop a call."""
    from anabranch.engines.local import LocalEngine

    engine = LocalEngine(bundled_model(), threads=1)

    def run(problems, form, **options):
        return asyncio.run(solve_all(engine, problems, form, **options))

    yield run
    asyncio.run(engine.close())


def right(solved):
    return sum(one.correct for one in solved) / len(solved)


def test_it_is_complete_and_small():
    folder = bundled_model()
    assert missing_files(folder) == []
    assert (folder / "model.safetensors").stat().st_size <= 6_000_000
    info = load_checkpoint_info(folder)
    assert info.dialect == DIALECT and info.prompts == PROMPTS
    assert {"seed", "stages"} <= set(info.training)


def test_every_tag_is_one_token():
    tokenizer = load_tokenizer(bundled_model())
    info = load_checkpoint_info(bundled_model())
    for tag in get_dialect(DIALECT).tags():
        for text in (tag.open, tag.close):
            assert tuple(tokenizer.encode(text)) == info.tags[text] and len(info.tags[text]) == 1


def test_transformers_loads_and_runs_it():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    model = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32)
    problem = draw_distinct(11, "puzzle", PUZZLE_SIZE, 1)[0]
    ids = tokenizer(f"<bos>{problem.text}[seq]", return_tensors="pt", add_special_tokens=False)
    made = model.generate(**ids, max_new_tokens=400, do_sample=False)
    text = tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert problem.check(text), text


@pytest.mark.parametrize("form", ["sequential", "parallel"])
def test_chains_are_solved(solve, form):
    problems = [p for size in CHAIN_SIZES for p in draw_distinct(12, "chains", size, 8)]
    solved = solve(problems, form)
    assert right(solved) >= 0.9
    assert all(one.forked == (form == "parallel") for one in solved)
    assert sum(one.well_formed for one in solved) >= 0.95 * len(solved)


@pytest.mark.parametrize("policy", [None, FIRST_SUCCESS], ids=["all", "first success"])
def test_puzzles_are_solved(solve, policy):
    problems = draw_distinct(13, "puzzle", PUZZLE_SIZE, 40)
    assert right(solve(problems, "parallel", policy=policy)) >= 0.9
    assert right(solve(problems, "sequential")) >= 0.9


def test_the_mixed_form_is_solved(solve):
    problems = draw_distinct(14, "chains", CHAIN_SIZES[1], 12)
    assert right(solve(problems, "mixed")) >= 0.75


def test_under_a_limit_forking_is_what_still_answers(solve):
    problems = draw_distinct(15, "puzzle", PUZZLE_SIZE, 40)
    mean = sum(one.path for one in solve(problems, "sequential")) / len(problems)
    limits = Limits(max_path_tokens=int(0.8 * mean))
    line = right(solve(problems, "sequential", limits=limits))
    fork = right(solve(problems, "parallel", limits=limits))
    assert fork >= line + 0.2
