"""The load of a server from its Prometheus text."""

from __future__ import annotations

import asyncio
import math

import pytest

from anabranch.engines.base import Call
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.load import Load, LoadReader, parse_load, samples
from anabranch.engines.loopback import LoopbackServer, Manners
from anabranch.engines.symbols import CharTokenizer
from anabranch.errors import EngineError

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:num_requests_waiting{engine="1",model_name="a"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.75
vllm:request_success_total{finished_reason="stop"} 1.2e+06
"""


def test_vllm_is_summed_over_its_engines():
    assert parse_load(VLLM) == Load(5, 4, 0.75)


def test_labels_choose_one():
    assert parse_load(VLLM, {"engine": "0"}) == Load(3, 4, 0.25)
    assert parse_load(VLLM, {"model_name": "b"}) is None


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ('vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc{m="x"} 0.5', Load(1, 0, 0.5)),
        (
            'sglang:num_running_reqs{model_name="x"} 7.0\r\n'
            'sglang:num_queue_reqs{model_name="x"} 2.0\r\n'
            'sglang:token_usage{model_name="x"} 0.28\r\n',
            Load(7, 2, 0.28),
        ),
        ("llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n", Load(2, 1)),
        ("vllm:num_requests_running 2\nvllm:kv_cache_usage_perc NaN\n", Load(2, 0)),
        ("<html>{}</html>", None),
        ("", None),
    ],
)
def test_other_servers_and_older_names(text, load):
    assert parse_load(text) == load


def test_the_text_format():
    text = (
        "# a comment\n"
        'a_total{path="C:\\\\x \\"quoted\\" }",line="1\\n2",} 1.5e3 1395066363000\n'
        "  b 2  \n"
        "c +Inf\n"
        "d{} -Inf\n"
        "broken{ 3\n"
        "e not-a-number\n"
    )
    assert list(samples(text)) == [
        ("a_total", {"path": 'C:\\x "quoted" }', "line": "1\n2"}, 1500.0),
        ("b", {}, 2.0),
        ("c", {}, math.inf),
        ("d", {}, -math.inf),
    ]


def test_a_server_is_asked():
    tokenizer = CharTokenizer()

    async def main():
        manners = Manners(pace=0.01)
        async with (
            LoopbackServer(tokenizer, "x" * 500, manners=manners) as server,
            CompletionsEngine(server.url, tokenizer=tokenizer) as engine,
            LoadReader(server.url + "/v1") as reader,
        ):
            idle = await reader.read()
            output = engine.generate(Call((65,), (), 400))
            await anext(output)
            busy = await reader.read()
            await output.aclose()
        return idle, busy

    assert asyncio.run(main()) == (Load(0, 0), Load(1, 0))


def test_a_server_without_metrics_is_named():
    async def main():
        server = LoopbackServer(CharTokenizer(), models=())
        async with server, LoadReader(server.url, labels={"engine": "9"}) as reader:
            await reader.read()

    with pytest.raises(EngineError, match="/metrics says nothing of running requests"):
        asyncio.run(main())
