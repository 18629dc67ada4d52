"""Weights reach an engine, and an engine that did not take them is found out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from rl_cases import fresh_model

from anabranch.engines.local import LocalEngine
from anabranch.errors import EngineError
from anabranch.lab.bundled import bundled_model
from anabranch.training.rollouts import EngineSampler
from anabranch.training.weight_sync import LocalSync, SGLangSync, VLLMSync, write_weights

PROMPTS = ((1, 40, 41, 42), (1, 50, 51))


@contextmanager
def server(answers: dict[str, tuple[int, Any]], seen: list[tuple[str, Any]]) -> Iterator[str]:
    """A loopback server that answers POSTs by path."""
    import json
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.path, json.loads(body) if body else None))
            status, answer = answers.get(self.path, (404, {"error": "no such route"}))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def move(model: Any, by: float = 0.02) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * by)


def test_new_weights_are_proven() -> None:
    model, _ = fresh_model()
    engine = LocalEngine(bundled_model(), threads=1)
    sync = LocalSync(engine, shared=False)
    sampler = EngineSampler(engine, sync, probe_prompts=PROMPTS, probe_gap=1e-3)
    try:
        for _ in range(2):
            gap = sampler.update(model)
            assert gap is not None and gap < 1e-4
            move(model)
        sampler.update(model)
    finally:
        sampler.close()


class Deaf:
    """Says yes and does nothing."""

    async def push(self, model: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("gap", "message"),
    [(1e-3, "did not take the new weights: it answers to the last bit as"), (1e9, "last bit")],
)
def test_a_reload_that_did_not_happen_is_found(gap: float, message: str) -> None:
    model, _ = fresh_model()
    engine = LocalEngine(bundled_model(), threads=1, max_cached_tokens=0)
    sampler = EngineSampler(engine, Deaf(), probe_prompts=PROMPTS, probe_gap=gap)
    try:
        sampler.update(model)
        sampler.update(model)  # nothing has changed: the same bits are right
        move(model)
        with pytest.raises(EngineError, match=message):
            sampler.update(model)
    finally:
        sampler.close()


def test_other_weights_from_the_beginning_are_found() -> None:
    model, _ = fresh_model()
    move(model)
    engine = LocalEngine(bundled_model(), threads=1)
    sampler = EngineSampler(engine, Deaf(), probe_prompts=PROMPTS)
    try:
        with pytest.raises(EngineError, match=r"does not answer with the trainer's weights: .*"):
            sampler.update(model)
    finally:
        sampler.close()


def test_a_cache_that_was_not_reset_is_found() -> None:
    model, _ = fresh_model()
    engine = LocalEngine(bundled_model(), threads=1)
    sampler = EngineSampler(engine, Deaf(), probe_prompts=PROMPTS)
    try:
        sampler.update(model)
        with pytest.raises(EngineError, match="came from a cache that was to be reset"):
            sampler.update(model)
    finally:
        sampler.close()


def test_vllm_routes(tmp_path: Path) -> None:
    import asyncio

    model, _ = fresh_model()
    seen: list[tuple[str, Any]] = []
    routes = {"/collective_rpc": (200, {"results": [None]}), "/reset_prefix_cache": (200, None)}
    with server(routes, seen) as url:
        asyncio.run(VLLMSync(url, tmp_path).push(model))
    assert seen == [
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/reset_prefix_cache", None),
    ]
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    with server({}, []) as url, pytest.raises(EngineError, match="/collective_rpc answered 404"):
        asyncio.run(VLLMSync(url, tmp_path).push(model))
    with pytest.raises(EngineError, match="/collective_rpc"):
        asyncio.run(VLLMSync(url, tmp_path).push(model))


def test_sglang_says_whether_it_worked(tmp_path: Path) -> None:
    import asyncio

    model, _ = fresh_model()
    seen: list[tuple[str, Any]] = []
    path = "/update_weights_from_disk"
    with server({path: (200, {"success": True, "message": ""})}, seen) as url:
        asyncio.run(SGLangSync(url, tmp_path).push(model))
    assert seen == [(path, {"model_path": str(tmp_path), "flush_cache": True})]
    with (
        server({path: (200, {"success": False, "message": "no such file"})}, []) as url,
        pytest.raises(EngineError, match="did not take the new weights: no such file"),
    ):
        asyncio.run(SGLangSync(url, tmp_path).push(model))


def test_weights_are_replaced_and_nothing_else(tmp_path: Path) -> None:
    model, _ = fresh_model()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"old")
    write_weights(model, tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    names = {path.name for path in tmp_path.iterdir()}
    assert "model.safetensors" in names
    assert "model-00001-of-00002.safetensors" not in names
