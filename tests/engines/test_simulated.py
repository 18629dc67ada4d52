"""Scripted outputs in simulated time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from anabranch.engines.base import Call, Chunk, Engine
from anabranch.engines.prefix_cache import PrefixCache
from anabranch.engines.simulated import ScriptedReply, SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import ContextWindowError, EngineError, UsageError

TOKENIZER = CharTokenizer(["</Path>"])
EOS = min(TOKENIZER.eos_ids)


def call(prompt: str, **options: object) -> Call:
    options = {"stop": ("</Path>",), "max_tokens": 1000, **options}
    return Call(tuple(TOKENIZER.encode(prompt)), **options)  # type: ignore[arg-type]


async def collect(engine: Engine, wanted: Call) -> tuple[str, list[int], Chunk, float]:
    """Text, ids, last chunk and seconds of one call."""
    began = asyncio.get_running_loop().time()
    chunks = [chunk async for chunk in engine.generate(wanted)]
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    ids = [token for chunk in chunks for token in chunk.ids]
    seconds = asyncio.get_running_loop().time() - began
    return "".join(chunk.text for chunk in chunks), ids, chunks[-1], seconds


def test_the_script_is_generated_up_to_the_stop_string() -> None:
    engine = SimulatedEngine({"<a>": "one</Path>two", ">": "short"}, TOKENIZER)
    assert isinstance(engine, Engine)
    text, ids, last, seconds = run_virtual(collect(engine, call("x<a>")))
    assert text == "one</Path>"
    assert ids == TOKENIZER.encode("one</Path>")
    assert (last.finish, last.stop, last.prompt_tokens, seconds) == ("stop", "</Path>", 4, 0)
    text, ids, last, _ = run_virtual(collect(engine, call("x<b>")))
    assert (text, ids[-1], last.finish) == ("short", EOS, "eos")


def test_the_cap_ends_the_output() -> None:
    engine = SimulatedEngine(lambda _: "abcdef", TOKENIZER)
    text, ids, last, _ = run_virtual(collect(engine, call("x", max_tokens=3)))
    assert (text, len(ids), last.finish) == ("abc", 3, "length")


def test_time_is_prefill_plus_decode_and_takes_none() -> None:
    engine = SimulatedEngine(lambda _: "y" * 999, TOKENIZER, prefill_rate=1000, decode_rate=10)
    began = time.perf_counter()
    *_, seconds = run_virtual(collect(engine, call("x" * 500)))
    assert seconds == pytest.approx(0.5 + 100)
    assert time.perf_counter() - began < 5


def test_outputs_decode_together_and_prefill_in_turn() -> None:
    engine = SimulatedEngine(lambda _: "y" * 9, TOKENIZER, prefill_rate=100, decode_rate=10)

    async def main() -> list[float]:
        results = await asyncio.gather(*(collect(engine, call("x" * 10)) for _ in range(3)))
        return [seconds for *_, seconds in results]

    assert run_virtual(main()) == pytest.approx([1.1, 1.2, 1.3])
    assert engine.peak == 3
    assert engine.running == 0
    assert engine.sampled == 30


def test_the_rate_may_depend_on_the_batch() -> None:
    engine = SimulatedEngine(lambda _: "y" * 9, TOKENIZER, decode_rate=lambda batch: 10 / batch)

    async def main() -> list[float]:
        results = await asyncio.gather(*(collect(engine, call("x")) for _ in range(2)))
        return [seconds for *_, seconds in results]

    # The first step begins before the second output has joined.
    assert run_virtual(main()) == pytest.approx([1.9, 2.0], abs=0.11)


def test_a_shared_prefix_is_prefilled_once() -> None:
    engine = SimulatedEngine(
        lambda _: "y", TOKENIZER, prefill_rate=100, decode_rate=None, cache=PrefixCache(block=10)
    )

    async def main() -> list[tuple[int | None, float]]:
        seen = []
        for ending in "abc":
            *_, last, seconds = await collect(engine, call("x" * 100 + ending))
            seen.append((last.cached_tokens, round(seconds, 3)))
        return seen

    assert run_virtual(main()) == [(0, 1.01), (100, 0.01), (100, 0.01)]


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache = PrefixCache(block=2, capacity=4)
    cache.add([1, 2, 3, 4])
    assert cache.cached([1, 2, 3, 4, 5]) == 4
    assert cache.cached([1, 2, 3, 4]) == 2  # the last token is computed for its logits
    cache.add([7, 8])
    assert cache.cached([1, 2, 3, 4, 5]) == 0
    assert cache.cached([7, 8, 9]) == 2


def test_runs_are_repeatable() -> None:
    def times() -> list[float]:
        engine = SimulatedEngine(
            lambda c: "y" * (1 + sum(c.ids) % 17), TOKENIZER, prefill_rate=50, decode_rate=7
        )

        async def main() -> list[float]:
            calls = [call(f"prompt {n}") for n in range(20)]
            results = await asyncio.gather(*(collect(engine, each) for each in calls))
            return [seconds for *_, seconds in results]

        return run_virtual(main())

    assert times() == times()


def test_sixty_four_trajectories_of_eight_branches_take_no_real_time() -> None:
    engine = SimulatedEngine(lambda _: "y" * 31, TOKENIZER, decode_rate=50, record=False)

    async def main() -> float:
        await asyncio.gather(*(collect(engine, call("x")) for _ in range(64 * 8)))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(32 / 50)
    assert engine.peak == 512


def test_a_failure_comes_where_the_script_says() -> None:
    error = EngineError("broken", retryable=True)
    engine = SimulatedEngine(lambda _: ScriptedReply("abcdef", error=error, after=3), TOKENIZER)
    texts: list[str] = []

    async def main() -> None:
        async for chunk in engine.generate(call("x")):
            texts.append(chunk.text)

    with pytest.raises(EngineError, match="broken"):
        run_virtual(main())
    assert texts == ["a", "b", "c"]
    assert engine.served[0].finish == "error"


def test_a_stall_takes_its_time() -> None:
    engine = SimulatedEngine(lambda _: ScriptedReply("abc", stall=90, after=1), TOKENIZER)
    *_, seconds = run_virtual(collect(engine, call("x")))
    assert seconds == 90


def test_leaving_frees_the_engine_and_is_counted() -> None:
    engine = SimulatedEngine(lambda _: "y" * 100, TOKENIZER, decode_rate=10)

    async def main() -> None:
        output = engine.generate(call("x"))
        await anext(output)
        assert engine.running == 1
        await output.aclose()
        task = asyncio.create_task(collect(engine, call("x")))
        await asyncio.sleep(1.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main())
    assert (engine.running, engine.cancelled, engine.sampled) == (0, 2, 11)
    assert [served.finish for served in engine.served] == ["cancelled", "cancelled"]


def test_deadlines_work_in_virtual_time() -> None:
    engine = SimulatedEngine(lambda _: "y" * 100, TOKENIZER, decode_rate=1)

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await collect(engine, call("x"))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 50


def test_a_full_window_is_an_error() -> None:
    engine = SimulatedEngine(lambda _: "y", TOKENIZER, window=10)
    with pytest.raises(ContextWindowError) as caught:
        run_virtual(collect(engine, call("x" * 8, max_tokens=3)))
    assert (caught.value.window, caught.value.prompt_tokens) == (10, 8)


def test_a_prompt_without_a_reply_is_named() -> None:
    engine = SimulatedEngine({"<a>": "x"}, TOKENIZER)
    with pytest.raises(UsageError, match=r"no reply to a prompt that ends in '.*<b>'"):
        run_virtual(collect(engine, call("question <b>")))


def test_in_real_time_late_steps_are_made_up_for() -> None:
    engine = SimulatedEngine(
        lambda _: "y" * 100, TOKENIZER, decode_rate=5_000, tokens_per_chunk=100
    )

    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        began, chunks = loop.time(), 0
        async for _ in engine.generate(call("x")):
            chunks += 1
        return loop.time() - began, chunks

    seconds, chunks = asyncio.run(main())
    assert seconds >= 101 / 5_000
    assert chunks <= 102


def test_logprobs_only_when_wanted() -> None:
    engine = SimulatedEngine(lambda _: ScriptedReply("ab", logprob=-2.0), TOKENIZER)

    async def scores(wanted: bool) -> set[tuple[float, ...] | None]:
        return {c.logprobs async for c in engine.generate(call("x", logprobs=wanted)) if c.ids}

    assert run_virtual(scores(True)) == {(-2.0,)}
    assert run_virtual(scores(False)) == {None}


def test_text_and_words_round_trip() -> None:
    for text in ("a</Path>b", "</Pa", "\ud800 lone", "<eos><bos>", "é\u2028"):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert len(TOKENIZER.encode("</Path>")) == 1
    assert replace(call("x"), seed=1).ids == (ord("x"),)
