"""A small server that speaks the chat protocol, for tests: streamed answers, reasoning, tool calls.

The rest is the loopback server. A script says what the model answers to a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from anabranch.engines.loopback.data import Fault, Reply, Served
from anabranch.engines.loopback.server import LoopbackServer


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What the model answers.

    Attributes:
        content, reasoning: its texts.
        calls: tool calls, as (name, arguments); arguments that are no text become JSON.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


class ChatServer(LoopbackServer):
    """The server; takes what :class:`LoopbackServer` takes. The attributes may be changed.

    Attributes:
        caps: fields that cap an answer here; others are ignored.
        refused: fields that are answered with 400, as hosted models do.
        reasoning_field: where reasoning goes; "" leaves it in the content between think tags.
        continues: continues an assistant's message when asked, and shows the prompt's ids.
    """

    caps: tuple[str, ...] = ("max_completion_tokens", "max_tokens")
    refused: tuple[str, ...] = ()
    reasoning_field = "reasoning_content"
    continues = False

    def _routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._generate)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        messages = body["messages"]
        text = "".join(f"[{one['role']}]{one.get('content') or ''}\n" for one in messages)
        if body.get("continue_final_message") and self.continues:
            text = text.removesuffix("\n")
        return self.tokenizer.encode(text)

    def _refuse(self, body: dict[str, Any]) -> web.Response | None:
        for field in self.refused:
            if field in body:
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                return web.json_response({"error": {"message": message}}, status=400)
        if body.get("model") not in self.models:
            message = f"The model `{body.get('model')}` does not exist."
            return web.json_response({"error": {"message": message}}, status=404)
        return None

    async def _answer(
        self, request: web.Request, served: Served, fault: Fault | None
    ) -> web.StreamResponse:
        if served.body.get("stream"):
            return await super()._answer(request, served, fault)
        answer: dict[str, Any] = {"choices": [{"message": {"content": " "}}]}
        if self.continues:
            answer["prompt_token_ids"] = list(served.prompt)
        return web.json_response(answer)

    def _events(self, served: Served, reply: Reply | ChatReply) -> Iterable[str]:
        if isinstance(reply, Reply):
            if reply.raw is not None:
                yield from super()._events(served, reply)
                return
            reply = ChatReply(reply.text)
        body, sampled = served.body, 0
        frame = {"id": "chat-0", "object": "chat.completion.chunk", "model": body["model"]}
        cap = min((body[field] for field in self.caps if field in body), default=10**9)
        reason = "tool_calls" if reply.calls else "stop"
        for delta, tokens in self._deltas(reply):
            if sampled + tokens > cap or (self.manners.cap and sampled >= cap):
                reason = "length" if self.manners.honest else "stop"
                break
            sampled += tokens
            stopped = self._stopped(body, delta)
            yield json.dumps({**frame, "choices": [_choice(delta, None)]})
            if stopped:
                break
        yield json.dumps({**frame, "choices": [_choice({}, reason)]})
        if self.manners.usage and (body.get("stream_options") or {}).get("include_usage"):
            prompt = len(served.prompt)
            usage = {"prompt_tokens": prompt, "completion_tokens": sampled}
            yield json.dumps({**frame, "choices": [], "usage": usage})
        yield "[DONE]"

    def _deltas(self, reply: ChatReply) -> Iterator[tuple[dict[str, Any], int]]:
        yield {"role": "assistant", "content": ""}, 0
        content = reply.content
        if reply.reasoning and self.reasoning_field:
            for piece in self._pieces(reply.reasoning):
                yield {self.reasoning_field: piece}, 1
        elif reply.reasoning:
            content = f"<think>{reply.reasoning}</think>{content}"
        for piece in self._pieces(content):
            yield {"content": piece}, 1
        for index, (name, arguments) in enumerate(reply.calls):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            head = {"index": index, "id": f"call_{index}", "type": "function"}
            yield {"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]}, 1
            for piece in self._pieces(text):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, 1

    def _pieces(self, text: str) -> list[str]:
        return [self.tokenizer.decode([token]) for token in self.tokenizer.encode(text)]

    def _stopped(self, body: dict[str, Any], delta: dict[str, Any]) -> bool:
        return bool(delta.get("content")) and delta["content"] in (body.get("stop") or ())


def _choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}
