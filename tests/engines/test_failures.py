"""Refusals of servers in their own words."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest

from anabranch.engines.failures import StatusError, error_message, status_error
from anabranch.engines.retry import Retries, parse_retry_after
from anabranch.errors import ContextWindowError

URL = "http://h/v1/completions"


@pytest.mark.parametrize(
    ("message", "window", "prompt"),
    [
        (  # the case of vllm#42474
            "'max_tokens' or 'max_completion_tokens' is too large: 65535. This model's maximum "
            "context length is 128000 tokens and your request has 62466 input tokens "
            "(65535 > 128000 - 62466).",
            128000,
            62466,
        ),
        (
            "This model's maximum context length is 2048 tokens. However, you requested 3000 "
            "tokens (2900 in the messages, 100 in the completion).",
            2048,
            2900,
        ),
        (
            "This model's maximum context length is 1024 tokens. However, your prompt contains "
            "2000 input tokens, which exceeds this limit even without any output tokens.",
            1024,
            2000,
        ),
        (
            "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
            2048,
            3000,
        ),
        (
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            4096,
            5000,
        ),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. "
            "You requested a total of 5000 tokens: 4000 tokens from the input messages and 1000 "
            "tokens for the completion.",
            4096,
            4000,
        ),
        ("the context length is exceeded", None, None),
    ],
)
def test_a_full_window_is_recognised(message: str, window: int | None, prompt: int | None) -> None:
    body = json.dumps({"error": {"message": message, "code": 400}})
    error = status_error(400, body, URL)
    assert isinstance(error, ContextWindowError)
    assert (error.window, error.prompt_tokens) == (window, prompt)
    assert not error.retryable
    assert URL in str(error)


def test_llama_cpp_gives_the_numbers_beside_the_message() -> None:
    body = {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 700,
            "n_ctx": 512,
        }
    }
    error = status_error(400, json.dumps(body), URL)
    assert isinstance(error, ContextWindowError)
    assert (error.window, error.prompt_tokens) == (512, 700)


def test_any_other_refusal_names_status_url_and_words() -> None:
    error = status_error(400, '{"error": {"message": "top_p must be\\nin (0, 1]"}}', URL)
    assert isinstance(error, StatusError)
    assert str(error) == f"{URL} answered 400: top_p must be in (0, 1]"
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"object": "error", "message": "no"}', "no"),
        ('{"detail": [{"msg": "field required"}]}', '[{"msg": "field required"}]'),
        ('{"error": "Unauthorized"}', "Unauthorized"),
        ("<html>\n bad  gateway</html>", "<html> bad gateway</html>"),
        ("", "no message"),
        ("x" * 500, "x" * 299 + "…"),
    ],
)
def test_the_servers_own_words(body: str, words: str) -> None:
    assert error_message(body) == words


def test_waits_double_and_end() -> None:
    retries = Retries(attempts=3, backoff=1, longest=3, jitter=0, deadline=100)
    rng = random.Random(0)
    assert [retries.wait(n, 0, None, rng) for n in (1, 2, 3, 4)] == [1, 2, 3, None]
    assert retries.wait(1, 0, 20, rng) == 20
    assert retries.wait(1, 90, 20, rng) is None  # the deadline would pass


def test_retry_after_in_both_forms() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert parse_retry_after("7", now) == 7
    assert parse_retry_after("Tue, 01 Jan 2030 00:00:05 GMT", now) == 5
    assert parse_retry_after("Tue, 01 Jan 2019 00:00:05 GMT", now) == 0
    assert parse_retry_after("soon", now) is None
    assert parse_retry_after(None, now) is None
