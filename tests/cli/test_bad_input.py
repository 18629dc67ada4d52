"""Bad input at the command line: one line, an exit code, and no file left behind."""

from __future__ import annotations

import json

import pytest

from anabranch.engines.loopback import Fault, LoopbackServer, Manners
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.jsonl import write_records
from anabranch.lab.tokenizer import save_tokenizer

ROW = {
    "id": "one",
    "problem": "a?",
    "text": "<think>a<Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
    "<Thread>1:a</Thread><Thread>2:b</Thread></Parallel>a</think>\\boxed{1}",
}


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(tmp_path / "tok")
    return tmp_path / "tok"


@pytest.fixture
def server(tokenizer):
    with LoopbackServer(load_tokenizer(tokenizer), "<think>1</think>\\boxed{1}") as running:
        yield running


def solve(server, tokenizer):
    url = server if isinstance(server, str) else server.url
    options = ("--engine", url, "--tokenizer", tokenizer, "--dialect", "parason:compact")
    return ("solve", "1?", *options, "--save", "out.jsonl", "--max-total", "64")


def test_the_server_that_the_other_cases_break_works(cli, server, tokenizer, tmp_path):
    assert "answered" in cli(*solve(server, tokenizer)).stdout
    assert (tmp_path / "out.jsonl").is_file()


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_a_server_that_refuses(fails, server, tokenizer, status, tmp_path):
    body = json.dumps({"error": {"message": "no such luck", "code": status}})
    server.faults.extend([Fault("status", status=status, body=body)] * 20)
    line = fails(*solve(server, tokenizer))
    assert str(status) in line and "no such luck" in line
    assert not (tmp_path / "out.jsonl").exists()


def test_a_server_that_is_down(fails, tokenizer):
    line = fails(*solve("http://127.0.0.1:9", tokenizer))
    assert "127.0.0.1:9" in line and "running" in line


def test_a_server_without_ids_says_what_to_do(fails, cli, server, tokenizer):
    server.manners = Manners(ids_out=False)
    assert "retokenize" in fails(*solve(server, tokenizer))
    assert "drift" in cli(*solve(server, tokenizer), "--retokenize").stdout


def test_options_that_make_no_sense(fails, tokenizer):
    assert "parasol" in fails("solve", "1?", "--dialect", "parasol", "--local", tokenizer)
    assert "empty" in fails("solve", "  ")
    assert "sideways" in fails("solve", "1?", "--mode", "sideways")
    assert "quorums" in fails("solve", "1?", "--join", "quorums")
    assert "--tokenizer" in fails("solve", "1?", "--engine", "http://127.0.0.1:9")
    both = ("--engine", "http://127.0.0.1:9", "--local", tokenizer)
    assert "exclude" in fails("solve", "1?", *both)
    line = fails("solve", "1?", "--max-total", "10", "--reserve", "10")
    assert "answer_reserve" in line
    assert "temperature" in fails("solve", "1?", "--temperature", "-1")


def test_checkpoints_that_lack_files(fails, tokenizer, tmp_path):
    line = fails("solve", "1?", "--local", tokenizer)
    assert "config.json" in line and "model.safetensors" in line
    assert "no such" in fails("solve", "1?", "--local", tmp_path / "nowhere")
    write_records(tmp_path / "data.jsonl", [ROW])
    line = fails("train", "sft", "--model", tokenizer, "--data", "data.jsonl", "-o", "run")
    assert "model.safetensors" in line and not (tmp_path / "run").exists()


def test_a_tag_that_the_tokenizer_cannot_write(fails, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder = tmp_path / "letters"
    folder.mkdir()
    Tokenizer(WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<unk>"}')
    with LoopbackServer(load_tokenizer(folder), "a") as server:
        line = fails(*solve(server, folder))
    assert "<think>" in line or "tag" in line
