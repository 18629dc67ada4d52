"""Whatever fits the OpenAPI document, and much that does not, gets no server error."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

#: Requests of each operation and phase.
EXAMPLES = 8


@pytest.mark.timeout(240)
def test_schemathesis_finds_no_server_error(
    make_gateway: Callable[..., Any], tmp_path: Path
) -> None:
    gateway = make_gateway()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{gateway.url}/openapi.json",
            "--checks",
            "not_a_server_error",
            "--max-examples",
            str(EXAMPLES),
            "--seed",
            "1",
            "--request-timeout",
            "20",
            "--no-color",
        ],
        capture_output=True,
        text=True,
        timeout=220,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert counted is not None and counted[1] == counted[2], done.stdout[-2000:]
    assert int(counted[1]) > 50
    assert len(gateway.watcher.tickets) > 0
