"""How busy a server is, by its own metrics: running and waiting requests, use of the KV cache.

Reads the Prometheus text that vLLM, SGLang and llama.cpp serve under `/metrics`. What to make of a
load, such as the width of a fork, is decided elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anabranch.engines.retry import Retries
from anabranch.engines.transport import Timeouts, Transport
from anabranch.errors import EngineError

__all__ = ["Load", "LoadReader", "parse_load", "samples"]

METRICS = "/metrics"

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)"
    r"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

#: What each server calls it: running, waiting, cache use. The first name that is there counts.
_NAMES = (
    ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:cpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server at one moment.

    Attributes:
        running: requests that are being worked on, summed over the engines behind one server.
        waiting: requests in its queue, summed likewise.
        cache_use: share of the KV cache in use, 0 … 1, of the fullest engine; None where the
            server does not say.
    """

    running: int
    waiting: int
    cache_use: float | None = None


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of a Prometheus text: name, labels and value. Other lines are passed over."""
    for line in text.split("\n"):
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {
            name: _ESCAPE.sub(lambda escape: {"n": "\n"}.get(escape[1], escape[1]), text)
            for name, text in _LABEL.findall(match["labels"] or "")
        }
        yield match["name"], labels, value


def parse_load(text: str, labels: Mapping[str, str] | None = None) -> Load | None:
    """The load in a Prometheus text, None if it says nothing of running requests.

    Args:
        labels: only samples that have these labels count, such as the model's name.
    """
    wanted = set((labels or {}).items())
    found: dict[str, list[float]] = {}
    for name, having, value in samples(text):
        if wanted <= having.items() and math.isfinite(value):
            found.setdefault(name, []).append(value)
    running, waiting, cache = (
        next((found[name] for name in names if name in found), None) for names in _NAMES
    )
    if running is None:
        return None
    return Load(round(sum(running)), round(sum(waiting or ())), max(cache) if cache else None)


class LoadReader:
    """Asks one server for its load, over a connection of its own.

    It belongs to the event loop in which it is first used.

    Args:
        url: the server, with or without `/v1`.
        api_key: sent as bearer token.
        labels: see :func:`parse_load`.
        timeout: seconds that one answer may take; a server is asked once, never again.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float = 2.0,
    ) -> None:
        self._transport = Transport(
            url,
            api_key=api_key,
            timeouts=Timeouts(connect=timeout, first=timeout),
            retries=Retries(attempts=0),
        )
        self._labels = dict(labels or {})

    async def read(self) -> Load:
        """The load now.

        Raises:
            EngineError: the server does not answer, or not with metrics that are known here.
        """
        text = await self._transport.get_text(METRICS)
        load = parse_load(text, self._labels)
        if load is None:
            hint = "SGLang and llama.cpp serve metrics only when started with them"
            raise EngineError(
                f"{self._transport.url}{METRICS} says nothing of running requests ({hint})"
            )
        return load

    async def close(self) -> None:
        """Closes the connection."""
        await self._transport.close()

    async def __aenter__(self) -> LoadReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
