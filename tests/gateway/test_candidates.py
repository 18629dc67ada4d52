"""Replay and shadow against real gateways: compared in figures, unseen by callers."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch.gateway import Defaults
from anabranch.gateway.candidates import Candidate, Shadow, comparison
from anabranch.gateway.comparing import compare_rows
from anabranch.jsonl import read_rows, write_records
from anabranch.lab.families import draw_distinct

Cli = Callable[..., Any]


def requests(count: int = 8) -> list[dict[str, Any]]:
    return [
        {"id": f"r{n}", "body": {"messages": [{"role": "user", "content": p.text}]}}
        for n, p in enumerate(draw_distinct(4, "chains", (3, 5), count))
    ]


def test_a_replay_compares_outcome_cost_and_latency(
    make_gateway: Callable[..., Any], tmp_path: Path, cli: Cli
) -> None:
    serves = make_gateway(defaults=Defaults(mode="sequential", temperature=0.0))
    tried = make_gateway()
    file, out = tmp_path / "requests.jsonl", tmp_path / "rows.jsonl"
    write_records(file, requests())
    call = ("experiment", "replay", file, "--baseline", serves.url, "--candidate", tried.url)
    done = cli(*call, "-o", out)
    rows = [row for _, row in read_rows(out)]
    assert [row["id"] for row in rows] == [f"r{n}" for n in range(8)]
    assert all(row["same_answer"] for row in rows)
    found = compare_rows(rows)
    assert found is not None and found.path is not None and found.tokens is not None
    # Forked, the path is shorter and the tokens are more.
    assert found.path[2] < 0.8 and found.tokens[1] > 1.0
    assert found.worse[0] == 0 and found.same is not None and found.same[0] == 1
    assert "path, ratio" in done.stdout
    text = out.read_text()
    assert requests()[0]["body"]["messages"][0]["content"] not in text and "boxed" not in text
    assert cli("experiment", "compare", out).stdout == done.stdout


def test_a_candidate_that_is_down_loses(
    make_gateway: Callable[..., Any], tmp_path: Path, cli: Cli
) -> None:
    serves = make_gateway()
    file, out = tmp_path / "requests.jsonl", tmp_path / "rows.jsonl"
    write_records(file, requests(3))
    done = cli(
        "experiment", "replay", file, "--baseline", serves.url,
        "--candidate", "http://127.0.0.1:9", "-o", out,
    )  # fmt: skip
    assert "answered → unreachable: 3" in done.stdout
    found = compare_rows(row for _, row in read_rows(out))
    assert found is not None and found.worse[0] == 1 and found.seconds is None


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        ([], "holds no request", 2),
        ([{"body": {"model": "x"}}], "1: field 'body': messages or a prompt", 1),
        ([{"body": {"prompt": "x"}, "route": "/v2"}], "1: field 'route'", 1),
    ],
)
def test_bad_records_are_named(
    tmp_path: Path, cli: Cli, rows: list[Any], said: str, code: int
) -> None:
    file = tmp_path / "requests.jsonl"
    write_records(file, rows)
    call = ("--baseline", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:9")
    done = cli("experiment", "replay", file, *call, "-o", tmp_path / "o", code=code)
    assert said in done.stderr
    said = cli("experiment", "compare", file, code=None).stderr
    assert ("is no comparison" if rows else "holds no comparison") in said


async def _ask(url: str, count: int, stream: bool) -> list[float]:
    took = []
    async with aiohttp.ClientSession() as session:
        for row in requests(count):
            began = time.monotonic()
            body = {**row["body"], "stream": stream}
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()
            took.append(time.monotonic() - began)
    return took


@pytest.mark.parametrize("stream", [False, True])
def test_a_shadow_is_asked_and_nobody_sees_it(
    make_gateway: Callable[..., Any], tmp_path: Path, stream: bool
) -> None:
    tried = make_gateway(defaults=Defaults(mode="sequential", temperature=0.0))
    serves = make_gateway()
    out = tmp_path / "shadow.jsonl"
    loops: list[Any] = []

    class InLoop(Shadow):
        """Opened in the gateway's own event loop, at the first request."""

        def offer(self, ticket: Any, body: Any) -> None:
            if not loops:
                loops.append(asyncio.get_running_loop())
                self.candidate._session = aiohttp.ClientSession()
            super().offer(ticket, body)

    shadow = InLoop(Candidate(tried.url), 1.0, out)
    serves.service.shadow = shadow
    serves.service.observers.add(shadow)
    asyncio.run(_ask(serves.url, 4, stream))
    closing = asyncio.run_coroutine_threadsafe(shadow.close(), loops[0])
    closing.result(20)
    asyncio.run_coroutine_threadsafe(shadow.candidate.__aexit__(), loops[0]).result(20)
    rows = [row for _, row in read_rows(out)]
    assert len(rows) == 4 == shadow.asked
    assert all(row["same_answer"] for row in rows)
    assert all(row["candidate"]["path"] > row["baseline"]["path"] for row in rows)
    # The caller's books hold the caller's tokens alone.
    own = sum(ticket.spent.sampled for ticket in serves.watcher.tickets)
    assert own == sum(row["baseline"]["tokens"] for row in rows)
    assert len(tried.watcher.tickets) == 4


def test_a_share_is_a_share_and_a_busy_candidate_is_passed_by(tmp_path: Path) -> None:
    class Slow(Candidate):
        async def ask(self, route: str, body: Any) -> Any:
            await asyncio.Event().wait()

    async def main() -> tuple[int, int]:
        from anabranch.gateway import Ticket

        shadow = Shadow(Slow("http://x"), 0.25, tmp_path / "s.jsonl", most=3)
        for _ in range(400):
            shadow.offer(Ticket(route="/v1/chat/completions"), {})
        counts = shadow.asked, shadow.passed
        for task in list(shadow._tasks):
            task.cancel()
        await shadow.close()
        return counts

    asked, passed = asyncio.run(main())
    assert asked == 3
    assert 60 <= asked + passed <= 140
    assert not (tmp_path / "s.jsonl").exists()


def test_sides_without_answers_are_not_alike_nor_unlike() -> None:
    from anabranch.gateway.candidates import Side

    row = comparison("a", Side(200, "answered", 1.0, 5, 5, "x"), Side(503, "failed", 0.1))
    assert row["same_answer"] is None
    assert json.dumps(row)
    assert compare_rows([]) is None
