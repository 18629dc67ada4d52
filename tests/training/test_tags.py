"""Tags as tokens: added once, told apart, and found again after saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from tree_cases import tiny_model

from anabranch.errors import ModelError, TokenizerError
from anabranch.training.tags import add_tags, check_rows, phrase_of, tag_ids

TAGS = ["<Parallel>", "</Parallel>", "<Thread>", "</Thread>", "<Outlines>", "</Outlines>"]


def tokenizer(unknown: bool = False) -> Any:
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzPTO<>/ 0123456789"))
    vocabulary = {letter: n for n, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    raw = Tokenizer(models.BPE(vocabulary, merges))
    if unknown:
        del vocabulary["<"]
        vocabulary = {letter: n for n, letter in enumerate([*vocabulary, "?"])}
        raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    from tokenizers import decoders

    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="?" if unknown else None)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [42, 44, 90])
def test_tags_become_tokens_that_can_be_told_apart(tmp_path: Path, tied: bool, rows: int) -> None:
    words = tokenizer()
    model = tiny_model("Llama", vocab_size=rows, tie_word_embeddings=tied)
    before = len(words)
    ids = add_tags(model, words, TAGS)
    assert [len(found) for found in ids.values()] == [1] * len(TAGS)
    assert len(words) == before + len(TAGS)
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (inputs is outputs) == tied and len(inputs) >= len(words)
    expected = inputs[words.encode("start thread", add_special_tokens=False)].mean(0)
    assert torch.allclose(inputs[ids["<Thread>"][0]], expected)
    assert add_tags(model, words, TAGS) == ids  # nothing is added twice
    words.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert tag_ids(again, TAGS) == ids
    text = "<Parallel><Thread>1 ab</Thread></Parallel>"
    assert again.decode(again.encode(text, add_special_tokens=False)) == text


def test_rows_that_are_all_one_vector_are_refused() -> None:
    """Restates the tag fix of Mr-DarkTesla/Parallel-R1-repro: cosine 0.999 after training."""
    model = tiny_model("Llama", vocab_size=90)
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[60:] = weight[60]
    with pytest.raises(ModelError, match=r"<a> and <b> cannot be told apart \(cosine 1\.000\)"):
        check_rows(model, {"<a>": 61, "<b>": 62}, first_unused=90)
    with pytest.raises(ModelError, match="<a> and unused row 80"):
        check_rows(model, {"<a>": 61, "<b>": 3}, first_unused=80)
    with torch.no_grad():
        weight[61] = 0.0
    with pytest.raises(ModelError, match="never initialised"):
        check_rows(model, {"<a>": 61}, first_unused=90)


def test_equal_phrases_are_refused() -> None:
    model = tiny_model("Llama", vocab_size=90)
    with pytest.raises(ModelError, match="other describing phrases"):
        add_tags(model, tokenizer(), {"<a>": "branch", "<b>": "branch"})


def test_a_tag_that_is_not_representable_is_named() -> None:
    with pytest.raises(TokenizerError, match="cannot represent the tag '<Thread>'"):
        tag_ids(tokenizer(unknown=True), ["<Thread>"])


def test_phrases() -> None:
    assert phrase_of("<Parallel>") == "start parallel"
    assert phrase_of("</SubTask>") == "end of sub task"
