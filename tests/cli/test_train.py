"""`anabranch train sft`: texts to a checkpoint that decoding can read, and what it refuses."""

from __future__ import annotations

import json

import pytest

from anabranch.checkpoint import load_checkpoint_info
from anabranch.dialects import get_dialect
from anabranch.jsonl import write_records
from anabranch.lab.families import draw_distinct
from anabranch.lab.structure import MARKERS
from anabranch.lab.tokenizer import save_tokenizer, vocabulary

torch = pytest.importorskip("torch")


def save_model(folder, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sliding = changes.pop("sliding", False)
    config, model = (
        (MistralConfig, MistralForCausalLM) if sliding else (LlamaConfig, LlamaForCausalLM)
    )
    shape = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **({"sliding_window": 8} if sliding else {}),
    }
    model(config(**shape)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def data(tmp_path):
    problems = draw_distinct(0, "chains", (2, 2), 8, evaluation=False)
    rows = [
        {"id": str(n), "problem": p.text + MARKERS["parallel"], "text": p.solve("parallel").text()}
        for n, p in enumerate(problems)
    ]
    rows[3]["text"] = rows[3]["text"].replace("</Thread></Parallel>", "</Parallel>")
    write_records(tmp_path / "data.jsonl", rows)
    return tmp_path / "data.jsonl"


def options(model, data):
    quick = ("--set", "steps=3", "--set", "tokens_per_batch=300", "--set", "threads=1")
    named = ("--dialect", "parason:compact")
    return ("train", "sft", "--model", model, "--data", data, "-o", "run", *quick, *named)


def test_texts_become_a_checkpoint_that_solves(cli, model, data, tmp_path):
    shown = cli(*options(model, data)).stdout
    assert "missing_close" in shown and "7 trajectories" in shown and "3 steps" in shown
    info = load_checkpoint_info(tmp_path / "run/model")
    assert info.dialect == "parason:compact" and info.training["steps"] == 3
    assert set(info.tags) >= {"<Parallel>", "</Outlines>"}
    config = json.loads((tmp_path / "run/run.json").read_text())
    assert config["config"]["steps"] == 3 and "torch" in config["versions"]
    done = cli("solve", "1?", "--local", "run/model", "--max-total", "20", code=None)
    assert done.returncode in (0, 1) and "outcome" in done.stdout


def test_a_run_is_not_overwritten_and_resumes_only_as_it_was(cli, fails, model, data):
    cli(*options(model, data))
    assert "resume" in fails(*options(model, data))
    assert "seed" in fails(*options(model, data), "--set", "seed=5", "--resume")


def test_a_model_whose_attention_would_ignore_the_tree(fails, data, tmp_path):
    folder = save_model(tmp_path / "sliding", sliding=True)
    line = fails(*options(folder, data))
    assert "sliding" in line and not (tmp_path / "run/model").exists()


def test_settings_that_do_not_exist(fails, model, data):
    assert "stepz" in fails(*options(model, data), "--set", "stepz=3")
    assert "name=value" in fails(*options(model, data), "--set", "steps")
    assert "No such file" in fails(*options(model, data), "--config", "nowhere.toml")


def test_tags_can_become_tokens_of_their_own(cli, fails, data, tmp_path):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    from anabranch.training.tags import phrase_of

    tags = [t for tag in get_dialect("parason").tags() for t in (tag.open, tag.close)]
    words = sorted({word for tag in tags for word in phrase_of(tag).split()})
    symbols = ["<eos>", "<unk>", *words, *map(chr, range(32, 127))]
    folder = save_model(tmp_path / "words", vocab_size=len(symbols), hidden_size=64)
    ids = {symbol: n for n, symbol in enumerate(dict.fromkeys(symbols))}
    raw = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z]{2,}|[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    raw.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    quick = (*options(folder, data), "--set", "tokens_per_batch=4000")
    assert "add the tag" in fails(*quick)
    cli(*quick, "--add-tags")
    info = load_checkpoint_info(tmp_path / "run/model")
    assert info.tag_tokens == "own" and all(len(ids) == 1 for ids in info.tags.values())
    assert not (folder / "anabranch.json").exists(), "the given checkpoint stays as it is"
    cli(*quick, "--add-tags", "--resume")
