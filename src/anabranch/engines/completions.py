"""Engine for servers with an OpenAI-compatible `/v1/completions`: vLLM, and others by discovery.

Token ids in, streamed, and token ids out where the server gives them. This module writes the
requests; sending them is :mod:`anabranch.engines.http_engine`, the events are
:mod:`anabranch.engines.reader`, what a server can do is :mod:`anabranch.engines.discovery`. Chat
endpoints are not used: a fork continues raw text in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anabranch.dialects.grammar import Flavour
from anabranch.engines.base import Call, Tokenizer, required_grammar
from anabranch.engines.discovery import COMPLETIONS, MODELS, Found, Ids, discover, encode_body
from anabranch.engines.grammars import find_grammar_flavour, grammar_field
from anabranch.engines.http_engine import HttpEngine, Request
from anabranch.engines.reader import CompletionReader, Terms
from anabranch.engines.retry import Retries
from anabranch.engines.transport import Timeouts, Transport

__all__ = ["CompletionsEngine", "Retries", "Timeouts"]

#: Usage in every event, for servers that know this option of vLLM.
COUNTED = {"include_usage": True, "continuous_usage_stats": True}


class CompletionsEngine(HttpEngine):
    """An engine behind `/v1/completions`.

    It belongs to the event loop in which it is first used. It opens itself at the first call;
    :meth:`open` does it earlier, so that a wrong URL shows before any work is done.

    Args:
        url: the server, with or without `/v1`.
        model: its name at the server; None takes the only one served.
        tokenizer: the model's tokenizer. It decodes the ids that come back, so text and ids
            cannot disagree, and is checked against the server's when opening.
        api_key: sent as bearer token.
        ids: "require" refuses a server that gives no token ids; "retokenize" encodes its text
            with ``tokenizer`` instead, and ``capabilities.ids_out`` is then False.
        timeouts, retries: seconds and repetitions; there is no other retry layer below.
        extra: fields to add to every request, or to take away where the value is None.

    Raises (from :meth:`open` and :meth:`generate`):
        ContextWindowError: the prompt leaves no room in the model's window.
        EngineError: everything else that the server or the connection does wrong; retryable
            where the same call may be made again.
        UsageError: the URL or the model's name cannot be right.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer,
        api_key: str | None = None,
        ids: Ids = "require",
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        transport = Transport(url, api_key=api_key, timeouts=timeouts, retries=retries)
        super().__init__(transport, model, tokenizer)
        self._ids: Ids = ids
        self._extra = dict(extra or {})
        self._asked = False

    async def check(self) -> None:
        """Asks the server for its models: the cheapest request that shows that it is there.

        Raises:
            EngineError: it does not answer, or refuses.
        """
        await self._transport.get_json(MODELS)

    async def find_grammar(self) -> Flavour | None:
        """Asks the server, once, which flavour of grammar it takes.

        Raises:
            EngineError: as for :meth:`open`.
        """
        found = await self._open()
        if not self._asked:
            flavour = await find_grammar_flavour(
                self._transport, found.model, self.tokenizer, self._extra
            )
            self._asked = True
            known = replace(self.capabilities, grammar=flavour)
            self._found = replace(self._found or found, capabilities=known)
        return self.capabilities.grammar

    async def _discover(self) -> Found:
        return await discover(
            self._transport, self.model or None, self.tokenizer, self._ids, self._extra
        )

    def _request(self, call: Call, cap: int, found: Found) -> Request:
        terms = Terms(
            call,
            cap,
            self._transport.url + COMPLETIONS,
            ids=found.capabilities.ids_out,
            server_stops=found.server_stops,
        )
        reader = CompletionReader(self.tokenizer, terms)
        return Request(COMPLETIONS, self._body(call, cap, found), reader)

    def _body(self, call: Call, cap: int, found: Found) -> bytes:
        body: dict[str, Any] = {
            "model": found.model,
            "prompt": call.ids,
            "max_tokens": cap,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k or -1,
            "seed": call.seed,
        }
        if call.stop and found.server_stops:
            body["stop"] = call.stop
        if call.grammar is not None:
            body |= grammar_field(required_grammar(self), call.grammar)
        if (call.logprobs or found.always_score) and found.logprobs is not None:
            body["logprobs"] = found.logprobs
        else:
            # Without log-probs nothing in an event says where it stands.
            body["stream_options"] = COUNTED
        return encode_body(body, self._extra)
