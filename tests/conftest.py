"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

from anabranch.cli.app import main
from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply

# The same examples in every run, and no time limit for one of them on a busy machine.
settings.register_profile("seeded", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("seeded")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with traces and problem sets that are not part of the repository."""
    folder = Path(os.environ.get("ANABRANCH_TEST_DATA", ROOT.parent / "shared"))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no test data in {folder} (set ANABRANCH_TEST_DATA)")
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two threads on a busy machine are far slower than one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def bundled_server() -> Iterator[str]:
    """The URL of a server that answers lab prompts, and anything else somehow."""

    def script(request: object) -> str:
        try:
            return perfect_reply(request.text)  # type: ignore[attr-defined]
        except ValueError:
            return "12"

    with LoopbackServer(load_tokenizer(bundled_model()), script) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium; skips where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium here (Debian: chromium)")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Done]:
    """Runs the command line in this process, as its entry point does; warnings are errors too."""

    def run(*arguments: object, code: int | None = 0) -> Done:
        out, err, status = StringIO(), StringIO(), 0
        with (
            chdir(tmp_path),
            redirect_stdout(out),
            redirect_stderr(err),
            patch("sys.argv", ["anabranch", *map(str, arguments)]),
            patch.dict(os.environ, {"COLUMNS": "120"}),
        ):
            try:
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        done = Done(status, out.getvalue(), err.getvalue())
        if code is not None:
            assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def fails(cli: Callable[..., Done]) -> Callable[..., str]:
    """The one line that a failing command says."""

    def run(*arguments: object) -> str:
        done = cli(*arguments, code=None)
        assert done.returncode != 0, done.stdout
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("anabranch: "), done.stderr
        return lines[0]

    return run
