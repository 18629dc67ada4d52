"""LiteLLM and LangChain know nothing of us and work; in an environment of their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anabranch.lab.families import draw_distinct

PYTHON = os.environ.get("ANABRANCH_CLIENTS_PYTHON")


@pytest.mark.skipif(
    PYTHON is None,
    reason="ANABRANCH_CLIENTS_PYTHON names no Python with litellm and langchain-openai",
)
def test_litellm_and_langchain(gateway: Any) -> None:
    problem = draw_distinct(4, "chains", (3, 5), 1)[0]
    answer = f"\\boxed{{{problem.solve('parallel').answer}}}"
    script = Path(__file__).parent / "clients.py"
    done = subprocess.run(
        [str(PYTHON), str(script), gateway.url, problem.text],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.pop("litellm reasoning") is True
    tokens = {found.pop("litellm tokens"), found.pop("langchain tokens")}
    assert tokens == {gateway.watcher.tickets[0].spent.sampled}
    assert set(found.values()) == {answer}
