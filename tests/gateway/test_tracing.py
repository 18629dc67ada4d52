"""Spans of requests, received by a collector of our own over OTLP."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import OpenAI

from anabranch.errors import UsageError
from anabranch.gateway.tracing import Spans, spans_to
from anabranch.lab.families import draw_distinct

pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed (extra otel)")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from gzip import decompress

                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
                    ExportTraceServiceRequest,
                )

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        outer.spans += scope.spans
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def traced(make_gateway: Callable[..., Any], collector: Collector) -> Iterator[tuple[Any, Spans]]:
    gateway = make_gateway()
    spans = spans_to(collector.url)
    gateway.service.observers.add(spans)
    yield gateway, spans
    spans.close()


def ask(gateway: Any, **more: Any) -> None:
    problem = draw_distinct(4, "chains", (3, 5), 1)[0]
    client = OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0)
    client.chat.completions.create(
        model="lab", messages=[{"role": "user", "content": problem.text}], **more
    )


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind)
    return found


def test_an_answer_is_a_root_with_a_child_for_each_request(
    traced: tuple[Any, Spans], collector: Collector
) -> None:
    gateway, spans = traced
    ask(gateway, extra_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    spans.close()
    (root,) = [span for span in collector.spans if span.name == "POST /v1/chat/completions"]
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == PARENT
    children = [span for span in collector.spans if span is not root]
    assert sorted(span.name for span in children) == [
        "branch 1", "branch 2", "branch 3", "main", "main",
    ]  # fmt: skip
    told = attributes(root)
    assert told["anabranch.outcome"] == "answered"
    assert told["anabranch.engine_requests"] == 5
    sampled = 0
    for span in children:
        assert span.parent_span_id == root.span_id and span.trace_id == root.trace_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        sampled += attributes(span)["gen_ai.usage.output_tokens"]
    assert sampled == told["gen_ai.usage.output_tokens"]
    assert {attributes(span).get("anabranch.block") for span in children} == {None, "1"}
    # No text of anybody.
    problem = draw_distinct(4, "chains", (3, 5), 1)[0]
    assert all(problem.text not in str(span) for span in collector.spans)


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01"])
def test_without_a_caller_a_trace_begins_here(
    traced: tuple[Any, Spans], collector: Collector, header: str
) -> None:
    gateway, spans = traced
    ask(gateway, extra_headers={"traceparent": header} if header else {})
    spans.close()
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["POST /v1/chat/completions"]


def test_a_failed_request_is_an_error(traced: tuple[Any, Spans], collector: Collector) -> None:
    gateway, spans = traced
    gateway.upstream.__exit__(None, None, None)
    try:
        with pytest.raises(Exception, match="50"):
            ask(gateway)
    finally:
        gateway.upstream.__enter__()
    spans.close()
    (root,) = [span for span in collector.spans if span.name.startswith("POST")]
    assert root.status.code == 2


def test_bad_endpoints_are_named() -> None:
    with pytest.raises(UsageError, match="write it like http"):
        spans_to("localhost:4317")
