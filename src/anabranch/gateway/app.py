"""The application: routes, what they share, and how it starts and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from anabranch.gateway.errors import ApiError
from anabranch.gateway.routes import routes
from anabranch.gateway.serving import Service, failure


def create_app(service: Service, extra: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application.

    Args:
        service: engines, defaults, ledger and observers; its engines are opened and closed with
            the application.
        extra: more routes (metrics, pages, administration).
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engines = {id(model.engine): model.engine for model in service.models.values()}
        try:
            for engine in engines.values():
                if (opening := getattr(engine, "open", None)) is not None:
                    await opening()
            yield
        finally:
            service.draining = True
            await service.ledger.close()
            for engine in engines.values():
                await engine.close()

    app = Starlette(
        routes=[*routes(), *extra],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, Exception: _defect},
    )
    app.state.service = service
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods in the API's own shape."""
    assert isinstance(error, HTTPException)
    told = ApiError(
        f"{request.method} {request.url.path}: {error.detail}", status=error.status_code
    )
    response = failure(told)
    response.headers.update(error.headers or {})
    return response


async def _defect(request: Request, error: Exception) -> Response:
    """A defect of ours: the API's shape for the client; the server raises it again, for the log."""
    told = ApiError("internal error", status=500, kind="api_error", code="internal_error")
    return failure(told)
