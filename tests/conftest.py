"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.engines.loopback import LoopbackServer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.data import perfect_reply

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
