"""Spans of requests for OpenTelemetry: an answer as the root, one child for each engine request.

Spans are made when a request has ended, from the times that its trajectories recorded, so nothing
is added to the decoding itself. An incoming ``traceparent`` (W3C Trace Context) is the root's
parent. No text of anybody is in a span. Handing the trace on to the engine is left out. Extra
``otel``; without ``--otel`` nothing of it is imported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anabranch.errors import UsageError
from anabranch.gateway.tickets import Ticket
from anabranch.records import Request, Trajectory

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SECOND = 1_000_000_000
#: Outcomes that are no errors of the gateway or its engine.
_FINE = frozenset({"answered", "truncated", "gone"})


class Spans:
    """An observer that sends spans.

    Args:
        exporter: where they go.
        service: name of this service.
        delay: most seconds until spans are sent.
    """

    def __init__(
        self, exporter: SpanExporter, *, service: str = "anabranch", delay: float = 5.0
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.provider = TracerProvider(resource=Resource.create({"service.name": service}))
        processor = BatchSpanProcessor(exporter, schedule_delay_millis=delay * 1000)
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("anabranch.gateway")

    def began(self, ticket: Ticket) -> None:
        """Spans are made at the end."""

    def refused(self, status: int, code: str | None) -> None:
        """A request that was not admitted has no span: who sends nonsense fills no store."""

    def ended(self, ticket: Ticket) -> None:
        """The spans of a request."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        begin = int(ticket.created * _SECOND)
        root = self._tracer.start_span(
            f"POST {ticket.route}",
            context=_context(ticket.traceparent),
            kind=SpanKind.SERVER,
            start_time=begin,
            attributes=_root(ticket),
        )
        if ticket.outcome not in _FINE:
            root.set_status(Status(StatusCode.ERROR, ticket.outcome))
        for number, trajectory in enumerate(ticket.answers):
            self._requests(root, begin, trajectory, number)
        root.end(begin + int((ticket.seconds or 0.0) * _SECOND))

    def _requests(self, root: Any, begin: int, trajectory: Trajectory, answer: int) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        context = set_span_in_context(root)
        for request in trajectory.requests:
            if request.started is None:
                continue
            start = begin + int(request.started * _SECOND)
            span = self._tracer.start_span(
                f"{request.kind} {request.branch}" if request.branch else request.kind,
                context=context,
                kind=SpanKind.CLIENT,
                start_time=start,
                attributes={**_child(trajectory, request), "anabranch.answer": answer},
            )
            if request.first_token is not None:
                span.add_event("first token", timestamp=begin + int(request.first_token * _SECOND))
            if request.error:
                span.set_status(Status(StatusCode.ERROR, "the engine failed"))
            span.end(begin + int((request.finished or request.started) * _SECOND))

    def close(self) -> None:
        """Send what is left; the exporter has some seconds for it."""
        self.provider.shutdown()


def spans_to(endpoint: str) -> Spans:
    """Spans to an OTLP collector over HTTP (``http://host:4318`` or its ``/v1/traces``).

    Raises:
        UsageError: the extra is not installed, or the endpoint is no URL.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise UsageError("spans need OpenTelemetry: pip install 'anabranch[otel]'")
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--otel {endpoint!r}: write it like http://127.0.0.1:4318")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    plain = endpoint.rstrip("/")
    url = plain if plain.endswith("/v1/traces") else f"{plain}/v1/traces"
    return Spans(OTLPSpanExporter(endpoint=url))


def _context(traceparent: str) -> Any:
    """The caller's span; None where the header is missing or none."""
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    match = _PARENT.fullmatch(traceparent.strip().lower())
    if match is None:
        return None
    parent = SpanContext(
        trace_id=int(match[1], 16),
        span_id=int(match[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match[3], 16)),
    )
    return set_span_in_context(NonRecordingSpan(parent)) if parent.is_valid else None


def _root(ticket: Ticket) -> dict[str, Any]:
    spent = ticket.spent
    found: dict[str, Any] = {
        "gen_ai.request.model": ticket.model,
        "gen_ai.usage.input_tokens": spent.prompt,
        "gen_ai.usage.output_tokens": spent.sampled,
        "http.response.status_code": ticket.status,
        "anabranch.id": ticket.id,
        "anabranch.mode": ticket.mode,
        "anabranch.dialect": ticket.dialect,
        "anabranch.arm": ticket.arm,
        "anabranch.outcome": ticket.outcome,
        "anabranch.stream": ticket.stream,
        "anabranch.critical_path": spent.path,
        "anabranch.prefill_tokens": spent.prefill,
        "anabranch.engine_requests": spent.calls,
    }
    if ticket.first is not None:
        found["anabranch.first_text_seconds"] = ticket.first
    return found


def _child(trajectory: Trajectory, request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {
        "anabranch.kind": request.kind,
        "anabranch.attempt": request.attempt,
        "anabranch.finish": request.finish,
        "gen_ai.usage.input_tokens": sum(len(trajectory.segments[n]) for n in request.context),
        "gen_ai.usage.output_tokens": len(trajectory.segments[request.output]),
    }
    if request.block:
        found["anabranch.block"] = ".".join(map(str, request.block))
    if request.branch is not None:
        found["anabranch.branch"] = request.branch
    if request.cached_tokens is not None:
        found["anabranch.cached_tokens"] = request.cached_tokens
    return found
