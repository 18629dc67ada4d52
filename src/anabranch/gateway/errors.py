"""Errors in the shape that clients of the OpenAI API expect; what each one means to them."""

from __future__ import annotations

from typing import Any

from anabranch.errors import AnabranchError


class ApiError(AnabranchError):
    """An error for the client.

    Args:
        message: what is wrong and what to do.
        status: of the HTTP response.
        kind: `type` in the API's error object.
        param: the field at fault, dotted.
        code: a word that a program can act on.
        retry_after: seconds until trying again may help.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Of the response."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, round(self.retry_after)))}


def refused(field: str, why: str) -> ApiError:
    """A field that this server does not take."""
    return ApiError(f"{field}: {why}", param=field, code="unsupported_parameter")


def overloaded(message: str, retry_after: float = 1.0) -> ApiError:
    """Too much at once: the client should wait."""
    return ApiError(
        message, status=429, kind="rate_limit_error", code="overloaded", retry_after=retry_after
    )


def upstream_failed(message: str) -> ApiError:
    """The engine behind us failed."""
    return ApiError(message, status=502, kind="api_error", code="upstream_failed")
