"""What a running engine can do beyond its discovery, found by trying: seeds, aborts, grammars, …

Each ability is tried with a few small requests and reported as seen, not seen, or unknown with the
reason. Nothing here decides how calls are made; that is :mod:`anabranch.engines.discovery`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from anabranch.engines.base import Call, Chunk, Engine, find_grammar
from anabranch.engines.completions import CompletionsEngine
from anabranch.engines.discovery import COMPLETIONS, Probe, ask, encode_body
from anabranch.engines.http_engine import HttpEngine
from anabranch.engines.load import METRICS, parse_load, samples
from anabranch.errors import AnabranchError, EngineError

__all__ = ["Ability", "examine"]

_SAMPLE = "(12 + 3) = 15;"
_SIBLINGS = 4
_PREFIX = 320
#: Seconds within which a server must have dropped a request that was left.
_DROPPED = 1.0
_GENERATED = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)
_HITS = ("vllm:prefix_cache_hits_total", "llamacpp:prompt_tokens_cached_total")


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that was tried.

    Attributes:
        seen: True, False, or None where it could not be told.
        detail: what was seen, or why it is unknown.
    """

    name: str
    seen: bool | None
    detail: str


async def examine(engine: Engine) -> list[Ability]:
    """Tries everything that can be tried with this engine, one after the other.

    A test that the engine refuses is "not seen" with its words; the engine stays usable.
    """
    tests: dict[str, Callable[[], Awaitable[tuple[bool | None, str]]]] = {
        "seeds honoured": lambda: _seeds(engine),
        "siblings share a prefix": lambda: _siblings(engine),
        "grammar": lambda: _grammar(engine),
    }
    if isinstance(engine, HttpEngine):
        http = engine
        tests["load metrics"] = lambda: _load(http)
        tests["prefix metrics"] = lambda: _prefix_metrics(http)
    if isinstance(engine, CompletionsEngine):
        server = engine
        tests["stop ids"] = lambda: _stop_ids(server)
        tests["tokenise endpoint"] = lambda: _tokenise(server)
        tests["aborts honoured"] = lambda: _aborts(server)
    found = []
    for name, test in tests.items():
        try:
            seen, detail = await test()
        except AnabranchError as error:
            seen, detail = False, str(error)
        found.append(Ability(name, seen, detail))
    return found


