"""The HTTP side of the loopback server: routes, refusals, records, and a thread to run in."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from anabranch.engines.base import Tokenizer
from anabranch.engines.loopback.data import Fault, Manners, Reply, Script, Served
from anabranch.engines.loopback.generation import Generation
from anabranch.engines.loopback.sender import Over, Sender
from anabranch.engines.prefix_cache import PrefixCache


class LoopbackServer:
    """The server.

    Args:
        tokenizer: of the model it pretends to serve.
        script: what to generate for a request; a text or a :class:`Reply`.
        models: names that it serves.
        api_key: refuse requests without it.
        port: to listen on; 0 takes a free one.

    Attributes:
        url: `http://127.0.0.1:PORT`, once it runs.
        manners: may be replaced at any time.
        faults: taken from the left, one per completion request; None is a request that goes well.
        served: all completion requests so far.
        sampled: tokens of all of them together.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Script | str = "",
        *,
        models: Iterable[str] = ("loopback",),
        manners: Manners | None = None,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.script: Script = (lambda _: script) if isinstance(script, str) else script
        self.models = tuple(models)
        self.manners = manners or Manners()
        self.api_key = api_key
        self.port = port
        self.faults: deque[Fault | None] = deque()
        self.served: list[Served] = []
        self.sampled = 0
        self.cache = PrefixCache()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()
        self._thread: _Thread | None = None

    @property
    def running(self) -> int:
        """Completion requests that are being answered now."""
        return sum(request.outcome == "running" for request in self.served)

    async def until(self, condition: Callable[[], bool], seconds: float = 1.0) -> bool:
        """Waits for a condition on the requests; False if that takes longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def settled(self, seconds: float = 1.0) -> bool:
        """Waits until no request runs; False if that takes longer than ``seconds``."""
        return await self.until(lambda: not self.running, seconds)

    async def __aenter__(self) -> LoopbackServer:
        app = web.Application(client_max_size=2**26)
        self._routes(app)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def __enter__(self) -> LoopbackServer:
        self._thread = _Thread(self)
        self._thread.begin()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._thread.end()

    def _routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/tokenize", self._tokenise)

    async def _metrics(self, _: web.Request) -> web.Response:
        model = self.models[0] if self.models else ""
        lines = (
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{engine="0",model_name="{model}"}} {self.running}.0',
            "# TYPE vllm:num_requests_waiting gauge",
            f'vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0',
            "# TYPE vllm:generation_tokens_total counter",
            f'vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {self.sampled}.0',
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def _tokenise(self, request: web.Request) -> web.Response:
        if not self.manners.tokenise:
            return _error(404, "Not Found")
        ids = self.tokenizer.encode((await request.json())["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids)})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if refusal := self._refuse_key(request):
            return refusal
        window = self.manners.told_window or self.manners.window
        entries = [{"id": name, "object": "model", "max_model_len": window} for name in self.models]
        return web.json_response({"object": "list", "data": entries})

    def _refuse_key(self, request: web.Request) -> web.Response | None:
        if self.api_key is None or request.headers.get("Authorization") == f"Bearer {self.api_key}":
            return None
        return web.json_response({"error": "Unauthorized"}, status=401)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        ids = body["prompt"]
        return self.tokenizer.encode(ids) if isinstance(ids, str) else ids

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if refusal := self._refuse_key(request) or self._refuse(body):
            return refusal
        ids = self._prompt(body)
        served = Served(body, tuple(ids), self.tokenizer.decode(ids), dict(request.headers))
        self.served.append(served)
        self._changed.set()
        fault = self.faults.popleft() if self.faults else None
        began = time.perf_counter()
        try:
            response = await self._answer(request, served, fault)
            served.outcome = "failed" if fault and fault.kind != "double" else "done"
            return response
        except (asyncio.CancelledError, ConnectionError):
            served.outcome = "left"
            raise
        finally:
            served.seconds = time.perf_counter() - began
            self._changed.set()

    def _refuse(self, body: dict[str, Any]) -> web.Response | None:
        if body.get("model") not in self.models:
            message = f"The model `{body.get('model')}` does not exist."
            return _error(404, message)
        window, prompt, cap = self.manners.window, body["prompt"], body.get("max_tokens", 16)
        if window is not None and len(prompt) + cap > window:
            return _error(
                400,
                f"'max_tokens' or 'max_completion_tokens' is too large: {cap}. This model's "
                f"maximum context length is {window} tokens and your request has "
                f"{len(prompt)} input tokens ({cap} > {window} - {len(prompt)}).",
            )
        return None

    async def _answer(
        self, request: web.Request, served: Served, fault: Fault | None
    ) -> web.StreamResponse:
        if fault and fault.kind == "status":
            return web.Response(
                status=fault.status,
                text=fault.body,
                headers=fault.headers,
                content_type="application/json",
            )
        if fault and fault.kind == "type":
            return web.Response(text="<html>a proxy's page</html>", content_type="text/html")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sender = Sender(self.manners, request, response, served, fault)
        reply: Any = self.script(served)
        reply = Reply(reply) if isinstance(reply, str) else reply
        try:
            for event in self._events(served, reply):
                await sender.send(event)
            await sender.flush()
        except Over:
            pass
        await response.write_eof()
        return response

    def _events(self, served: Served, reply: Reply) -> Iterable[str]:
        if reply.raw is not None:
            for value in reply.raw:
                yield value if isinstance(value, str) else json.dumps(value)
            return
        manners, body = self.manners, served.body
        cached = self.cache.cached(served.prompt)
        generation = Generation(self.tokenizer, manners, body, reply)
        counted = 0
        options = body.get("stream_options") or {}
        frame = {"id": "cmpl-0", "object": "text_completion", "model": body["model"]}
        for choice in generation.choices():
            self.sampled += len(generation.sampled) - counted
            counted = len(generation.sampled)
            event = {**frame, "choices": [choice]}
            if manners.running_usage and options.get("continuous_usage_stats"):
                event["usage"] = {"prompt_tokens": len(served.prompt), "completion_tokens": counted}
            yield json.dumps(event)
        self.cache.add([*served.prompt, *generation.sampled])
        if manners.usage and options.get("include_usage"):
            counts = {
                "prompt_tokens": len(served.prompt),
                "completion_tokens": len(generation.sampled),
                "total_tokens": len(served.prompt) + len(generation.sampled),
                "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
            }
            yield json.dumps({**frame, "choices": [], "usage": counts})
        yield "[DONE]"


class _Thread:
    """The server's own event loop."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._worker = threading.Thread(target=self._run, name="loopback", daemon=True)

    def begin(self) -> None:
        self._worker.start()
        self._ready.wait(10)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._worker.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with self._server:
            self._ready.set()
            await self._stop.wait()


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return web.json_response({"error": error}, status=status)
