"""The in-process engine's worker: leaving early, closing, failing, new weights."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

from anabranch.engines.base import Call, Chunk
from anabranch.engines.local import LocalEngine
from anabranch.engines.tokenizers import HFTokenizer
from anabranch.errors import EngineError, ModelError

VOCABULARY = 64


def letters() -> HFTokenizer:
    raw = Tokenizer(models.WordLevel({chr(65 + at): at for at in range(VOCABULARY)}, "A"))
    raw.decoder = decoders.Fuse()
    return HFTokenizer(raw)


def llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


@asynccontextmanager
async def serving(model: Any = None) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model or llama(), letters(), threads=1)
    try:
        yield engine
    finally:
        await engine.close()


def call(max_tokens: int = 4000, **wanted: Any) -> Call:
    return Call(ids=(1, 2, 3), stop=(), max_tokens=max_tokens, **wanted)


async def collect(engine: LocalEngine, wanted: Call) -> list[int]:
    return [token async for chunk in engine.generate(wanted) for token in chunk.ids]


async def settled(engine: LocalEngine) -> None:
    """Waits until no request is live: new weights wait for that too."""
    async with asyncio.timeout(20):
        await engine.update_weights(None)
    assert not engine._batch.jobs
    assert not engine._worker._streams


def test_closing_a_stream_frees_its_row() -> None:
    """Restates sglang#36333: a client that left must not be decoded for."""

    async def work() -> None:
        async with serving() as engine:
            stream = engine.generate(call())
            async for _ in stream:
                break
            await stream.aclose()
            await settled(engine)
            assert engine.statistics.sampled < 4000

    asyncio.run(work())


def test_cancelling_a_task_frees_its_row_and_leaves_the_others() -> None:
    async def work() -> None:
        async with serving() as engine:
            expected = await collect(engine, call(300))
            await engine.update_weights(None)
            begun = [asyncio.Event() for _ in range(3)]

            async def follow(event: asyncio.Event) -> None:
                async for _ in engine.generate(call()):
                    event.set()

            tasks = [asyncio.create_task(follow(event)) for event in begun]
            other = asyncio.create_task(collect(engine, call(300)))
            await asyncio.gather(*(event.wait() for event in begun))
            for task in tasks:
                task.cancel()
            assert await other == expected
            assert engine.statistics.rows == 4
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in done)
            await settled(engine)

    asyncio.run(work())


def test_cancelling_before_the_first_step() -> None:
    async def work() -> None:
        async with serving() as engine:
            task = asyncio.create_task(collect(engine, call()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await collect(engine, call(5))) == 5
            await settled(engine)

    asyncio.run(work())


def test_closing_fails_what_is_live_and_may_be_repeated() -> None:
    async def work() -> None:
        engine = LocalEngine(llama(), letters(), threads=1)
        stream = engine.generate(call())
        await anext(stream)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineError, match="closed"):
            await collect(engine, call(1))
        with pytest.raises(EngineError, match="closed"):
            await engine.update_weights(None)

    asyncio.run(work())


def test_an_engine_serves_one_event_loop_after_the_other() -> None:
    engine = LocalEngine(llama(), letters(), threads=1)
    answers = [asyncio.run(collect(engine, call(20))) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    asyncio.run(engine.close())


def test_an_engine_that_is_dropped_ends_its_thread() -> None:
    engine = LocalEngine(llama(), letters(), threads=1)
    asyncio.run(collect(engine, call(3)))
    assert any(thread.name == "anabranch-local" for thread in threading.enumerate())
    del engine
    gc.collect()
    assert not any(thread.name == "anabranch-local" for thread in threading.enumerate())


def test_a_step_that_breaks_fails_the_requests_and_the_next_ones_work() -> None:
    async def work() -> None:
        model = llama()
        async with serving(model) as engine:
            handle = model.lm_head.register_forward_pre_hook(_break)
            with pytest.raises(EngineError, match="the local engine failed: RuntimeError: broken"):
                await collect(engine, call(5))
            handle.remove()
            assert len(await collect(engine, call(5))) == 5

    asyncio.run(work())


def _break(module: Any, args: Any) -> None:
    raise RuntimeError("broken")


def test_logits_that_are_not_numbers_are_an_error() -> None:
    async def work() -> None:
        model = llama()
        async with serving(model) as engine:
            before = model.lm_head.weight.detach().clone()
            await engine.update_weights(model.state_dict() | {"lm_head.weight": before * torch.nan})
            with pytest.raises(EngineError, match="NaN"):
                await collect(engine, call(5))

    asyncio.run(work())


def test_new_weights_give_new_tokens_and_forget_the_old_prefixes() -> None:
    async def work() -> None:
        async with serving() as engine, serving(llama(seed=1)) as fresh:
            old = await collect(engine, call(20))
            expected = await collect(fresh, call(20))
            assert old != expected
            await engine.update_weights(llama(seed=1).state_dict())
            chunks: list[Chunk] = [chunk async for chunk in engine.generate(call(20))]
            assert [token for chunk in chunks for token in chunk.ids] == expected
            assert chunks[0].cached_tokens == 0

    asyncio.run(work())


def test_weights_that_do_not_fit_leave_the_old_ones() -> None:
    async def work() -> None:
        async with serving() as engine:
            old = await collect(engine, call(20))
            for change, problem in (
                ({"model.norm.weight": torch.ones(3)}, "model.norm.weight is misshapen"),
                ({"other": torch.ones(3)}, "other is unknown"),
            ):
                weights = llama(seed=1).state_dict() | change
                with pytest.raises(ModelError, match=problem):
                    await engine.update_weights(weights)
            with pytest.raises(ModelError, match="is missing"):
                await engine.update_weights({"model.norm.weight": torch.ones(32)})
            with pytest.raises(TypeError):
                await engine.update_weights(5)  # type: ignore[arg-type]
            assert await collect(engine, call(20)) == old

    asyncio.run(work())


def test_new_weights_wait_for_live_requests() -> None:
    async def work() -> None:
        async with serving() as engine:
            expected = await collect(engine, call(100))
            task = asyncio.create_task(collect(engine, call(100)))
            await asyncio.sleep(0)
            await engine.update_weights(llama(seed=1).state_dict())
            assert task.done() or await asyncio.wait_for(task, 5)
            assert task.result() == expected

    asyncio.run(work())
