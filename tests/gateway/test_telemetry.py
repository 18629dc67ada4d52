"""What Prometheus and the log see of requests."""

import asyncio
import json
import logging
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.gateway.telemetry import LogLines
from anabranch.gateway.tickets import Ticket
from anabranch.lab.families import draw


def samples(url: str) -> dict[str, float]:
    async def main() -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            return await answer.text()

    families = text_string_to_metric_families(asyncio.run(main()))
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket")):
                label = sample.labels.get("kind") or sample.labels.get("outcome") or ""
                found[f"{sample.name} {label}".strip()] = sample.value
    return found


def test_metrics_count_what_happened(gateway: Any) -> None:
    import random

    before = samples(gateway.url)

    async def ask(fields: dict[str, Any]) -> None:
        question = draw(random.Random(2), "chains", (3, 2)).text
        body = {"messages": [{"role": "user", "content": question}], **fields}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            await answer.read()

    asyncio.run(ask({}))
    asyncio.run(ask({"temperature": 9}))
    (ticket,) = gateway.watcher.tickets

    def grown(name: str) -> float:
        return samples(gateway.url)[name] - before.get(name, 0)

    assert grown("anabranch_requests_total answered") == 1
    assert (
        grown("anabranch_tokens_total sampled") == gateway.upstream.sampled == ticket.spent.sampled
    )
    assert grown("anabranch_fork_width_sum") == 3 and grown("anabranch_fork_width_count") == 1
    assert grown("anabranch_branches_total closed") == 3
    assert (
        grown("anabranch_answer_seconds_count") == grown("anabranch_first_text_seconds_count") == 1
    )
    assert grown("anabranch_refusals_total") == 1
    assert samples(gateway.url)["anabranch_requests_running"] == 0


def test_a_log_line_has_figures_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    ticket = Ticket(route="/v1/x", prompt_text="a secret", outcome="answered")
    ticket.end()
    with caplog.at_level(logging.INFO, logger="anabranch.gateway"):
        LogLines().ended(ticket)
    line = json.loads(caplog.records[0].message)
    assert line["outcome"] == "answered" and "secret" not in caplog.text
