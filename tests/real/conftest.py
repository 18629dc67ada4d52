"""A real vLLM server, for the tests of this folder.

They are skipped unless ANABRANCH_VLLM_PYTHON names a Python that has vLLM: a venv of its own, since
its pins conflict with ours. `make test-engines` makes one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer

PYTHON = os.environ.get("ANABRANCH_VLLM_PYTHON")
WINDOW = 1024

Serve = Callable[[Path, Path], AbstractContextManager["Server"]]


@dataclass
class Server:
    url: str
    model: Path
    tokenizer: HFTokenizer

    def running(self) -> float:
        """Requests that the server is working on."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", text, re.M)
        return sum(map(float, found))


@contextmanager
def _serve(folder: Path, logs: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"""{PYTHON} -m vllm.entrypoints.openai.api_server --model {folder}
        --host 127.0.0.1 --port {port} --enforce-eager --dtype float32 --block-size 32
        --max-model-len {WINDOW} --enable-prompt-tokens-details"""
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "OMP_NUM_THREADS": "1",
    }
    log = logs / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["nice", "-n", "10", *command.split()],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url + "/health", process, log)
        yield Server(url, folder, load_tokenizer(folder))
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
    pytest.fail("vLLM did not start within 300 s: " + log.read_text()[-3000:])


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Serves a model's folder; the log goes to the second folder."""
    if not PYTHON:
        pytest.skip("ANABRANCH_VLLM_PYTHON names no Python with vLLM")
    return _serve
