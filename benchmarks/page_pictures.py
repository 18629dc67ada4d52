"""Pictures of the three pages, taken in Chromium from real ones, for the documentation.

    python benchmarks/page_pictures.py [FOLDER]        # default: docs/pictures

The trajectories are the lab's references, the live page that of a gateway which this starts.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
from playwright.sync_api import Browser, sync_playwright

from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.loopback.data import Manners
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway.store import Budgets, Database, Keys
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply, reference_trajectory
from anabranch.lab.families import draw
from anabranch.training.layout import build_layout
from anabranch.views import Page, tree_page, write_pages


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        _records(work)
        # The gateway first: the browser's driver has an event loop of its own in this thread.
        with _gateway(work) as (url, key), _browser() as browser:
            _take(browser, f"{url}/pages/live", folder / "live.png", key=key)
            _take(browser, (work / "river.html").as_uri(), folder / "trajectory.png")
            _take(browser, (work / "tree.html").as_uri(), folder / "tree.png", click="#token-40")
    for picture in sorted(folder.glob("*.png")):
        print(f"{picture}: {picture.stat().st_size} bytes")


@contextmanager
def _browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _take(
    browser: Browser, url: str, target: Path, *, click: str | None = None, key: str | None = None
) -> None:
    login: Any = {"username": "me", "password": key} if key else None
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme="light", http_credentials=login
    )
    tab = context.new_page()
    tab.goto(url)
    tab.wait_for_selector("body[data-ready=yes]")
    if click:
        tab.locator(click).click()
    tab.screenshot(path=target)
    context.close()


def _records(folder: Path) -> None:
    tokenizer = load_tokenizer(bundled_model())
    rng = random.Random(3)
    made = []
    for number in range(40):
        family, size = (("chains", (3, 2)), ("puzzle", (2,)))[number % 2]
        form: Literal["sequential", "parallel"] = "sequential" if number % 5 == 4 else "parallel"
        made.append(reference_trajectory(draw(rng, family, size), form, tokenizer))
    write_pages(folder / "river.html", map(Page.of_trajectory, made), "Lab references")
    page = tree_page(
        build_layout(made[0]), lambda ids: [tokenizer.decode([i]) for i in ids], "Tree"
    )
    (folder / "tree.html").write_text(page, encoding="utf-8")


def _reply(request: Any) -> str:
    try:
        return perfect_reply(request.text)
    except ValueError:
        return "12"


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, str]]:
    """A gateway that has answered sixty requests and has some in flight; its URL and admin key."""
    store = Database(str(folder / "store.db"))
    store.migrate()
    keys = [Keys(store).create(name)[1] for name in ("reader", "writer")]
    admin = Keys(store).create("chief", ("admin",))[1]
    Budgets(store).set("tokens", 30_000, seconds=86_400)
    with LoopbackServer(load_tokenizer(bundled_model()), _reply) as upstream:
        command = [sys.executable, "-m", "anabranch.cli.app", "serve", "--engine", upstream.url,
                   "--tokenizer", str(bundled_model()), "--port", "0", "--store",
                   str(folder / "store.db"), "--price-sampled", "2", "--name", "lab"]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert server.stdout is not None
        found = re.search(r"https?://\S+(?=/v1)", server.stdout.readline())
        assert found, "the gateway did not start"
        try:
            asyncio.run(_ask(found[0], keys, 60))
            upstream.manners = Manners(pace=0.2)
            with _in_flight(found[0], keys):
                yield found[0], admin
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
            store.close()


@contextmanager
def _in_flight(url: str, keys: list[str]) -> Iterator[None]:
    command = [sys.executable, __file__, "--ask", url, *keys]
    asking = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert asking.stdout is not None
    asking.stdout.readline()
    try:
        yield
    finally:
        asking.kill()
        asking.wait()
        asking.stdout.close()


async def _ask(url: str, keys: list[str], count: int) -> None:
    rng = random.Random(4)

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {"messages": [{"role": "user", "content": draw(rng, "chains", (3, 2)).text}],
                "max_tokens": 30 if number % 9 == 5 else 400}  # fmt: skip
        headers = {"Authorization": f"Bearer {keys[number % 3 > 1]}"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()

    async with aiohttp.ClientSession() as session:
        for start in range(0, count, 6):
            await asyncio.gather(*(one(session, start + place) for place in range(6)))


async def _ask_and_stay(url: str, keys: list[str]) -> None:
    pending = asyncio.ensure_future(_ask(url, keys, 6))
    await asyncio.sleep(0.7)
    print("asked", flush=True)
    await pending


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        asyncio.run(_ask_and_stay(sys.argv[2], sys.argv[3:]))
    else:
        main(Path(sys.argv[1]) if sys.argv[1:] else Path("docs/pictures"))
