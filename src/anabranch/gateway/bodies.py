"""Request bodies: the OpenAI API's fields that fork-join decoding can honour, and one of our own.

A field is honoured, or known to change nothing, or refused by name; none is silently dropped.
Extensions stand under ``anabranch``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.gateway.errors import ApiError, refused

#: Fields that only label a request, and fields whose stated value is what happens anyway.
LABELS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier",
                    "prompt_cache_key", "prompt_cache_retention", "verbosity"})  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True, False),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}


class StreamOptions(BaseModel):
    """``stream_options`` of the API."""

    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class LimitsBody(BaseModel):
    """Limits of one answer, in tokens and seconds: see :class:`anabranch.records.Limits`."""

    model_config = ConfigDict(extra="forbid")
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_path_tokens: int | None = Field(default=None, ge=1)
    max_branch_tokens: int | None = Field(default=None, ge=1)
    max_branches: int | None = Field(default=None, ge=1, le=1000)
    max_blocks: int | None = Field(default=None, ge=0)
    max_depth: int | None = Field(default=None, ge=0, le=32)
    deadline: float | None = Field(default=None, gt=0)
    answer_reserve: int | None = Field(default=None, ge=0)
    on_exhausted: Literal["answer", "stop"] | None = None


class Extension(BaseModel):
    """The field ``anabranch`` of a request.

    ``events`` puts what happens in branches into the stream's chunks, ``trajectory`` the whole
    record into the last one.
    """

    model_config = ConfigDict(extra="forbid")
    mode: Literal["parallel", "sequential", "constrained", "prompted"] | None = None
    dialect: str | None = None
    join: str | None = None
    width: int | None = Field(default=None, ge=1, le=64)
    limits: LimitsBody = Field(default_factory=LimitsBody)
    events: bool = False
    trajectory: bool = False


class Common(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    n: int | None = Field(default=None, ge=1, le=128)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    anabranch: Extension = Field(default_factory=Extension)

    @property
    def cap(self) -> int | None:
        """Sampled tokens that the client allows."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ContentPart(BaseModel):
    """One part of a message's content; only text is taken."""

    model_config = ConfigDict(extra="allow")
    type: str
    text: str = ""


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


class ChatBody(Common):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)


class CompletionBody(Common):
    """``POST /v1/completions``: a text, token ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]


B = TypeVar("B", bound=Common)


def read_body(model: type[B], data: Any) -> B:
    """The body as checked data.

    Raises:
        ApiError: naming the field.
    """
    if not isinstance(data, dict):
        raise ApiError("the body has to be a JSON object")
    try:
        body = model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"] if not _is_choice(part))
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(f"{field}: {message}", param=field, code="invalid_value") from None
    for name, value in (body.model_extra or {}).items():
        if name in LABELS or value is None:
            continue
        if name not in NEUTRAL:
            raise refused(name, "this field is not known here")
        if value not in NEUTRAL[name]:
            raise refused(name, f"{_short(value)} cannot be done in fork-join decoding")
    if isinstance(body, ChatBody):
        _check_parts(body)
    if len(body.stops) > 16 or "" in body.stops:
        raise ApiError("stop: at most 16 strings, none empty", param="stop", code="invalid_value")
    return body


def _is_choice(part: Any) -> bool:
    """Names of a union's members, which pydantic puts into a field's place."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "list"))


def _check_parts(body: ChatBody) -> None:
    for place, message in enumerate(body.messages):
        for part in message.content if isinstance(message.content, list) else ():
            if part.type != "text":
                raise refused(f"messages.{place}.content", f"a part of type {part.type!r}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
