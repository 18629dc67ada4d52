"""`anabranch train sft`: texts to a checkpoint that decoding can read, and what it refuses."""

from __future__ import annotations

import json
import os
import shlex
import signal

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
        **changes,
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


def test_presets_are_listed_and_overridden(cli, fails, model, data, tmp_path):
    shown = cli("train", "presets").stdout
    assert "threadweaver-8b: ThreadWeaver: Qwen3-8B" in shown and "fsdp-4x8.yaml" in shown
    cli(*options(model, data), "--preset", "lab-cpu", "--set", "learning_rate=2e-3")
    config = json.loads((tmp_path / "run/run.json").read_text())["config"]
    assert (config["beta2"], config["learning_rate"], config["steps"]) == (0.98, 2e-3, 3)
    assert "no preset" in fails(*options(model, data), "--preset", "lab-gpu")


def test_a_signal_ends_well_and_says_how_to_go_on(cli, model, data, monkeypatch, tmp_path):
    from anabranch.cli import train

    def report(self, progress):
        if progress.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(train._progress, "report", report)
        shown = cli(*options(model, data), "--set", "log_every=1").stdout
    assert "stopped after step 2" in shown
    command = shlex.split(shown.strip().splitlines()[-1])
    assert command[0] == "anabranch" and command[-1] == "--resume"
    assert "3 steps" in cli(*command[1:]).stdout


def test_mixed_dialects_are_an_error_or_a_reported_row(cli, fails, model, data, tmp_path):
    cli(*options(model, data))
    lines = (tmp_path / "run/trajectories.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"dialect":"parason:compact"', '"dialect":"npr"')
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines) + "\n")
    line = fails(*options(model, tmp_path / "mixed.jsonl"), "-o", "other")
    assert "mixed.jsonl:3: field 'dialect': written in 'npr'" in line
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[0]["text"] = "<Parallel><Path>1</Path><Path>2</Path></Parallel><Summary>3</Summary>"
    rows[1]["text"] = "<guideline><plan>1: a</plan></guideline> 5"
    write_records(tmp_path / "texts.jsonl", rows)
    shown = cli(*options(model, tmp_path / "texts.jsonl"), "-o", "third").stdout
    assert "skipped" in shown and "texts.jsonl:2: field 'text': <guideline> is no tag" in shown


def test_a_tokenizer_of_another_tag_set(cli, fails, model, data, tmp_path):
    cli(*options(model, data))
    path = tmp_path / "run/model/anabranch.json"
    info = json.loads(path.read_text())
    info["tags"]["<Parallel>"] = [3]
    path.write_text(json.dumps(info))
    line = fails(*options(tmp_path / "run/model", data), "-o", "other")
    assert "<Parallel> is [3]" in line and "another tag set" in line


def test_traces_longer_than_the_window_are_listed(cli, data, tmp_path):
    folder = save_model(tmp_path / "short", max_position_embeddings=140)
    done = cli(*options(folder, data), code=None)
    assert done.returncode == 1 and "the model's window only 140" in done.stderr
    cli(*options(folder, data), "--set", 'too_long="split"', "-o", "parts")
    result = json.loads((tmp_path / "parts/result.json").read_text())
    assert result["shortened"] and "left out main request" in result["shortened"][0]["reason"]


def test_evaluation_needs_its_parts(cli, fails, model, data, tmp_path):
    cli(*options(model, data))
    problems = [{"id": "a", "problem": "(1+2)%10?"}]
    write_records(tmp_path / "problems.jsonl", problems)
    held = ("--held-out", "run/trajectories.jsonl", "-o", "judged")
    assert "eval_every" in fails(*options(model, data), *held)
    every = ("--set", "eval_every=2", "--problems", "problems.jsonl")
    assert "--grader" in fails(*options(model, data), *held, *every)
    assert "module:function" in fails(*options(model, data), *held, *every, "--grader", "os:x")
    cli(*options(model, data), *held, *every, "--grader", "operator:ne")
    rows = map(json.loads, (tmp_path / "judged/log.jsonl").read_text().splitlines())
    (found,) = [row["evaluation"] for row in rows if "evaluation" in row]
    assert found["held_out_loss"] > 0 and found["total_tokens"] > 0
