"""Asks a model behind an OpenAI-compatible endpoint until the answer can be used.

An answer that cannot be read goes back to the model with what is wrong with it. A server that is
busy makes everybody wait and uses up no try; one that fails is asked again a few times; a request
that it refuses is given up at once. Every answer is kept, so a run that was killed asks only for
what it does not have. Streaming and tools are left out: see :mod:`anabranch.engines.chat`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.annotation.asking import AnswerError, Ask, AskFailed, Message
from anabranch.annotation.cache import Answer, AnswerCache, key_of
from anabranch.annotation.limits import Budget, Pace
from anabranch.annotation.replies import parse_json
from anabranch.engines.failures import StatusError
from anabranch.engines.retry import BUSY
from anabranch.engines.transport import Transport
from anabranch.errors import EngineError

T = TypeVar("T")

PATH = "/v1/chat/completions"
#: Statuses about the caller and not about one request: when all get them, the run stops.
_OURS = frozenset({401, 403, 404})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for a model.

    Attributes:
        tries: answers to one question, the first included.
        attempts: requests for one answer that fail for another reason than a busy server.
        pause: seconds before asking again, doubled each time; also the pause of a busy server
            that does not say how long.
        busy: seconds that a busy server is waited for before the run stops.
        answer: seconds for one answer.
    """

    tries: int = 3
    attempts: int = 4
    pause: float = 1.0
    busy: float = 1800.0
    answer: float = 600.0


class Annotator:
    """A model that is asked.

    Args:
        transport: to the endpoint; its own retries are to be 0.
        model: name sent with each request.
        cache: of answers.
        budget, pace: what may be spent, and how fast.
        concurrency: requests at once.
        sleep: waits between attempts; for tests.
    """

    def __init__(
        self,
        transport: Transport,
        model: str,
        cache: AnswerCache,
        *,
        budget: Budget | None = None,
        pace: Pace | None = None,
        patience: Patience | None = None,
        concurrency: int = 16,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.transport, self.model, self.cache = transport, model, cache
        self.budget, self.pace = budget or Budget(), pace or Pace()
        self.patience = patience or Patience()
        self.schemas = True
        self.cached = 0
        self._slots = asyncio.Semaphore(concurrency)
        self._sleep = sleep
        self._refusals = 0
        self._worked = False
        paid, prompt, sampled = cache.spent()
        self.budget.requests += paid
        self.budget.prompt += prompt
        self.budget.sampled += sampled

    async def ask(self, ask: Ask[T]) -> T:
        """The value of a usable answer.

        Raises:
            AskFailed: there is none.
            BudgetSpent: the next request might exceed the budget.
            EngineError: the endpoint is busy for too long, or lets nobody in.
        """
        messages = ask.messages
        for tried in range(1, self.patience.tries + 1):
            answer = await self._answer(ask, messages)
            try:
                return _value(ask, answer)
            except AnswerError as error:
                if tried == self.patience.tries:
                    raise AskFailed("unusable_answer", str(error), answer.text) from None
                complaint = f"That answer cannot be used: {error}. Answer again."
                # All of it is kept: the same question again would get the same answer.
                messages += (Message("assistant", answer.text), Message("user", complaint))
        raise AssertionError("tries is at least 1")

    async def _answer(self, ask: Ask[Any], messages: tuple[Message, ...]) -> Answer:
        key = key_of(self.model, ask, messages)
        kept = self.cache.get(key)
        if kept is not None:
            self.cached += 1
            return kept
        async with self._slots:
            # A token has at least a byte or two in every tokenizer in use; ASCII is overestimated.
            prompt = sum(len(message.content.encode("utf-8", "replace")) for message in messages)
            held = self.budget.hold(prompt // 2 + 64, ask.max_tokens)
            try:
                answer = await self._fetch(ask, messages)
            except BaseException:
                self.budget.settle(held)
                raise
            self.budget.settle(held, answer.prompt_tokens, answer.sampled_tokens)
        self.pace.took(answer.prompt_tokens + answer.sampled_tokens)
        self.cache.put(key, ask.kind, answer)
        return answer

    async def _fetch(self, ask: Ask[Any], messages: tuple[Message, ...]) -> Answer:
        clock = asyncio.get_running_loop().time
        began, failed = clock(), 0
        refused_with_schema = False
        while True:
            await self.pace.turn()
            with_schema = ask.schema is not None and self.schemas and not refused_with_schema
            try:
                body = self._body(ask, messages, with_schema=with_schema)
                found = await self.transport.post(PATH, body, limit=self.patience.answer)
                self._worked = True
                if refused_with_schema:
                    # What it refused was the schema. Ours are in the prompts, too.
                    self.schemas = False
                return _read(found, self.transport.url, reasoning=ask.schema is None)
            except StatusError as error:
                if error.status in BUSY and error.status != 408:
                    if clock() - began > self.patience.busy:
                        raise EngineError(f"{error} (for {clock() - began:.0f} s)") from None
                    self.pace.pause(error.retry_after or self.patience.pause)
                    continue
                if error.status in (400, 422) and with_schema:
                    # The schema, or the request itself, such as one that is too long.
                    refused_with_schema = True
                    continue
                if error.status < 500:
                    raise self._refused(error) from None
                failure: EngineError = error
            except EngineError as error:
                failure = error
            failed += 1
            if failed == self.patience.attempts:
                raise AskFailed("unreachable", f"{failure} (after {failed} attempts)") from None
            await self._sleep(self.patience.pause * 2 ** (failed - 1))

    def _refused(self, error: StatusError) -> Exception:
        self._refusals += 1
        if error.status in _OURS and not self._worked and self._refusals >= 3:
            return error
        return AskFailed("refused", str(error))

    def _body(self, ask: Ask[Any], messages: tuple[Message, ...], *, with_schema: bool) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": one.role, "content": one.content} for one in messages],
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
        }
        if ask.sample:
            body["seed"] = ask.sample
        if ask.schema is not None and with_schema:
            form = {"name": ask.kind, "schema": dict(ask.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return json.dumps(body).encode("ascii")


def _value(ask: Ask[T], answer: Answer) -> T:
    if answer.finish == "length":
        raise AnswerError("the answer was cut at its token limit: answer more briefly")
    if ask.schema is None:
        return ask.read(answer.text)
    want: Any = list if ask.schema.get("type") == "array" else dict
    return ask.read(parse_json(answer.text, want))


def _read(text: str, where: str, *, reasoning: bool) -> Answer:
    """The answer; a reasoning part that the server keeps apart is put back where it is wanted."""
    try:
        data = json.loads(text)
        choice = data["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        thought = message.get("reasoning") or message.get("reasoning_content")
        if reasoning and isinstance(thought, str) and thought:
            content = f"<think>{thought}</think>{content}"
        usage = data.get("usage") or {}
        return Answer(
            str(content),
            str(choice.get("finish_reason") or "stop"),
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise EngineError(f"{where} answered with something that is no chat completion") from None
