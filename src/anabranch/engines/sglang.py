"""Engine for SGLang by its native protocol: `/generate` with token ids, streamed.

Written from SGLang's documentation and source, and tested against a small server that speaks the
same protocol; it was not run against a real SGLang. Reading its events is
:mod:`anabranch.engines.sglang_reader`, sending requests :mod:`anabranch.engines.http_engine`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from anabranch.engines.base import Call, Capabilities, Tokenizer
from anabranch.engines.discovery import (
    MODELS,
    PROBE_OUTPUT,
    Found,
    Probe,
    check_tokenizer,
    probe_prompt,
    stop_for,
)
from anabranch.engines.failures import StatusError
from anabranch.engines.http_engine import HttpEngine, Request
from anabranch.engines.reader import Terms
from anabranch.engines.retry import Retries
from anabranch.engines.sglang_reader import Deltas, SGLangReader
from anabranch.engines.sse import SseReader, json_objects
from anabranch.engines.transport import Timeouts, Transport
from anabranch.errors import ContextWindowError, EngineError

__all__ = ["Retries", "SGLangEngine", "Timeouts"]

GENERATE = "/generate"
ABORT = "/abort_request"
HEALTH = "/health"

#: Sampling fields of every request: the server would take some of them from the model's own
#: `generation_config.json`.
_SAMPLING: dict[str, Any] = {
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
#: Seconds that telling the server to abort a request may take.
_ABORT_TIMEOUT = 2.0


class SGLangEngine(HttpEngine):
    """An engine behind SGLang's `/generate`.

    A call's grammar is sent as `ebnf`, which the default grammar backend (xgrammar) takes.

    A call that is left closes its connection and tells `/abort_request`, since SGLang may notice a
    closed connection late. Seeds have an effect only in a server that was started with
    `--enable-deterministic-inference`.

    Args:
        url: the server.
        tokenizer: the model's tokenizer; checked against the server's when opening.
        api_key: sent as bearer token.
        timeouts, retries: seconds and repetitions; there is no other retry layer below.
        extra: fields to add to every request, or to take away where the value is None.
        sampling: the same for its `sampling_params`. A version that refuses an unknown
            `sampling_seed` is used with ``{"sampling_seed": None}``.

    Raises (from :meth:`open` and :meth:`generate`):
        ContextWindowError: the prompt leaves no room in the model's window.
        EngineError: everything else that the server or the connection does wrong; retryable
            where the same call may be made again.
        UsageError: the URL cannot be right.
    """

    def __init__(
        self,
        url: str,
        *,
        tokenizer: Tokenizer,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        extra: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        transport = Transport(url, api_key=api_key, timeouts=timeouts, retries=retries)
        super().__init__(transport, None, tokenizer)
        self._extra = dict(extra or {})
        self._sampling = dict(sampling or {})
        self._aborts: set[asyncio.Task[None]] = set()

    async def check(self) -> None:
        """Asks `/health`, which generates one token in an idle server.

        Raises:
            EngineError: it does not answer, or is not well.
        """
        await self._transport.get_text(HEALTH)

    async def close(self) -> None:
        """Closes all connections; running calls end with an error."""
        await asyncio.gather(*self._aborts)
        await super().close()

    async def _discover(self) -> Found:
        info = await self._info("model_info")
        if info is None:
            raise EngineError(f"{self.name} has no /model_info: is it an SGLang server?")
        window = await self._window()
        prompt = probe_prompt(self.tokenizer, window)
        first = await self._probe(prompt, ())
        check_tokenizer(first, self.tokenizer, self._transport.url + GENERATE)
        stop = stop_for(first)
        second = await self._probe(prompt, (stop,) if stop else ())
        notes = []
        stops = stop is None or second.stop_reason == stop
        if not stops:
            notes.append("stop strings are applied here: it does not say which one matched")
        capabilities = Capabilities(
            logprobs=second.scores == len(second.ids),
            include_stop=stop is not None and stop in second.text,
            prefix_cache=second.cached > 0,
            window=window,
            grammar="xgrammar" if await self._constrains(prompt) else None,
            notes=tuple(notes),
        )
        return Found(str(info.get("model_path") or ""), capabilities, stops, 0)

    async def _constrains(self, prompt: list[int]) -> bool:
        """Whether a grammar has an effect: a server may run without a grammar backend."""
        call = Call(tuple(prompt[:16]), (), 8, grammar='root ::= "7373"')
        try:
            probe = await self._collect(call)
        except EngineError:
            return False
        return probe.text.startswith("7373")

    async def _info(self, name: str) -> dict[str, Any] | None:
        """The answer under a name, or its older form; None if there is neither."""
        for path in (f"/{name}", f"/get_{name}"):
            try:
                answer = await self._transport.get_json(path)
            except StatusError as error:
                if error.status not in (404, 405):
                    raise
            else:
                return answer if isinstance(answer, dict) else {}
        return None

    async def _window(self) -> int | None:
        """Prompt and output together must stay below the context length and fit the cache."""
        sizes = []
        with suppress(StatusError, AttributeError, LookupError, TypeError):
            models = await self._transport.get_json(MODELS)
            sizes.append(models["data"][0].get("max_model_len"))
        server = await self._info("server_info") or {}
        sizes += [server.get("context_length"), server.get("max_total_num_tokens")]
        known = [size for size in sizes if isinstance(size, int)]
        return min(known) - 1 if known else None

    async def _probe(self, prompt: list[int], stop: tuple[str, ...]) -> Probe:
        return await self._collect(Call(tuple(prompt), stop, PROBE_OUTPUT), ignore_eos=True)

    async def _collect(self, call: Call, **more: Any) -> Probe:
        body, _ = self._body(call, call.max_tokens, stops=True, **more)
        stream = await self._transport.begin(GENERATE, body)
        reader, probe, deltas = SseReader(), Probe(), Deltas(stream.where)
        data = stream.first
        try:
            while data:
                for event in reader.feed(data):
                    for value in json_objects(event) if event != "[DONE]" else ():
                        _collect(probe, deltas, value, stream.where)
                data = await stream.read()
        except ValueError as error:
            where = stream.where
            raise EngineError(f"{where} sent a broken stream: {error}", retryable=True) from None
        finally:
            stream.abort()
        return probe

    def _request(self, call: Call, cap: int, found: Found) -> Request:
        body, rid = self._body(call, cap, stops=found.server_stops)
        where = self._transport.url + GENERATE
        terms = Terms(call, cap, where, server_stops=found.server_stops)
        return Request(GENERATE, body, SGLangReader(self.tokenizer, terms), rid)

    def _body(self, call: Call, cap: int, *, stops: bool, **more: Any) -> tuple[bytes, str]:
        sampling = {
            **_SAMPLING,
            "max_new_tokens": cap,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k or -1,
            "stop": list(call.stop) if call.stop and stops else None,
            "sampling_seed": call.seed if call.temperature else None,
            "ebnf": call.grammar,
            **more,
            **self._sampling,
        }
        # Requests are aborted by the beginning of their id: none may begin like another.
        rid = uuid4().hex
        body = {
            "rid": rid,
            "input_ids": call.ids,
            "stream": True,
            "return_logprob": call.logprobs,
            "logprob_start_len": -1,
            "sampling_params": _present(sampling),
            **self._extra,
        }
        return json.dumps(_present(body)).encode(), rid

    def _abandon(self, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._abort(request.rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, rid: str) -> None:
        # The connection is closed already: a server that cannot be told has lost the request too.
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT):
                await self._transport.post(ABORT, json.dumps({"rid": rid}).encode())

    def _learn(self, error: ContextWindowError) -> None:
        if error.window is not None:
            super()._learn(
                ContextWindowError("", window=error.window - 1, prompt_tokens=error.prompt_tokens)
            )


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _collect(probe: Probe, deltas: Deltas, value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.get("error"):
        raise EngineError(f"{where} broke off the stream: {str(value)[:200]}")
    delta = deltas.push(value)
    probe.ids += delta.ids
    probe.text += delta.text
    probe.scores += len(delta.scores or ())
    meta = value.get("meta_info") or {}
    finish = meta.get("finish_reason") or {}
    probe.stop_reason = finish.get("matched") if isinstance(finish, dict) else None
    probe.usage = {"prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}}
