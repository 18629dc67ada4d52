"""Pages that the gateway serves: what runs now, and the last trajectories where texts are kept.

With a store they need a key of scope ``admin``, as bearer token or as password of the browser's own
dialogue; without one they are open to whoever reaches the port, so they are for loopback only.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from anabranch.errors import AnabranchError
from anabranch.gateway.errors import ApiError
from anabranch.gateway.live import Live
from anabranch.gateway.serving import credential, failure
from anabranch.gateway.store.budgets import Budget
from anabranch.gateway.tickets import Ledger
from anabranch.views import Page, live_page, pages_text

_HEADERS = {"Cache-Control": "no-store", "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}  # fmt: skip
_ASK = 'Basic realm="anabranch: an admin key as password"'
Handler = Callable[[Request], Awaitable[Response]]


def page_routes(
    live: Live, ledger: Ledger, budgets: Callable[[], Awaitable[list[Budget]]] | None = None
) -> list[Route]:
    """``/pages/live`` with its data, and ``/pages/trajectories``."""

    async def show(request: Request) -> Response:
        return HTMLResponse(live_page("live.json"), headers=_HEADERS)

    async def data(request: Request) -> Response:
        found = [asdict(one) for one in await budgets()] if budgets else []
        return JSONResponse({**live.figures(), "budgets": found}, headers=_HEADERS)

    async def trajectories(request: Request) -> Response:
        if not live.trajectories:
            raise ApiError(
                "no trajectory is kept: they are with --contents full, once there are some",
                status=404, code="none_kept",
            )  # fmt: skip
        pages = [Page.of_trajectory(one) for one in reversed(live.trajectories)]
        return HTMLResponse(pages_text(pages, "Last answers"), headers=_HEADERS)

    def guarded(handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            try:
                await ledger.require(_secret(request), "admin")
                return await handler(request)
            except AnabranchError as error:
                response = failure(error)
                if response.status_code == 401:
                    response.headers["WWW-Authenticate"] = (
                        'Basic realm="anabranch: key as password"'
                    )
                return response

        return checked

    return [
        Route("/pages/live", guarded(show), methods=["GET"]),
        Route("/pages/live.json", guarded(data), methods=["GET"]),
        Route("/pages/trajectories", guarded(trajectories), methods=["GET"]),
    ]


def _secret(request: Request) -> str | None:
    """The key: a bearer token, or the password of basic authentication."""
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return credential(request)
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
