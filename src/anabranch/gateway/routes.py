"""The endpoints: chat, completions, models, health; each sends a request on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from anabranch.decoding import Setup
from anabranch.errors import AnabranchError
from anabranch.gateway.asking import Defaults, Model, setups_of_chat, setups_of_completion
from anabranch.gateway.bodies import B, ChatBody, Common, CompletionBody, read_body
from anabranch.gateway.errors import ApiError
from anabranch.gateway.openapi import document
from anabranch.gateway.passing import pass_through, passes
from anabranch.gateway.serving import (
    Service,
    credential,
    failure,
    open_exchange,
    read_json,
    respond,
)
from anabranch.gateway.shapes import ChatShape, CompletionShape, Shape
from anabranch.gateway.tickets import Ticket


def routes() -> list[Route]:
    """All endpoints that clients use."""
    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/feedback", feedback, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
    ]


def service_of(request: Request) -> Service:
    """What the application was made with."""
    service: Service = request.app.state.service
    return service


async def chat(request: Request) -> Response:
    return await _answer(request, ChatBody, setups_of_chat, ChatShape)


async def completions(request: Request) -> Response:
    return await _answer(request, CompletionBody, setups_of_completion, CompletionShape)


async def _answer(
    request: Request,
    kind: type[B],
    make: Callable[[B, Model, Defaults, str], Sequence[Setup]],
    shape: type[Shape],
) -> Response:
    service = service_of(request)
    parent = request.headers.get("traceparent", "")
    ticket = Ticket(route=request.url.path, traceparent=parent)
    try:
        if service.draining:
            raise ApiError("shutting down", status=503, kind="api_error", code="draining")
        data = await read_json(request, service)
        if isinstance(data, dict) and passes(data):
            return await pass_through(request, service, ticket, data)
        body = read_body(kind, data)
        if service.experiment is not None:
            arm = service.experiment.arm(_who(body, request, ticket))
            ticket.arm, body = arm.name, arm.apply(body)
        model = service.model(body.model)
        setups = make(body, model, service.defaults, ticket.id)
        _fill(ticket, body, model, setups)
        await service.ledger.admit(ticket, credential(request))
    except AnabranchError as error:
        response = failure(error)
        service.observers.refused(response.status_code, getattr(error, "code", None))
        return response
    service.observers.began(ticket)
    if service.shadow is not None:
        service.shadow.offer(ticket, data)
    exchange = open_exchange(
        service, model, ticket, shape(ticket, body), body, setups, whole=shape is CompletionShape
    )
    try:
        return await respond(request, exchange, body)
    except AnabranchError as error:
        return failure(error)


def _who(body: Common, request: Request, ticket: Ticket) -> str:
    """Whom an arm is given to: the subject, else the key (whatever its secret is now)."""
    if subject := (body.model_extra or {}).get("user"):
        return str(subject)
    key = credential(request)
    return key.rpartition("-")[0] or key if key else ticket.id


def _fill(ticket: Ticket, body: Common, model: Model, setups: Sequence[Setup]) -> None:
    """What admission and observers want to know, before anything is spent."""
    first = setups[0]
    ticket.model, ticket.mode, ticket.dialect = model.name, first.mode, first.dialect.name
    ticket.stream = bool(body.stream)
    ticket.subject = str((body.model_extra or {}).get("user") or "")
    ticket.prompt_text = first.prompt
    ticket.prompt_tokens = sum(len(setup.prompt_ids) for setup in setups)
    caps = [setup.limits.max_total_tokens for setup in setups]
    ticket.cap = None if None in caps else sum(cap for cap in caps if cap)


async def feedback(request: Request) -> Response:
    """A client's word on an answer that it got."""
    service = service_of(request)
    try:
        data = await read_json(request, service)
        id, rating = (
            (data.get("id"), data.get("rating")) if isinstance(data, dict) else (None, None)
        )
        if not isinstance(id, str) or rating not in ("like", "dislike"):
            raise ApiError(
                "send the id of an answer, and rating: like or dislike", code="invalid_value"
            )
        await service.ledger.feedback(credential(request), id.rpartition("-")[2], rating)
    except AnabranchError as error:
        return failure(error)
    return Response(status_code=204)


async def models(request: Request) -> Response:
    entries = [_entry(model) for model in service_of(request).models.values()]
    return JSONResponse({"object": "list", "data": entries})


async def one_model(request: Request) -> Response:
    try:
        return JSONResponse(_entry(service_of(request).model(request.path_params["name"])))
    except ApiError as error:
        return failure(error)


def _entry(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "anabranch",
        "max_model_len": model.engine.capabilities.window,
        "anabranch": {"dialect": model.info.dialect if model.info else None},
    }


async def health(request: Request) -> Response:
    """Whether the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether it takes requests."""
    draining = service_of(request).draining
    return JSONResponse(
        {"status": "draining" if draining else "ready"}, status_code=503 if draining else 200
    )


async def openapi(request: Request) -> Response:
    return JSONResponse(document())
