"""Keys and budgets at the gateway's edge, over two gateways on one store."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway.ledger import Prices, StoreLedger
from anabranch.gateway.store import AuditTrail, Budgets, Database, Keys
from anabranch.lab.bundled import bundled_model

QUESTION = "5?9?4?1=6"
#: A reply that runs into any cap.
LONG = "1" * 2000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = Database(str(tmp_path / "store.db"))
    database.migrate()
    yield database
    database.close()


def ask(url: str, key: str | None, **fields: Any) -> dict[str, Any]:
    return asyncio.run(ask_many([url], key, **fields))[0]


async def ask_many(urls: list[str], key: str | None, **fields: Any) -> list[dict[str, Any]]:
    """One request to each URL, all at once; each answer with its status."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"messages": [{"role": "user", "content": QUESTION}], **fields}

    async def one(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return {**await answer.json(), "status": answer.status}

    async with aiohttp.ClientSession(headers=headers) as session:
        return list(await asyncio.gather(*(one(session, url) for url in urls)))


def test_keys_are_needed(make_gateway: Callable[..., Any], store: Database) -> None:
    gateway = make_gateway(ledger=StoreLedger(store))
    keys = Keys(store)
    key, text = keys.create("one")
    _, admin = keys.create("boss", ("admin",))
    assert ask(gateway.url, text)["status"] == 200
    for credential, status in ((None, 401), ("ab-nonsense", 401), (text + "x", 401), (admin, 403)):
        answer = ask(gateway.url, credential)
        assert answer["status"] == status and text not in str(answer)
    keys.revoke(key.id)
    assert ask(gateway.url, text)["status"] == 401
    events = [record.event for record in AuditTrail(store).read()]
    assert events == ["admitted", "ended"] + ["refused"] * 5
    assert AuditTrail(store).verify()[1] is None


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_sixteen_at_once_over_two_gateways(
    make_gateway: Callable[..., Any], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Cap 200 each, budget 1,000: at most five get in, and no more than 1,000 is spent."""
    url = str(tmp_path / "store.db")
    if kind == "postgresql":
        url = request.getfixturevalue("postgres")
    first, second = Database(url), Database(url)
    first.migrate()
    Budgets(first).set("tokens", 1000)
    script = lambda request: LONG  # noqa: E731
    urls = [
        make_gateway(ledger=StoreLedger(one, need_key=False), script=script).url
        for one in (first, second)
    ]
    answers = asyncio.run(ask_many(urls * 8, None, max_tokens=200))
    good = [answer for answer in answers if answer["status"] == 200]
    over = [answer for answer in answers if answer["status"] == 429]
    assert len(good) == 5 and len(over) == 11
    assert all(answer["error"]["code"] == "budget_exceeded" for answer in over)
    (budget,) = Budgets(first).list()
    second.close()
    used = sum(answer["usage"]["completion_tokens"] for answer in good)
    assert (budget.spent, budget.reserved) == (used, 0) and used <= 1000
    assert AuditTrail(first).verify()[1] is None
    first.close()


def test_a_budget_needs_a_cap_and_money_has_a_price(
    make_gateway: Callable[..., Any], store: Database
) -> None:
    Budgets(store).set("money", 0.001)
    prices = Prices(prompt=1.0, sampled=10.0)
    gateway = make_gateway(ledger=StoreLedger(store, need_key=False, prices=prices))
    refused = ask(gateway.url, None)
    assert refused["status"] == 400 and refused["error"]["param"] == "max_completion_tokens"
    answer = ask(gateway.url, None, max_tokens=90)
    usage = answer["usage"]
    (budget,) = Budgets(store).list()
    cost = (usage["prompt_tokens"] + 10 * usage["completion_tokens"]) / 1e6
    assert budget.spent == pytest.approx(cost) and budget.reserved == 0
    assert ask(gateway.url, None, max_tokens=100)["error"]["code"] == "budget_exceeded"


def test_texts_are_kept_only_when_asked_for(
    make_gateway: Callable[..., Any], store: Database
) -> None:
    trail = AuditTrail(store)
    gateway = make_gateway(ledger=StoreLedger(store, need_key=False))
    ask(gateway.url, None, user="ann")
    assert trail.contents() == [] and QUESTION not in str(list(trail.read()))
    gateway = make_gateway(ledger=StoreLedger(store, need_key=False, contents="full"))
    ask(gateway.url, None, user="ann")
    (content,) = trail.contents("ann")
    assert QUESTION in content.data["prompt"] and content.data["answers"]


@pytest.mark.parametrize("round", range(2))
def test_a_killed_gateway_leaks_no_budget(tmp_path: Path, round: int) -> None:
    """Kill -9 while answers run: the chain holds, and the leases are booked when they run out."""
    path = str(tmp_path / "store.db")
    store = Database(path)
    store.migrate()
    Budgets(store).set("tokens", 1000)
    tokenizer = load_tokenizer(bundled_model())
    with LoopbackServer(tokenizer, lambda request: LONG) as upstream:
        command = [sys.executable, "-m", "anabranch.cli.app", "serve", "--engine", upstream.url,
                   "--tokenizer", str(bundled_model()), "--port", "0", "--store", path, "--no-key",
                   "--name", "lab"]  # fmt: skip
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONUNBUFFERED="1")
        )
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1].removesuffix("/v1")
        upstream.manners = type(upstream.manners)(pace=0.02)

        async def leave() -> None:
            pending = asyncio.ensure_future(ask_many([url] * 4, None, max_tokens=200))
            # The store is another process's: there is nothing here to be woken by.
            while sum(b.reserved for b in Budgets(store).list()) < 200 * (round + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            server.send_signal(signal.SIGKILL)
            await asyncio.gather(pending, return_exceptions=True)

        asyncio.run(leave())
        server.wait(10)
        server.stdout.close()
    assert AuditTrail(store).verify()[1] is None
    from anabranch.gateway.store.budgets import reclaim

    before = Budgets(store).list()[0]
    with store.transaction() as connection:
        reclaim(connection, time.time() + 3600)
    (after,) = Budgets(store).list()
    assert after.reserved == 0 and after.spent == before.spent + before.reserved <= 1000
    store.close()


def test_a_database_that_goes_away_and_returns(
    make_gateway: Callable[..., Any], postgres: str, postgres_server: Any
) -> None:
    """New requests are refused meanwhile; what a running one cost is booked afterwards."""
    database = Database(postgres)
    database.migrate()
    budgets = Budgets(database)
    budgets.set("tokens", 1000)
    running, goes_on = threading.Event(), threading.Event()

    def script(request: Any) -> str:
        if QUESTION in request.text:
            running.set()
            assert goes_on.wait(60)
        return "12"

    ledger = StoreLedger(database, need_key=False, retry_seconds=0.05)
    gateway = make_gateway(ledger=ledger, script=script)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, gateway.url, None, max_tokens=50)
        assert running.wait(60)
        assert budgets.list()[0].reserved == 50
        postgres_server.stop()
        try:
            refused = ask(gateway.url, None, max_tokens=50)
            assert (refused["status"], refused["error"]["code"]) == (503, "store_unavailable")
            goes_on.set()
            used = answer.result(60)["usage"]["completion_tokens"]
        finally:
            postgres_server.start()
    for _ in range(400):
        (budget,) = budgets.list()
        if not budget.reserved:
            break
        time.sleep(0.05)
    assert (budget.spent, budget.reserved) == (used, 0)
    assert AuditTrail(database).verify()[1] is None
    database.close()


def test_the_commands(cli: Callable[..., Any], fails: Callable[..., str], tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store.db")
    text = cli("gateway", "key", "create", "one", *store).stdout.strip()
    id = text.split("-")[1]
    assert id in cli("gateway", "key", "list", *store).stdout
    assert cli("gateway", "key", "rotate", id, *store).stdout.startswith(f"ab-{id}-")
    cli("gateway", "budget", "set", "tokens", "1000", "--key", id, "--per", "60", *store)
    assert "1000" in cli("gateway", "budget", "list", *store).stdout
    cli("gateway", "budget", "remove", "tokens", "--key", id, "--per", "60", *store)
    cli("gateway", "key", "revoke", id, *store)
    assert "0 records hold" in cli("gateway", "audit", "verify", *store).stdout
    assert "0 records in" in cli("gateway", "audit", "export", tmp_path / "a.jsonl", *store).stdout
    assert "0 requests" in cli("gateway", "audit", "forget", "--subject", "x", *store).stdout
    assert "no such key" in fails("gateway", "key", "revoke", "x", *store)
    assert "use tokens" in fails("gateway", "budget", "set", "hope", "1", *store)
    assert "--subject" in fails("gateway", "audit", "forget", *store)
