"""The trainer's weights into an engine, and the proof that it now answers with them.

One class for the in-process engine and one each for vLLM and SGLang by their own HTTP routes. A
server that says yes and goes on with old weights, or with keys and values of old ones, is found by
a probe: a few prompts sampled alone, whose log-probs must be the trainer's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import torch

from anabranch.engines.base import Call, Engine
from anabranch.engines.failures import status_error
from anabranch.engines.local_load import quiet_loading
from anabranch.engines.transport import base_url
from anabranch.errors import EngineError

PROBE_TOKENS = 32
#: A mean change of the trainer's own log-probs that no engine can answer with the same bits.
VISIBLE = 1e-4


class WeightSync(Protocol):
    """A way into one engine."""

    async def push(self, model: Any) -> None:
        """Hand over the weights and drop what was computed with the old ones.

        Raises:
            EngineError: the engine refuses or fails.
        """


class LocalSync:
    """For :class:`anabranch.engines.local.LocalEngine`; its model may be the trainer's own.

    Args:
        engine: the engine.
        shared: the engine runs the very model that is trained.
    """

    def __init__(self, engine: Any, *, shared: bool) -> None:
        self.engine, self.shared = engine, shared

    async def push(self, model: Any) -> None:
        await self.engine.update_weights(None if self.shared else model.state_dict())


class _ServerSync:
    """Weights by way of a folder that trainer and server both see.

    Args:
        url: of the server.
        folder: with a complete checkpoint; its weights are replaced.
        timeout: seconds that loading may take.
    """

    def __init__(
        self, url: str, folder: Path | str, *, api_key: str | None = None, timeout: float = 600.0
    ) -> None:
        self.url, self.folder, self.timeout = base_url(url), Path(folder), timeout
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        where = self.url + path
        timeout = aiohttp.ClientTimeout(total=self.timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.post(where, json=body) as response,
            ):
                text = await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise EngineError(f"{where}: {reason}", retryable=True) from None
        if response.status != 200:
            raise status_error(response.status, text, where)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            return None


class VLLMSync(_ServerSync):
    """vLLM's development routes (``VLLM_SERVER_DEV_MODE=1``); the folder is the served one."""

    async def push(self, model: Any) -> None:
        write_weights(model, self.folder)
        await self._post("/collective_rpc", {"method": "reload_weights"})
        await self._post("/reset_prefix_cache")


class SGLangSync(_ServerSync):
    """SGLang's ``/update_weights_from_disk``, which drops its cache itself."""

    async def push(self, model: Any) -> None:
        write_weights(model, self.folder)
        body = {"model_path": str(self.folder), "flush_cache": True}
        answer = await self._post("/update_weights_from_disk", body)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"{self.url} did not take the new weights: {said}")


def write_weights(model: Any, folder: Path) -> None:
    """Replace the weights in a checkpoint's folder; each file is whole at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".weights-{os.getpid()}"
    try:
        with quiet_loading():
            model.save_pretrained(fresh)
        new = {path.name for path in fresh.iterdir() if path.name.startswith("model")}
        for name in sorted(new):
            (fresh / name).replace(folder / name)
        for old in folder.glob("model*.safetensors*"):
            if old.name not in new:
                old.unlink()
        for path in fresh.iterdir():
            if not (folder / path.name).exists():
                path.replace(folder / path.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Probe:
    """What an engine gave for the probe prompts.

    Attributes:
        ids, logprobs: sampled, per prompt.
        gap: mean ``|log π_engine − log π_trainer|``.
        trainer: the trainer's log-probs of the same tokens.
    """

    ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    gap: float
    trainer: tuple[tuple[float, ...], ...]


async def check_probe(
    model: Any,
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    before: Probe | None,
    largest_gap: float,
) -> Probe:
    """Sample the prompts one by one and compare with the trainer.

    Args:
        model: the trainer's, with the weights that were pushed.
        engine: that took them over.
        prompts: ids.
        before: the probe after the push before this one.
        largest_gap: mean difference that rounding may cause.

    Raises:
        EngineError: the engine answers with other weights, or from a cache of before.
    """
    ids, logprobs = [], []
    for number, prompt in enumerate(prompts):
        call = Call(prompt, (), PROBE_TOKENS, temperature=1.0, seed=number)
        sampled, scores, cached = await _sample(engine, call)
        if number == 0 and cached:
            raise EngineError(
                f"{engine.name}: {cached} tokens of the prompt came from a cache that was to be "
                "reset after the change of weights"
            )
        ids.append(sampled)
        logprobs.append(scores)
    trainer = tuple(_score(model, p, i) for p, i in zip(prompts, ids, strict=True))
    gap = _distance(logprobs, trainer)
    probe = Probe(tuple(ids), tuple(logprobs), gap, trainer)
    if before is not None and probe.ids == before.ids and probe.logprobs == before.logprobs:
        moved = _distance(before.trainer, trainer)
        if moved > VISIBLE:
            raise EngineError(
                f"{engine.name} did not take the new weights: it answers to the last bit as "
                f"before, where the trainer's log-probs moved by {moved:.2g}"
            )
    if gap > largest_gap:
        raise EngineError(
            f"{engine.name} does not answer with the trainer's weights: log-probs differ by "
            f"{gap:.3g} a token, at most {largest_gap:g} is allowed (probe_gap)"
        )
    return probe


async def _sample(engine: Engine, call: Call) -> tuple[tuple[int, ...], tuple[float, ...], int]:
    ids: list[int] = []
    scores: list[float] = []
    cached = 0
    async with aclosing(engine.generate(call)) as chunks:
        async for chunk in chunks:
            ids += chunk.ids
            scores += chunk.logprobs or ()
            cached = max(cached, chunk.cached_tokens or 0)
    if len(scores) != len(ids) or not ids:
        raise EngineError(
            f"{engine.name} gives no log-prob for every token, so its weights cannot be checked"
        )
    return tuple(ids), tuple(scores), cached


def _score(model: Any, prompt: tuple[int, ...], ids: tuple[int, ...]) -> tuple[float, ...]:
    device = next(model.parameters()).device
    whole = torch.tensor([[*prompt, *ids]], device=device)
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.float(), -1).gather(1, whole[0, len(prompt) :, None])
    return tuple(chosen[:, 0].tolist())


def _distance(one: Sequence[tuple[float, ...]], other: Sequence[tuple[float, ...]]) -> float:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=False)]
    return sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1)
