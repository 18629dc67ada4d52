"""Engine for hosted chat APIs: `/v1/chat/completions`, streamed, text in and text out.

:meth:`ChatEngine.chat` sends a conversation, with tools; that is what mode ``tools`` uses. The
token protocol (:meth:`generate`) works only where the server was seen to continue an assistant's
message. Sending is :mod:`anabranch.engines.http_engine`, reading
:mod:`anabranch.engines.chat_reader`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal

from anabranch.engines.base import Call, Capabilities, Tokenizer
from anabranch.engines.chat_call import ChatCall, ChatChunk
from anabranch.engines.chat_continue import ContinuationReader, read_chat_prompt
from anabranch.engines.chat_reader import ChatReader
from anabranch.engines.discovery import Found, find_model
from anabranch.engines.estimates import EstimatedTokens
from anabranch.engines.failures import StatusError
from anabranch.engines.http_engine import HttpEngine, Request
from anabranch.engines.reader import Terms
from anabranch.engines.retry import Retries
from anabranch.engines.transport import Timeouts, Transport
from anabranch.errors import EngineError, UsageError

__all__ = ["ChatEngine", "Retries", "Timeouts"]

CHAT = "/v1/chat/completions"
#: Where the key is looked for when none is given.
KEY = "ANABRANCH_API_KEY"

CapField = Literal["max_completion_tokens", "max_tokens"]
_FIELDS: tuple[CapField, ...] = ("max_completion_tokens", "max_tokens")

_PROBE_CAP = 4
#: A capped answer of the probe cannot be longer than this in characters.
_PROBE_TEXT = 200
_COUNT = ({"role": "user", "content": "Count from 1 to 50, separated by commas."},)
_HALF = ({"role": "user", "content": "Say the alphabet."}, {"role": "assistant", "content": "A B"})


class ChatEngine(HttpEngine):
    """An engine behind `/v1/chat/completions`.

    When it opens it makes two or three requests of a few tokens: which field caps an answer is
    found by trying, since servers ignore a field that they do not know; and whether an assistant's
    message can be continued is seen from the ids of the prompt, where the server gives them.

    Args:
        url: the server, with or without `/v1`.
        model: its name at the server; None takes the only one served.
        tokenizer: the model's, for token counts; None: counts are estimates.
        api_key: sent as bearer token; None: taken from the environment (ANABRANCH_API_KEY).
        cap_field: the field that caps an answer; None: found when opening.
        timeouts, retries: seconds and repetitions; there is no other retry layer below.
        extra: fields to add to every request, or to take away where the value is None.

    Raises (from :meth:`open`, :meth:`chat` and :meth:`generate`):
        ContextWindowError: the conversation leaves no room in the model's window.
        EngineError: everything else that the server or the connection does wrong.
        UsageError: the URL or the model's name cannot be right; or :meth:`generate` is used and
            the server does not continue a message.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        api_key: str | None = None,
        cap_field: CapField | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        key = api_key or os.environ.get(KEY)
        # A URL of this endpoint itself is taken too.
        base = url.strip().rstrip("/").removesuffix("/chat/completions")
        transport = Transport(base, api_key=key, timeouts=timeouts, retries=retries)
        super().__init__(transport, model, tokenizer or EstimatedTokens())
        self._cap_field = cap_field
        self._extra = dict(extra or {})
        self.continues = False

    async def check(self) -> None:
        """Asks the server for its models.

        Raises:
            EngineError: it does not answer, or refuses.
        """
        await find_model(self._transport, self.model or None)

    async def chat(self, call: ChatCall) -> AsyncGenerator[ChatChunk, None]:
        """Streams the answer to a conversation; leaving early aborts it in the server."""
        found = self._found or await self._open()
        if call.max_tokens < 1:
            raise UsageError(f"max_tokens is {call.max_tokens}: a call samples at least one token")
        request = self._chat_request(call, found.model)
        async with aclosing(self._answer(request)) as chunks:
            async for chunk in chunks:
                assert isinstance(chunk, ChatChunk)
                yield chunk

    async def _discover(self) -> Found:
        model, window = await find_model(self._transport, self.model or None)
        notes = ["text only: token ids are made with the local tokenizer"]
        if isinstance(self.tokenizer, EstimatedTokens):
            notes.append("no tokenizer: token counts are estimates, the server's own are kept")
        if self._cap_field is None:
            self._cap_field = await self._find_cap_field(model)
        self.continues = await self._sees_continuation(model)
        if not self.continues:
            notes.append("it does not continue a message: fork-join is by tools only")
        capabilities = Capabilities(
            ids_in=False,
            ids_out=False,
            logprobs=False,
            include_stop=self.continues,
            window=window,
            notes=tuple(notes),
        )
        return Found(model, capabilities, server_stops=True, logprobs=None)

    async def _find_cap_field(self, model: str) -> CapField:
        """The field that the server keeps to.

        Raises:
            EngineError: it keeps to neither; without a cap no limit would hold.
        """
        for field in _FIELDS:
            self._cap_field = field
            request = self._chat_request(ChatCall(_COUNT, _PROBE_CAP), model)
            try:
                if await self._keeps_cap(request):
                    return field
            except StatusError as error:
                # Hosted models name the field that they want instead.
                if error.status not in (400, 422) or field == _FIELDS[-1]:
                    raise
        raise EngineError(
            f"{self.name} keeps to neither {_FIELDS[0]} nor {_FIELDS[1]}: no limit would hold"
        )

    async def _keeps_cap(self, request: Request) -> bool:
        text = 0
        async with aclosing(self._answer(request)) as chunks:
            async for chunk in chunks:
                assert isinstance(chunk, ChatChunk)
                text += len(chunk.text)
                if text > _PROBE_TEXT:
                    return False
                if chunk.finish is not None:
                    counted = chunk.counted_tokens
                    return chunk.finish == "length" if counted is None else counted <= _PROBE_CAP
        return False

    async def _sees_continuation(self, model: str) -> bool:
        """Whether a message is continued, as far as the ids of the prompt show it."""
        body = self._body(ChatCall(_HALF, 1), model)
        whole = {**body, **_CONTINUE, "stream": False, "return_token_ids": True}
        whole.pop("stream_options", None)
        try:
            answer = json.loads(await self._transport.post(CHAT, json.dumps(whole).encode()))
        except (EngineError, ValueError):
            return False
        ids = answer.get("prompt_token_ids") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or isinstance(self.tokenizer, EstimatedTokens):
            return False
        return self.tokenizer.decode(ids[-8:]).endswith("A B")

    def _request(self, call: Call, cap: int, found: Found) -> Request:
        if not self.continues:
            raise UsageError(
                f"{self.name} does not continue a message of its own: over this chat API "
                "fork-join is mode tools only (or use its /v1/completions)"
            )
        messages, so_far = read_chat_prompt(self.tokenizer.decode(call.ids))
        if so_far:
            messages.append({"role": "assistant", "content": so_far})
        chat = ChatCall(
            tuple(messages),
            cap,
            temperature=call.temperature,
            top_p=call.top_p,
            top_k=call.top_k,
            seed=call.seed,
        )
        body = self._body(chat, found.model) | {"skip_special_tokens": False}
        if so_far:
            body |= _CONTINUE
        if call.stop:
            body |= {"stop": call.stop, "include_stop_str_in_output": True}
        terms = Terms(call, cap, self._transport.url + CHAT, ids=False)
        return Request(CHAT, json.dumps(body).encode(), ContinuationReader(self.tokenizer, terms))

    def _chat_request(self, call: ChatCall, model: str) -> Request:
        reader = ChatReader(self._transport.url + CHAT, call.max_tokens)
        return Request(CHAT, json.dumps(self._body(call, model)).encode(), reader)

    def _body(self, call: ChatCall, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": call.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            self._cap_field or _FIELDS[0]: call.max_tokens,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "seed": call.seed,
        }
        if call.top_k:
            body["top_k"] = call.top_k
        if call.tools:
            body["tools"] = call.tools
            named = {"type": "function", "function": {"name": call.tool_choice}}
            body["tool_choice"] = named if call.tool_choice else "auto"
        body |= self._extra
        return {name: value for name, value in body.items() if value is not None}


_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
