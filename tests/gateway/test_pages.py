"""The gateway's pages: behind the admin scope, and in a real browser."""

import asyncio
import base64
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch.checkpoint import load_checkpoint_info
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.gateway import Defaults, Model, Service, create_app
from anabranch.gateway.ledger import Prices, StoreLedger
from anabranch.gateway.live import Live
from anabranch.gateway.pages import page_routes
from anabranch.gateway.store import Budgets, Database, Keys
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply
from anabranch.lab.families import draw

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def reply(request: Any) -> str:
    try:
        return perfect_reply(request.text)
    except ValueError:  # what the engine asks to find out what the server can do
        return "12"


class Site:
    """A gateway with keys and pages, that has answered a few requests."""

    def __init__(self, url: str, infer: str, admin: str) -> None:
        self.url, self.infer, self.admin = url, infer, admin

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        async def main() -> tuple[int, Any, dict[str, str]]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(self.url + path, headers=headers) as answer,
            ):
                is_json = answer.content_type == "application/json"
                content = await (answer.json() if is_json else answer.text())
                return answer.status, content, dict(answer.headers)

        return asyncio.run(main())

    async def ask(self, key: str, count: int) -> None:
        rng = random.Random(4)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
            for number in range(count):
                text = draw(rng, "chains", (3, 2)).text
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 400}
                if number == 3:
                    body["max_tokens"] = 30
                async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()


@pytest.fixture(scope="module")
def site(listen: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    store = Database(str(tmp_path_factory.mktemp("pages") / "store.db"))
    store.migrate()
    Budgets(store).set("tokens", 5000)
    infer = Keys(store).create("<b>reader</b>")[1]
    admin = Keys(store).create("chief", ("admin",))[1]
    tokenizer = load_tokenizer(bundled_model())
    with LoopbackServer(tokenizer, reply) as upstream:
        engine = CompletionsEngine(upstream.url, tokenizer=tokenizer)
        ledger = StoreLedger(store, prices=Prices(1, 2), contents="full")
        info = load_checkpoint_info(bundled_model())
        defaults = Defaults(temperature=0)
        service = Service(
            {"lab": Model("lab", engine, info, bundled_model())}, defaults, ledger=ledger
        )
        live = Live(Prices(1, 2), keep=20)
        service.observers.add(live)
        with listen(create_app(service, page_routes(live, ledger, ledger.budgets))) as url:
            made = Site(url, infer, admin)
            asyncio.run(made.ask(infer, 8))
            asyncio.run(made.ask("ab-bad", 1))
            yield made


PATHS = ["/pages/live", "/pages/live.json", "/pages/trajectories"]


@pytest.mark.parametrize("path", PATHS)
def test_pages_are_for_admins(site: Site, path: str) -> None:
    status, _, headers = site.get(path, {})
    assert status == 401 and headers["WWW-Authenticate"].startswith("Basic")
    assert site.get(path, {"Authorization": f"Bearer {site.infer}"})[0] == 403
    assert site.get(path, {"Authorization": "Basic %%%"})[0] == 401
    assert site.get(path, {"Authorization": f"Bearer {site.admin}"})[0] == 200
    packed = base64.b64encode(f"me:{site.admin}".encode()).decode()
    assert site.get(path, {"Authorization": f"Basic {packed}"})[0] == 200


def test_an_admins_key_does_not_ask_for_answers(site: Site) -> None:
    before = site.get("/pages/live.json", {"Authorization": f"Bearer {site.admin}"})[1]
    asyncio.run(site.ask(site.admin, 1))
    after = site.get("/pages/live.json", {"Authorization": f"Bearer {site.admin}"})[1]
    assert after["refused"]["403 wrong_scope"] == before["refused"].get("403 wrong_scope", 0) + 1


def test_the_figures(site: Site) -> None:
    data = site.get("/pages/live.json", {"Authorization": f"Bearer {site.admin}"})[1]
    (group,) = data["groups"]
    assert group["ended"] == 8 and group["outcomes"] == {"answered": 7, "truncated": 1}
    assert data["in_flight"] == 0 and len(data["last"]) == 8
    assert group["sampled"] > group["path"] > 0 and group["cost"] > 0
    assert 0 < group["first_median"] <= group["seconds_median"] <= group["seconds_95"]
    (budget,) = data["budgets"]
    assert budget["spent"] == group["sampled"] and budget["reserved"] == 0
    assert data["refused"]["401 invalid_api_key"] == 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here (Debian: chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser: Any, site: Site, scheme: str, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    context = browser.new_context(
        http_credentials={"username": "me", "password": site.admin},
        color_scheme=scheme, viewport={"width": 1280, "height": 800},
    )  # fmt: skip
    tab = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(f"{site.url}/pages/live")
    tab.wait_for_selector("body[data-ready=yes]")
    assert tab.locator("#groups tr").count() == 1 and tab.locator("#last rect").count() == 8
    assert "spent" in tab.locator("#budgets").inner_text()
    assert "7 answered, 1 truncated" in str(tab.locator("#last").get_attribute("aria-label"))
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    tab.goto(f"{site.url}/pages/trajectories")
    tab.wait_for_selector("body[data-ready=yes]")
    assert tab.locator(".lane-shape").count() >= 2
    ours = (site.url, "data:")
    assert [url for url in requests if not url.startswith(ours)] == []
    # The browser first asks without the key, and says so.
    assert [one for one in complaints if "401" not in one] == []
    context.close()
