"""The in-process engine: any causal language model that transformers loads, in one thread.

The engine's face. What runs where: :mod:`anabranch.engines.local_load` makes the model,
`local_audit` chooses its `local_forward` over the `local_cache`, `local_batch` is the step loop
over `local_job` requests with the prefixes of `local_prefix`, and `local_worker` is the thread it
runs in.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.local_audit import choose_forward
from anabranch.engines.local_batch import Batch, Statistics
from anabranch.engines.local_forward import CachedForward
from anabranch.engines.local_grammar import Grammars, can_constrain
from anabranch.engines.local_job import Job
from anabranch.engines.local_load import (
    check_files,
    default_threads,
    end_ids,
    load_model,
    load_tokenizer_of,
    load_weights,
    window_of,
)
from anabranch.engines.local_worker import Stream, Worker
from anabranch.errors import ContextWindowError, EngineError, ModelError

#: Kept sequences by default: at most so many bytes and tokens.
CACHE_BYTES = 1 << 30
CACHE_TOKENS = 1 << 16


class LocalEngine:
    """A model in this process behind :class:`anabranch.engines.base.Engine`.

    Of each output: the end token is among the ids with empty text, so that training sees it;
    log-probs are those of the raw logits at temperature 1, before any cut or grammar. A token
    depends on its request's logits and seed alone; logits of one request in batches of different
    make-up may differ in the last bits, as floating point does.

    The prompt's common prefix with any kept or live sequence is copied, not computed
    (``Chunk.cached_tokens``), its last token always computed. If a model cannot be decoded that
    way, the engine runs whole sequences instead and says so in ``capabilities.notes``.

    Args:
        model: a checkpoint folder, or a loaded transformers model. A loaded one is put into eval
            mode and may get SDPA or eager attention.
        tokenizer: None: the one next to the checkpoint.
        dtype: of the weights, such as "bfloat16"; None: as stored, float32 for small models on
            a CPU. Only for folders.
        device: None: the accelerator if there is one, else the CPU. Only for folders.
        threads: CPU threads, set in the worker thread (`torch.set_num_threads` there; torch
            shares the number with threads that start computing later); None: one for small
            models, else the physical cores; `OMP_NUM_THREADS` wins.
        max_batch: requests that run at once; more of them wait.
        max_cached_tokens: bound on finished sequences kept for reuse; None: 1 GiB, at most
            65,536 tokens; 0: none.

    Raises:
        ModelError: the checkpoint cannot be used; one line.
    """

    name = "local"

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | None = None,
        threads: int | None = None,
        max_batch: int = 64,
        max_cached_tokens: int | None = None,
    ) -> None:
        if isinstance(model, str | Path):
            self.model = str(model)
            check_files(Path(model))
            self.tokenizer = tokenizer if tokenizer is not None else load_tokenizer_of(model)
            self._module = load_model(model, dtype=_dtype(dtype), device=device)
        else:
            self.model = str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
            if tokenizer is None:
                raise ModelError("a loaded model needs a tokenizer: give one")
            self.tokenizer = tokenizer
            self._module = model.eval()
        finding = choose_forward(self._module)
        self._eos_ids = self.tokenizer.eos_ids or end_ids(self._module)
        self._vocabulary = int(self._module.config.get_text_config().vocab_size)
        self._capabilities = Capabilities(
            prefix_cache=finding.forward.caches,
            window=window_of(self._module),
            grammar="xgrammar" if can_constrain(self.tokenizer, self._eos_ids) else None,
            notes=(finding.note,) if finding.note else (),
        )
        self._grammars = Grammars(self.tokenizer, self._vocabulary, self._eos_ids)
        kept = _cached_tokens(finding.forward) if max_cached_tokens is None else max_cached_tokens
        self._batch = Batch(finding.forward, max_batch, kept)
        self._worker = Worker(self._batch, threads or default_threads(self._module))
        self._fresh: list[tuple[Job, Stream]] = []
        weakref.finalize(self, self._worker.stop)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def statistics(self) -> Statistics:
        """Counts since the start; updated by the worker thread."""
        return self._batch.statistics

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Streams the output of one call; leaving early frees its row before the next step.

        Raises:
            ContextWindowError: prompt and cap exceed the window; nothing was computed.
            EngineError: the prompt is empty or has an id outside the vocabulary; the engine
                failed or was closed.
        """
        self._check(call)
        if call.max_tokens < 1:
            yield Chunk(finish="length", prompt_tokens=len(call.ids), cached_tokens=0)
            return
        matcher = None
        if call.grammar is not None:
            # The first grammar of a vocabulary takes a while: the event loop goes on meanwhile.
            matcher = await asyncio.to_thread(self._grammars.matcher, call.grammar)
        job = Job(call, self.tokenizer, self._eos_ids, matcher)
        stream = Stream(asyncio.get_running_loop())
        self._submit(job, stream)
        try:
            while True:
                chunk = await stream.get()
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            if job.finish is None:
                job.cancelled = True

    def _check(self, call: Call) -> None:
        if self._worker.closed:
            raise EngineError("the local engine was closed")
        if not call.ids:
            raise EngineError("the prompt is empty: the local engine needs at least one token")
        if min(call.ids) < 0 or max(call.ids) >= self._vocabulary:
            raise EngineError(f"the prompt has an id outside the vocabulary of {self._vocabulary}")
        if call.grammar is not None and self._capabilities.grammar is None:
            raise EngineError(
                "the local engine takes no grammar: install anabranch[grammar]; its tokenizer must "
                "decode id by id and have an end token"
            )
        window = self._capabilities.window
        if window is not None and len(call.ids) + max(call.max_tokens, 0) > window:
            raise ContextWindowError(
                f"prompt ({len(call.ids)}) and max_tokens ({call.max_tokens}) exceed the model's "
                f"window of {window} tokens",
                window=window,
                prompt_tokens=len(call.ids),
            )

    def _submit(self, job: Job, stream: Stream) -> None:
        """Hands requests over once the event loop's turn is through: siblings start together."""
        if not self._fresh or self._fresh[-1][1].loop is not stream.loop:
            stream.loop.call_soon(self._hand_in)
        self._fresh.append((job, stream))

    def _hand_in(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh:
            self._worker.submit(fresh)

    async def update_weights(self, source: dict[str, Tensor] | str | Path | None) -> None:
        """Replaces the weights once no request is live, and forgets all kept sequences.

        Args:
            source: a state dict, a checkpoint folder of the same architecture, or None if the
                weights were changed in place (the model is then put back into eval mode).

        Raises:
            ModelError: the weights do not fit; the old ones stay.
        """

        def replace() -> None:
            if source is not None:
                load_weights(self._module, source)
            self._module.eval()  # a trainer that shares the model leaves it in training mode
            self._batch.store.clear()

        if self._worker.closed:
            raise EngineError("the local engine was closed")
        self._hand_in()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._worker.run(replace, done)
        await done

    async def close(self) -> None:
        """Ends the worker; live requests fail with EngineError. May be called twice."""
        await asyncio.to_thread(self._worker.stop)


def _dtype(wanted: str | torch.dtype | None) -> torch.dtype | None:
    if wanted is None or isinstance(wanted, torch.dtype):
        return wanted
    found = getattr(torch, wanted, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ModelError(f"{wanted!r} is no type of weights: use float32, bfloat16 or float16")
    return found


def _cached_tokens(forward: object) -> int:
    if not isinstance(forward, CachedForward):
        return 0
    return min(CACHE_TOKENS, CACHE_BYTES // max(1, forward.cache.bytes_per_token()))
