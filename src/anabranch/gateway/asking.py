"""From a checked body to the setups of its answers: prompt, limits, sampling, mode.

The prompt is the conversation in the model's own template. A checkpoint that says how it was
trained to be asked is asked so; a conversation that its prompt has no place for is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding import Setup, make_policy, make_setup
from anabranch.decoding.prompts import encode_prompt, has_chat_template, user_message
from anabranch.decoding.seeds import derive_seed
from anabranch.decoding.setup import Mode
from anabranch.dialects import Dialect
from anabranch.engines.base import Engine
from anabranch.engines.tokenizers import render_chat
from anabranch.errors import AnabranchError
from anabranch.gateway.bodies import ChatBody, Common, CompletionBody, Extension
from anabranch.gateway.errors import ApiError
from anabranch.records import Limits, Problem, Sampling


@dataclass(frozen=True)
class Defaults:
    """What holds where a request says nothing.

    ``ceiling`` bounds what a request may ask for; its None fields bound nothing.
    """

    mode: Mode = "parallel"
    dialect: str | None = None
    join: str = "all"
    limits: Limits = field(default_factory=Limits)
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Model:
    """An engine with its tokenizer's folder and what the checkpoint says of itself."""

    name: str
    engine: Engine
    info: CheckpointInfo | None = None
    folder: Path | None = None


def setups_of_chat(body: ChatBody, model: Model, defaults: Defaults, id: str) -> list[Setup]:
    """One setup per answer that was asked for.

    Raises:
        ApiError: a field cannot be honoured.
    """
    base = _base(body, model, defaults, id, body.messages[-1].text)
    prompt = _conversation(body, model, base.dialect, base.mode)
    ids = encode_prompt(base.tokenizer, prompt)
    return _copies(replace(base, prompt=prompt, prompt_ids=ids), body)


def _needs_logprobs(wish: Extension, join: str) -> bool:
    """Log-probs cost a third of a stream's time: only where somebody will read them."""
    return wish.trajectory or join not in ("all", "first_conclusive")


def setups_of_completion(
    body: CompletionBody, model: Model, defaults: Defaults, id: str
) -> list[Setup]:
    """One setup per answer: ``n`` for each prompt, in the order of the prompts."""
    prompts: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if prompts and all(isinstance(one, int) for one in prompts):
        prompts = [prompts]
    if not prompts or any(not one for one in prompts):
        raise ApiError("prompt: is empty", param="prompt", code="invalid_value")
    setups: list[Setup] = []
    base = _base(body, model, defaults, id, "")
    for place, one in enumerate(prompts):
        if isinstance(one, str):
            text, ids = one, encode_prompt(base.tokenizer, one)
        else:
            text, ids = _decoded(base, one), tuple(one)
        mine = replace(base, prompt=text, prompt_ids=ids, id=f"{id}-{place}", affinity="")
        setups += _copies(mine, body)
    return setups


def _decoded(setup: Setup, ids: list[int]) -> str:
    try:
        return setup.tokenizer.decode(ids)
    except (OverflowError, TypeError, IndexError, ValueError):
        raise ApiError(
            "prompt: holds a number that is no token", param="prompt", code="invalid_value"
        ) from None


def _base(body: Common, model: Model, defaults: Defaults, id: str, problem: str) -> Setup:
    wish = body.anabranch
    seed = body.seed if body.seed is not None else int(id[:8], 16)
    sampling = Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=seed % 2**31,
    )
    mode = wish.mode or defaults.mode
    name = wish.dialect or defaults.dialect
    join = wish.join or defaults.join
    try:
        setup = make_setup(
            Problem(id=id, problem=problem),
            model.engine,
            dialect=name,
            # The prompt is written here, from the whole conversation.
            info=None if name or model.info is None else _dialect_only(model.info),
            mode=mode,
            limits=_limits(body, wish, defaults.limits),
            sampling=sampling,
            policy=make_policy(join),
            width=wish.width,
            id=id,
        )
        return setup if _needs_logprobs(wish, join) else replace(setup, logprobs=False)
    except ApiError:
        raise
    except AnabranchError as error:
        raise ApiError(str(error), param="anabranch", code="invalid_value") from None


def _dialect_only(info: CheckpointInfo) -> CheckpointInfo:
    return info.model_copy(update={"prompts": {}})


def _limits(body: Common, wish: Extension, ceiling: Limits) -> Limits:
    """The request's limits within the server's."""
    asked = wish.limits.model_dump(exclude_none=True)
    if body.cap is not None:
        asked["max_total_tokens"] = min(body.cap, asked.get("max_total_tokens", body.cap))
    merged = ceiling.model_dump()
    for name, value in asked.items():
        bound = merged.get(name)
        bounded = name.startswith("max_") or name == "deadline"
        merged[name] = min(value, bound) if bounded and bound is not None else value
    for name in ("max_total_tokens", "max_path_tokens"):
        # A reserve that the server sets must not make a small request impossible.
        if merged[name] is not None and "answer_reserve" not in asked:
            merged["answer_reserve"] = min(merged["answer_reserve"], merged[name] // 2)
    try:
        return Limits.model_validate(merged)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(message, param="anabranch.limits", code="invalid_value") from None


def _conversation(body: ChatBody, model: Model, dialect: Dialect, mode: Mode) -> str:
    messages = [
        {"role": "system" if m.role == "developer" else m.role, "content": m.text}
        for m in body.messages
    ]
    last = messages[-1]
    if last["role"] != "user":
        raise ApiError("messages: the last one has to be the user's", param="messages")
    info = model.info
    if info is not None and info.prompts and info.dialect == dialect.name and mode != "prompted":
        if len(messages) > 1:
            raise ApiError(
                "messages: this model was trained on single questions; send one user message",
                param="messages",
                code="unsupported_value",
            )
        return info.prompt(last["content"], _trained(mode))
    last["content"] = user_message(last["content"], dialect, mode)
    if model.folder is not None and has_chat_template(model.folder):
        return render_chat(model.folder, messages)
    if len(messages) > 1:
        raise ApiError(
            "messages: the model has no chat template for a conversation; send one user message",
            param="messages",
            code="unsupported_value",
        )
    return last["content"]


def _trained(mode: Mode) -> str:
    return "sequential" if mode == "sequential" else "parallel"


def _copies(setup: Setup, body: Common) -> list[Setup]:
    """``n`` answers to one prompt, each with a seed of its own."""
    count = body.n or 1
    if count == 1:
        return [setup]
    root = setup.sampling.seed
    return [
        replace(
            setup,
            id=f"{setup.id}-{number}",
            sampling=setup.sampling.model_copy(
                update={"seed": derive_seed(root, "choice", number)}
            ),
        )
        for number in range(count)
    ]