def _prompt(engine: Engine, length: int) -> tuple[int, ...]:
    """A prompt of so many tokens, less where the window is small."""
    window = engine.capabilities.window
    room = length if window is None else min(length, window // 2)
    ids = engine.tokenizer.encode(_SAMPLE)
    start = [] if engine.tokenizer.bos_id is None else [engine.tokenizer.bos_id]
    return tuple((start + ids * (room // max(1, len(ids)) + 1))[:room])


async def _collect(engine: Engine, call: Call) -> tuple[tuple[int, ...], Chunk]:
    """All ids, and the last chunk."""
    ids: tuple[int, ...] = ()
    last = Chunk()
    async for chunk in engine.generate(call):
        ids += chunk.ids
        last = chunk
    return ids, last


async def _seeds(engine: Engine) -> tuple[bool | None, str]:
    def draw(seed: int) -> Call:
        return Call(_prompt(engine, 24), (), 12, temperature=2.0, seed=seed, logprobs=False)

    first, again, other = [(await _collect(engine, draw(seed)))[0] for seed in (5, 5, 6)]
    if first != again:
        return False, "one seed, two outputs"
    if first == other:
        return None, "every seed gave the same output"
    return True, "one seed repeats, another differs"


async def _siblings(engine: Engine) -> tuple[bool | None, str]:
    prefix = _prompt(engine, _PREFIX)
    await _collect(engine, Call(prefix, (), 1, logprobs=False))
    tails = engine.tokenizer.encode("0123456789")[:_SIBLINGS]
    calls = [Call((*prefix, tail), (), 1, logprobs=False) for tail in tails]
    ended = await asyncio.gather(*(_collect(engine, call) for call in calls))
    cached = [last.cached_tokens for _, last in ended]
    if None in cached:
        return None, "it does not say what came from its cache"
    shares = [(count or 0) / len(prefix) for count in cached]
    text = ", ".join(f"{share:.0%}" for share in shares)
    return min(shares) >= 0.5, f"of {len(prefix)} tokens, {len(calls)} at once found {text}"


async def _load(engine: HttpEngine) -> tuple[bool | None, str]:
    load = parse_load(await engine.transport.get_text(METRICS))
    if load is None:
        return False, f"{METRICS} says nothing of running requests"
    return True, f"{load.running} running, {load.waiting} waiting now"


async def _prefix_metrics(engine: HttpEngine) -> tuple[bool | None, str]:
    ways = ["usage of each request"] if engine.capabilities.prefix_cache else []
    try:
        names = {name for name, _, _ in samples(await engine.transport.get_text(METRICS))}
    except EngineError:
        names = set()
    ways += [f"{METRICS} {name}" for name in _HITS if name in names]
    return bool(ways), "; ".join(ways) or "neither in the usage nor in its metrics"


async def _ask(engine: CompletionsEngine, cap: int, **fields: object) -> Probe:
    """One greedy request with fields of the protocol's own."""
    score = {"logprobs": 1} if engine.capabilities.ids_out else {}
    prompt = _prompt(engine, 24)
    body = {"model": engine.model, "prompt": prompt, "max_tokens": cap, "temperature": 0.0}
    return await ask(engine.transport, encode_body({**body, **score, **fields}, {}))


async def _stop_ids(engine: CompletionsEngine) -> tuple[bool | None, str]:
    plain = await _ask(engine, 8, ignore_eos=True)
    if len(plain.ids) < 2:
        return None, "it gives no token ids"
    stop = plain.ids[1]
    wanted = plain.ids.index(stop) + 1
    stopped = await _ask(engine, 8, ignore_eos=True, stop_token_ids=[stop])
    # Some leave the stop token itself out.
    if stopped.finish == "stop" and len(stopped.ids) in (wanted, wanted - 1):
        return True, f"stop_token_ids: ended behind {len(stopped.ids)} of {len(plain.ids)} tokens"
    return False, "stop_token_ids is ignored"


async def _grammar(engine: Engine) -> tuple[bool | None, str]:
    flavour = await find_grammar(engine)
    return flavour is not None, flavour or "it takes none that is known here"


async def _tokenise(engine: CompletionsEngine) -> tuple[bool | None, str]:
    ours = engine.tokenizer.encode(_SAMPLE)
    forms = (
        ("prompt", {"model": engine.model, "prompt": _SAMPLE, "add_special_tokens": False}),
        ("content", {"content": _SAMPLE}),
    )
    reason = "no answer that is known here"
    for name, body in forms:
        try:
            answer = json.loads(await engine.transport.post("/tokenize", json.dumps(body).encode()))
        except (EngineError, ValueError) as error:
            reason = str(error)
            continue
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if tokens == ours:
            return True, f"/tokenize with {name}; agrees with the local tokenizer"
        if tokens:
            return False, f"/tokenize with {name} gives {tokens[:6]}…, here it is {ours[:6]}…"
    return False, reason


async def _aborts(engine: CompletionsEngine) -> tuple[bool | None, str]:
    """Leaves a long request after its first token; the server must stop sampling soon."""
    transport = engine.transport
    before, sampled = await _now(engine)
    if before is None:
        return None, "it does not say how many requests run"
    window = engine.capabilities.window
    prompt = _prompt(engine, 24)
    cap = 4096 if window is None else min(4096, window - len(prompt) - 1)
    body = {"model": engine.model, "prompt": prompt, "max_tokens": cap, "ignore_eos": True}
    stream = await transport.begin(COMPLETIONS, encode_body(body, {}))
    stream.abort()
    loop = asyncio.get_running_loop()
    left = loop.time()
    while True:
        running, now = await _now(engine)
        gone = loop.time() - left
        if running is not None and running <= before:
            break
        if gone > 2 * _DROPPED:
            return False, f"still running {gone:.1f} s after it was left"
        await asyncio.sleep(0.05)
    if sampled is None or now is None:
        return gone <= _DROPPED, f"gone {gone:.2f} s after it was left"
    made = round(now - sampled)
    done = f"gone {gone:.2f} s after it was left, {made} of {cap} tokens sampled"
    return (None if made >= cap else gone <= _DROPPED), done


async def _now(engine: CompletionsEngine) -> tuple[int | None, float | None]:
    """Running requests, and tokens generated so far."""
    try:
        text = await engine.transport.get_text(METRICS)
    except EngineError:
        return None, None
    load = parse_load(text)
    counts = [value for name, _, value in samples(text) if name in _GENERATED]
    return (load.running + load.waiting if load else None), (sum(counts) if counts else None)
