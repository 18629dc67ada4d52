"""`anabranch doctor` against servers, fleets and recordings: what it tries, and its exit codes."""

from __future__ import annotations

import json

import pytest

from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.tokenizer import save_tokenizer

pytest.importorskip("torch")


def test_the_bundled_model_is_exact(cli):
    shown = cli("doctor", "--exactness", "--dtype", "float32").stdout
    assert "exactness: exact" in shown and "at most 0.0001 in float32" in shown
    assert "one run: answered, 1 block," in shown


def test_json_holds_what_the_table_shows(cli, bundled_server):
    engine = ("--engine", bundled_server, "--tokenizer", bundled_model())
    found = json.loads(cli("doctor", *engine, "--json").stdout)
    assert found["healthy"] and found["engine"] == bundled_server
    assert found["capabilities"]["window"] == 32768
    tried = {one["name"]: one["seen"] for one in found["abilities"]}
    assert tried["tokenise endpoint"] and tried["stop ids"] and tried["load metrics"]
    assert found["fork"]["outcome"] == "answered" and found["fork"]["branches"] == [2]
    shown = cli("doctor", *engine).stdout
    assert "tokenise endpoint" in shown and "agrees with the local tokenizer" in shown


def test_a_server_with_other_log_probs_is_not_exact(cli, bundled_server):
    engine = ("--engine", bundled_server, "--tokenizer", bundled_model())
    done = cli("doctor", *engine, "--exactness", "--json", code=1)
    found = json.loads(done.stdout)["exactness"]
    assert not found["exact"] and found["worst"]["engine"] == -0.5 and found["tolerance"] == 2e-2
    shown = cli("doctor", *engine, "--exactness", code=1).stdout
    assert "NOT exact" in shown and "there: trajectory" in shown


def test_a_fleet_shows_its_replicas(cli, bundled_server):
    with LoopbackServer(load_tokenizer(bundled_model()), "12") as other:
        url = other.url
        engines = ("--engine", bundled_server, "--engine", url, "--tokenizer", bundled_model())
        found = json.loads(cli("doctor", *engines, "--json").stdout)
    assert [one["healthy"] for one in found["replicas"]] == [True, True]
    shown = cli("doctor", *engines).stdout  # the second is gone
    assert f"replica {url}" in shown and "away: cannot reach" in shown


def test_a_recording_is_replayed_and_not_examined(cli):
    cli("solve", "1?2?3?6=8", "--record", "calls.jsonl")
    replay = ("--engine", "replay:calls.jsonl", "--problem", "1?2?3?6=8")
    found = json.loads(cli("doctor", *replay, "--max-total", "512", "--json", code=None).stdout)
    assert found["abilities"] == [] and found["engine"] == "local"


def test_what_cannot_be_checked_says_why(fails, tmp_path):
    save_tokenizer(tmp_path / "tok")
    tokenizer = load_tokenizer(tmp_path / "tok")
    with LoopbackServer(tokenizer, "12", manners=Manners(pace=0.001)) as server:
        engine = ("--engine", server.url, "--tokenizer", tmp_path / "tok")
        asked = ("doctor", *engine, "--dialect", "parason:compact", "--exactness")
        line = fails(*asked)
        assert "--exactness needs --weights" in line and "model.safetensors" in line
        assert "no tolerance for 'int4'" in fails(
            *asked, "--weights", bundled_model(), "--dtype", "int4"
        )
        server.manners = Manners(logprobs=False)
        assert "gives no log-probs" in fails(*asked)
    assert "are for --exactness" in fails("doctor", "--dtype", "float32")


def test_another_models_tokenizer_is_refused(fails):
    with LoopbackServer(CharTokenizer(), "some words") as server:
        engine = ("--engine", server.url, "--tokenizer", bundled_model())
        assert "another tokenizer" in fails("doctor", *engine)
