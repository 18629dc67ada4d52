"""The one engine argument of the command line: its forms, fleets, recording, and its refusals."""

from __future__ import annotations

import json

import pytest

from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.loopback.sglang import SGLangServer
from anabranch.engines.specs import EngineSpec, parse_spec
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply
from anabranch.lab.families import draw_distinct


@pytest.fixture
def problem():
    return draw_distinct(21, "chains", (3, 5), 1)[0].text


def script(request):
    try:
        return perfect_reply(request.text)
    except ValueError:
        return "12"


def lab_server(kind=LoopbackServer):
    return kind(load_tokenizer(bundled_model()), script, manners=Manners(pace=0.001))


def without_times(line):
    done = json.loads(line)
    del done["seconds"], done["engine"]
    for request in done["requests"]:
        for name in ("started", "first_token", "finished"):
            del request[name]
    return done


@pytest.mark.parametrize(
    ("text", "scheme", "target"),
    [
        ("http://h:80/v1", "completions", "http://h:80"),
        (" https://h/base/v1/completions", "completions", "https://h/base"),
        ("sglang+http://h:30000/", "sglang", "http://h:30000"),
        ("local:./model", "local", "./model"),
        ("replay:a:b.jsonl", "replay", "a:b.jsonl"),
    ],
)
def test_every_form_is_read(text, scheme, target):
    assert parse_spec(text) == EngineSpec(scheme, target)


def test_wrong_forms_say_what_was_meant(fails, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "calls.jsonl").write_text("")
    for text, hint in {
        "127.0.0.1:8000": "did you mean http://127.0.0.1:8000?",
        "folder": "did you mean local:folder?",
        "calls.jsonl": "did you mean replay:calls.jsonl?",
        "ftp://h": "use http://HOST:PORT, chat+http://HOST:PORT, sglang+http://HOST:PORT, "
        "local:FOLDER or replay:FILE",
        "local:": "the folder of a model is missing",
        "replay:": "the recorded file is missing",
        "http://": "is not a server URL",
        "sglang+http://h:x": "is not a server URL",
        "replay:nowhere.jsonl": "No such file",
        "replay:calls.jsonl": "the recording is empty",
        "local:nowhere": "no such checkpoint directory",
    }.items():
        assert hint in fails("solve", "1?", "--engine", text), text


def test_terms_that_do_not_fit_are_refused(fails):
    tokenizer = ("--tokenizer", bundled_model())
    one, two = ("--engine", "http://127.0.0.1:9"), ("--engine", "http://127.0.0.1:10")
    for arguments, hint in [
        ((*one, *one), "named twice"),
        ((*one, "--engine", "local:model"), "cannot be one of several"),
        ((*one, "--routing", "spread"), "--routing: only for a fleet"),
        (("--hedge-after", "1"), "--hedge-after: only for a fleet"),
        ((*one, *two, "--routing", "sideways"), "affinity, spread or least_load"),
        ((*one, *two, "--replica-limit", "many"), "--replica-limit 'many'"),
        ((*one, *two, "--replica-limit", "0"), "--replica-limit '0'"),
        ((*one, *two, "--replica-limit", "1,2,3"), "3 limits were given for 2 replicas"),
        ((*one, *two, "--hedge-after", "0"), "above 0"),
        (("--engine", "sglang+http://127.0.0.1:9", "--retokenize"), "SGLang gives token ids"),
        ((*one, *two), "is the server running"),
    ]:
        assert hint in fails("solve", "1?", *tokenizer, *arguments), arguments


def test_several_engines_are_a_fleet(cli, problem):
    with lab_server() as first, lab_server() as second:
        engines = ("--engine", first.url, "--engine", second.url, "--tokenizer", bundled_model())
        fleet = ("--routing", "spread", "--replica-limit", "8,4", "--hedge-after", "30")
        done = json.loads(cli("solve", problem, *engines, *fleet, "--json").stdout)
        assert done["outcome"] == "answered" and done["engine"] == "fleet"
        assert len(first.served) > 3 and len(second.served) > 3


def test_sglang_by_its_own_protocol(cli, problem):
    with lab_server(SGLangServer) as server:
        engine = ("--engine", f"sglang+{server.url}", "--tokenizer", bundled_model())
        done = json.loads(cli("solve", problem, *engine, "--json").stdout)
        assert done["outcome"] == "answered" and len(done["blocks"]) == 1
        assert all("sampling_params" in request.body for request in server.served)


def test_what_was_recorded_is_replayed_without_the_engine(cli, fails, problem, tmp_path):
    """Also with draws: seeds are derived from the problem, so the same calls are made again."""
    draws = ("--temperature", "1", "--seed", "4", "--json")
    with lab_server() as server:
        engine = ("--engine", server.url, "--tokenizer", bundled_model())
        first = cli("solve", problem, *engine, *draws, "--record", "calls.jsonl").stdout
        assert "is there already" in fails("solve", problem, *engine, "--record", "calls.jsonl")
    again = cli("solve", problem, "--engine", "replay:calls.jsonl", *draws).stdout
    assert without_times(again) == without_times(first)
    other = cli("solve", problem, "--engine", "replay:calls.jsonl", "--json", code=1)
    assert "temperature (1.0 was recorded, 0.0 is asked)" in other.stdout


def test_an_engine_that_does_not_open_leaves_no_recording(fails, tmp_path):
    engine = ("--engine", "http://127.0.0.1:9", "--tokenizer", bundled_model())
    fails("solve", "1?", *engine, "--record", "calls.jsonl")
    assert not (tmp_path / "calls.jsonl").exists()


def test_a_recording_without_its_tokenizer_asks_for_one(cli, fails, problem, tmp_path):
    with lab_server() as server:
        engine = ("--engine", server.url, "--tokenizer", bundled_model())
        first = cli("solve", problem, *engine, "--json", "--record", "calls.jsonl").stdout
    rows = (tmp_path / "calls.jsonl").read_text()
    moved = rows.replace(json.dumps(str(bundled_model())), '"/gone"')
    assert moved != rows
    (tmp_path / "calls.jsonl").write_text(moved)
    replay = ("--engine", "replay:calls.jsonl")
    assert "it was /gone" in fails("solve", problem, *replay)
    again = cli("solve", problem, *replay, "--tokenizer", bundled_model(), "--json").stdout
    assert without_times(again) == without_times(first)
