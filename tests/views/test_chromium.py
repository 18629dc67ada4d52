"""The pages in a real browser: drawn, reached by keyboard, without errors, requests or barriers."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.engines.tokenizers import load_tokenizer
from anabranch.jsonl import write_records
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import reference_trajectory
from anabranch.lab.families import draw
from anabranch.records import Trajectory
from anabranch.training.layout import build_layout
from anabranch.views import Page as Entry
from anabranch.views import tree_page, write_pages

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    tokenizer = load_tokenizer(bundled_model())
    rng = random.Random(3)
    made = []
    for number in range(40):
        family, size = (("chains", (3, 2)), ("puzzle", (2,)))[number % 2]
        form = "sequential" if number % 5 == 4 else "parallel"
        trajectory = reference_trajectory(draw(rng, family, size), form, tokenizer)
        made.append(trajectory.model_copy(update={"id": f"row {number}"}))
    return made


class Visit:
    """A page in the browser, with everything that it complained of or asked for."""

    def __init__(self, browser: object, file: Path, scheme: str = "light") -> None:
        self.tab = browser.new_page(  # type: ignore[attr-defined]
            viewport={"width": 1280, "height": 800}, color_scheme=scheme
        )
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())
        self.tab.wait_for_selector("body[data-ready=yes]")

    def check(self) -> None:
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def file(trajectories: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pages") / "page.html"
    write_pages(target, map(Entry.of_trajectory, trajectories), "lab")
    return target


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barriers(browser: object, file: Path, scheme: str) -> None:
    visit = Visit(browser, file, scheme)
    found = axe.Axe().run(visit.tab)
    assert found.violations_count == 0, found.generate_report()
    visit.check()


def test_river_is_drawn_and_walked_by_keyboard(browser: object, file: Path) -> None:
    visit = Visit(browser, file)
    tab = visit.tab
    assert tab.locator(".lane-shape").count() == 4  # the main line and three chains
    tab.locator(".lane-shape").first.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".lane-shape.on").get_attribute("aria-label").startswith("Branch 1, subtask")
    assert "Branch 1, subtask, closed" in tab.locator("#text h3").inner_text()
    tab.locator("#list").focus()
    tab.keyboard.press("ArrowDown")
    playwright.expect(tab.locator("#name")).to_have_text("row 1")
    assert tab.locator("#by-time").is_disabled()  # references have no times
    visit.check()


def test_search_and_filters(browser: object, file: Path) -> None:
    visit = Visit(browser, file)
    tab = visit.tab
    tab.select_option("#shape", "sequential")
    assert tab.locator("#count").inner_text() == "8 of 40"
    tab.keyboard.press("/")
    tab.keyboard.type("row 39")
    assert tab.locator("#count").inner_text() == "1 of 40"
    tab.locator(".row").click()
    playwright.expect(tab.locator("#name")).to_have_text("row 39")
    assert tab.locator(".lane-shape").count() == 1
    visit.check()


def test_ten_thousand_rows_open_with_only_the_visible_ones_drawn(
    browser: object, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    page = Entry.of_trajectory(trajectories[0])
    target = tmp_path / "many.html"

    def many() -> Iterator[Entry]:
        for number in range(10_000):
            page.id = f"row {number}"
            yield page

    write_pages(target, many(), "many")
    visit = Visit(browser, target)
    assert visit.tab.locator("#count").inner_text() == "10000 of 10000"
    assert visit.tab.locator(".row").count() < 40
    visit.tab.fill("#search", "row 9999")
    assert visit.tab.locator("#count").inner_text() == "1 of 10000"
    visit.check()


def test_tree(browser: object, trajectories: list[Trajectory], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bundled_model())
    layout = build_layout(trajectories[0])
    target = tmp_path / "tree.html"
    target.write_text(tree_page(layout, lambda ids: [tokenizer.decode([i]) for i in ids], "tree"))
    visit = Visit(browser, target)
    tab = visit.tab
    assert tab.locator("#tokens > span").count() == len(layout)
    tab.locator("#token-20").click()
    assert "position (depth)" in tab.locator("#one").inner_text()
    seen = tab.locator("#tokens .seen").count()
    assert seen == sum(k < 20 < layout.subtree_end[k] for k in range(20))
    assert axe.Axe().run(tab).violations_count == 0
    visit.check()


def test_files_of_the_command_open(
    browser: object, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    write_records(tmp_path / "rows.jsonl", trajectories[:2])
    target = tmp_path / "rows.html"
    write_pages(target, map(Entry.of_trajectory, trajectories[:2]), "rows")
    Visit(browser, target).check()
