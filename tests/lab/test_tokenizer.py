"""The lab tokenizer loads as an ordinary one and round-trips every lab text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from anabranch.lab.families import draw
from anabranch.lab.structure import CANCELLED, EOS, FAILED, FORMS, MARKERS, prompt_of
from anabranch.lab.tokenizer import SPECIAL, TAGS, save_tokenizer, vocabulary

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_every_symbol_is_one_token_and_its_id_is_its_place(tokenizer: Any) -> None:
    symbols = vocabulary()
    assert len(set(symbols)) == len(symbols) <= 160
    for number, symbol in enumerate(symbols):
        assert tokenizer(symbol)["input_ids"] == [number]
        assert tokenizer.decode([number]) == symbol


def test_lab_texts_round_trip_one_token_per_symbol(tokenizer: Any) -> None:
    rng = random.Random(0)
    for family, size in [
        ("chains", (6, 5)),
        ("chains", (1, 1)),
        ("puzzle", (1,)),
        ("puzzle", (3,)),
    ]:
        for form in FORMS:
            problem = draw(rng, family, size)
            solution = problem.solve(form)
            if solution.branches:
                solution = solution.cancel([0])
            text = prompt_of(problem.text, form) + solution.text() + EOS
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert tokenizer.unk_token_id not in ids
            assert ids.count(tokenizer.bos_token_id) == 1


def test_tags_and_markers_survive_when_special_tokens_are_skipped(tokenizer: Any) -> None:
    text = "".join(f"<{tag}></{tag}>" for tag in TAGS)
    text += "".join(MARKERS.values()) + CANCELLED + FAILED + "\\boxed{4}\nFinal Answer: 4"
    ids = tokenizer(f"<bos>{text}<eos><pad>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_are_known_by_name(tokenizer: Any) -> None:
    names = (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)
    assert names == SPECIAL
    assert len(tokenizer) == len(vocabulary())


def test_what_is_not_in_the_vocabulary_becomes_unknown(tokenizer: Any) -> None:
    assert tokenizer("3€4")["input_ids"].count(tokenizer.unk_token_id) == 1
    assert tokenizer("")["input_ids"] == []
