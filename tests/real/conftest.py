"""Real servers for the tests of this folder: vLLM on the CPU and llama.cpp.

They run in environments of their own, since their pins conflict with ours: ANABRANCH_VLLM_PYTHON
and ANABRANCH_LLAMACPP_PYTHON name their Pythons, `make test-engines` makes both. Without them the
tests are skipped; a name that leads nowhere, or a server that does not start, is a failure.
ANABRANCH_SMOLLM2 names a folder with SmolLM2-135M-Instruct for the tests that run on request.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from anabranch.engines.tokenizers import HFTokenizer, load_tokenizer
from anabranch.lab.bundled import bundled_model
from anabranch.lab.tokenizer import save_tokenizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "engines")]

WINDOW = 1024
#: Tokens of one block of vLLM's prefix cache, as it is started here.
BLOCK = 32

Serve = Callable[..., AbstractContextManager["Server"]]


@dataclass
class Server:
    """A running server.

    Attributes:
        model: the folder or file that it serves.
        process: the server's; it leads a process group of its own.
    """

    url: str
    model: Path
    tokenizer: HFTokenizer
    process: subprocess.Popen[bytes]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)", text, re.M)
        assert found, f"{name} is not in the metrics"
        return sum(map(float, found))

    def running(self) -> float:
        """Requests that vLLM is working on, or that wait."""
        return self.metric("vllm:num_requests_(?:running|waiting)")

    def sampled(self) -> float:
        """Tokens that vLLM has generated so far."""
        return self.metric("vllm:generation_tokens_total")

    def kill(self) -> None:
        """Ends the server and its workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def python_of(name: str) -> str:
    """The Python that an environment variable names."""
    python = os.environ.get(name)
    if not python:
        pytest.skip(f"{name} names no Python (make test-engines sets it)")
    if not Path(python).is_file():
        pytest.fail(f"{name}: there is no {python}")
    return python


def _let_the_server_go_first(process: subprocess.Popen[bytes]) -> None:
    """vLLM's engine processes spin while they wait; on two cores they starve its own API server."""
    for child in psutil.Process(process.pid).children(recursive=True):
        for thread in child.threads():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread.id, 15)


@contextmanager
def launched(
    command: list[str], settings: dict[str, str], url: str, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, from its first answer to its end."""
    with log.open("w") as output:
        process = subprocess.Popen(
            ["nice", "-n", "10", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    try:
        _wait_for(url + "/health", process, log)
        _let_the_server_go_first(process)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                pytest.fail(f"the server ended before it answered: {log.read_text()[-3000:]}")
            time.sleep(0.5)
    pytest.fail(f"no answer from {url} within 300 s: {log.read_text()[-3000:]}")


@contextmanager
def serve_vllm(
    folder: Path,
    logs: Path,
    dtype: str = "float32",
    window: int = WINDOW,
    cache: int = 1,
    dev: bool = False,
) -> Iterator[Server]:
    python, port = python_of("ANABRANCH_VLLM_PYTHON"), free_port()
    command = f"""{python} -m vllm.entrypoints.openai.api_server --model {folder}
        --host 127.0.0.1 --port {port} --enforce-eager --dtype {dtype} --block-size {BLOCK}
        --max-model-len {window} --enable-prompt-tokens-details"""
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(cache),
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "OMP_NUM_THREADS": "1",
    }
    if dev:  # the routes that take new weights
        settings["VLLM_SERVER_DEV_MODE"] = "1"
    url = f"http://127.0.0.1:{port}"
    with launched(command.split(), settings, url, logs / f"vllm-{port}.log") as process:
        yield Server(url, folder, load_tokenizer(folder), process)


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Serves a model's folder with vLLM; the log goes to the second folder."""
    python_of("ANABRANCH_VLLM_PYTHON")
    return serve_vllm


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[Server]:
    """The bundled model on vLLM in float32, one server for all tests."""
    with serve(bundled_model(), tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bundled model on llama.cpp in float32, with four slots."""
    python, port = python_of("ANABRANCH_LLAMACPP_PYTHON"), free_port()
    folder = tmp_path_factory.mktemp("llamacpp")
    file = folder / "lab.gguf"
    written = subprocess.run(
        [python, str(HERE / "lab_gguf.py"), str(bundled_model()), str(file)],
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr[-2000:]
    command = [python, str(HERE / "llamacpp_server.py"), str(file), str(port)]
    url = f"http://127.0.0.1:{port}"
    settings = {"OMP_NUM_THREADS": "1"}
    with launched(command, settings, url, folder / "server.log") as process:
        yield Server(url, file, load_tokenizer(bundled_model()), process)


@pytest.fixture(scope="session")
def random_llama() -> Callable[..., None]:
    """Saves a tiny random Llama with the lab's tokenizer: ``save(folder, **config)``."""

    def save(folder: Path, **settings: Any) -> None:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        save_tokenizer(folder)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=len(load_tokenizer(folder)),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            **settings,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder)

    return save
