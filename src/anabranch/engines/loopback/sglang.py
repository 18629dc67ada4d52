"""A small server that speaks SGLang's native protocol, for tests; the rest is the loopback server.

Written from SGLang's documentation and source, not from a running one. It streams the whole output
so far in every event, as SGLang does by default, or only what is new (its option
`--incremental-streaming-output`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from anabranch.engines.loopback.data import Reply, Served
from anabranch.engines.loopback.generation import Generation
from anabranch.engines.loopback.server import LoopbackServer


class SGLangServer(LoopbackServer):
    """The server; takes what :class:`LoopbackServer` takes, and may be changed while it runs.

    Attributes:
        incremental: events hold what is new, instead of all so far; ``late_scores`` that
            log-probs are still all so far, as in versions before that was aligned.
        renamed: also serves the newer names `/model_info` and `/server_info`.
        aborts: request ids that were to be aborted.
    """

    incremental = False
    late_scores = False
    renamed = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.aborts: list[str] = []

    def _routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        for name, handler in (("model_info", self._model), ("server_info", self._server)):
            app.router.add_get(f"/get_{name}", handler)
            if self.renamed:
                app.router.add_get(f"/{name}", handler)

    async def _model(self, request: web.Request) -> web.Response:
        if refusal := self._refuse_key(request):
            return refusal
        return web.json_response({"model_path": self.models[0], "is_generation": True})

    async def _server(self, _: web.Request) -> web.Response:
        window = self.manners.window
        return web.json_response({"max_total_num_tokens": window and window * 4})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        self._changed.set()
        return web.Response()

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        return list(body["input_ids"])

    def _refuse(self, body: dict[str, Any]) -> web.Response | None:
        return None  # a streamed request is refused by an event

    def _events(self, served: Served, reply: Reply) -> Iterable[str]:
        if reply.raw is not None:
            yield from super()._events(served, reply)
            return
        window, cap = self.manners.window, served.body["sampling_params"]["max_new_tokens"]
        if window is not None and len(served.prompt) + cap >= window:
            message = (
                "Requested token count exceeds the model's maximum context length of "
                f"{window} tokens. You requested a total of {len(served.prompt) + cap} tokens: "
                f"{len(served.prompt)} tokens from the input messages and {cap} tokens for the "
                "completion."
            )
            yield json.dumps({"error": {"message": message}})
            yield "[DONE]"
            return
        yield from self._outputs(served, reply)

    def _outputs(self, served: Served, reply: Reply) -> Iterable[str]:
        asked = _as_completion(served.body)
        cached = self.cache.cached(served.prompt)
        generation = Generation(self.tokenizer, self.manners, asked, reply)
        text, scores, sent = "", list[list[Any]](), 0
        for choice in generation.choices():
            text += choice["text"]
            new = generation.sampled[sent:]
            sent += len(new)
            scores += [[reply.logprob, token, None] for token in new]
            meta: dict[str, Any] = {
                "id": served.body["rid"],
                "finish_reason": _finish(choice, generation.sampled),
                "prompt_tokens": len(served.prompt),
                "completion_tokens": len(generation.sampled),
                "cached_tokens": cached,
            }
            delta = self.incremental
            if served.body.get("return_logprob") and self.manners.logprobs:
                part = scores[-len(new) :] if new else []
                meta["output_token_logprobs"] = part if delta and not self.late_scores else scores
            event = {"text": choice["text"] if delta else text, "meta_info": meta}
            if self.manners.ids_out:
                event["output_ids"] = new if delta else generation.sampled
            yield json.dumps(event)
        self.cache.add([*served.prompt, *generation.sampled])
        yield "[DONE]"


def _as_completion(body: dict[str, Any]) -> dict[str, Any]:
    """The request in the words of the completions protocol."""
    sampling = body["sampling_params"]
    return {
        "stop": sampling.get("stop"),
        "max_tokens": sampling["max_new_tokens"],
        "include_stop_str_in_output": sampling.get("no_stop_trim", False),
    }


def _finish(choice: dict[str, Any], sampled: list[int]) -> dict[str, Any] | None:
    reason = choice["finish_reason"]
    if reason is None:
        return None
    if reason == "length":
        return {"type": "length", "length": len(sampled)}
    return {"type": "stop", "matched": choice.get("stop_reason") or sampled[-1]}
