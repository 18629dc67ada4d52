"""The in-process engine: any causal language model that transformers loads, in one thread.

The asyncio face of :mod:`anabranch.engines.local_batch`: calls go to a worker thread that runs the
step loop, chunks come back to the event loop of whoever called. Loading is in
:mod:`anabranch.engines.local_load`, the choice of forward in :mod:`anabranch.engines.local_audit`.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch.engines.base import Call, Capabilities, Chunk, Tokenizer
from anabranch.engines.local_audit import choose_forward
from anabranch.engines.local_batch import Batch, Job, Statistics
from anabranch.engines.local_forward import CachedForward
from anabranch.engines.local_load import (
    check_files,
    default_threads,
    end_ids,
    load_model,
    load_tokenizer_of,
    load_weights,
    window_of,
)
from anabranch.errors import AnabranchError, ContextWindowError, EngineError, ModelError

#: Kept sequences by default: at most so many bytes and tokens.
CACHE_BYTES = 1 << 30
CACHE_TOKENS = 1 << 16
#: Output is handed to the event loop at most every so many seconds, unless a request has ended.
HAND_OVER = 0.004


class _Stream:
    """What one caller waits on; touched only in its event loop."""

    __slots__ = ("_chunks", "_waiter", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._chunks: deque[Chunk | BaseException] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Chunk | BaseException) -> None:
        self._chunks.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Chunk:
        while not self._chunks:
            self._waiter = self.loop.create_future()
            await self._waiter
        item = self._chunks.popleft()
        if isinstance(item, BaseException):
            raise item
        return item


def _put_all(items: list[tuple[_Stream, Chunk | BaseException]]) -> None:
    for stream, item in items:
        stream.put(item)


class _Worker:
    """The thread that owns the model. Everything it is told goes through its inbox."""

    def __init__(self, batch: Batch, threads: int) -> None:
        self.batch, self._threads = batch, threads
        self._inbox: deque[tuple[Job, _Stream]] = deque()
        self._tasks: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._streams: dict[Job, _Stream] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, pairs: list[tuple[Job, _Stream]]) -> None:
        """Queues requests that were made together, so that they start in one step."""
        self._inbox.extend(pairs)
        self._start()
        self._wake.set()

    def run(self, task: Callable[[], None], done: asyncio.Future[None]) -> None:
        """Runs something between two steps, once no request is live."""
        self._tasks.append((task, done))
        self._start()
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread after the step it is in; waits for that."""
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def closed(self) -> bool:
        return self._closing

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop, name="anabranch-local", daemon=True
                )
                self._thread.start()

    def _loop(self) -> None:
        torch.set_num_threads(self._threads)
        last = 0.0
        while not self._closing:
            self._receive()
            if self.batch.idle:
                self._run_tasks()
                if not self._inbox:
                    self._wake.wait()
                self._wake.clear()
                continue
            try:
                with torch.inference_mode():
                    self.batch.step()
            except Exception as error:  # whatever broke the step, every caller must hear of it
                self._fail(f"the local engine failed: {type(error).__name__}: {error}")
                continue
            now = time.monotonic()
            if now - last >= HAND_OVER or any(job.done for job in self._streams):
                self._hand_over()
                last = now
        self._fail("the local engine was closed")

    def _receive(self) -> None:
        while self._inbox:
            job, stream = self._inbox.popleft()
            self._streams[job] = stream
            self.batch.add(job)

    def _run_tasks(self) -> None:
        # Requests made before a task come first, so a filled inbox goes back to the step loop.
        while self._tasks and not self._inbox:
            task, done = self._tasks.popleft()
            try:
                task()
            except AnabranchError as error:
                self._tell(done.get_loop(), _settle, done, error)
            else:
                self._tell(done.get_loop(), _settle, done, None)

    def _hand_over(self) -> None:
        """Sends all new output, one call per event loop."""
        outgoing: dict[Any, list[tuple[_Stream, Chunk | BaseException]]] = {}
        for job, stream in list(self._streams.items()):
            item: Chunk | BaseException | None = job.failure
            if item is None and job.has_output:
                item = job.fetch()
            if item is not None and not job.cancelled:
                outgoing.setdefault(stream.loop, []).append((stream, item))
            if job.done:
                del self._streams[job]
        for loop, items in outgoing.items():
            self._tell(loop, _put_all, items)

    def _fail(self, message: str) -> None:
        self._receive()
        for job in self.batch.reset():
            job.failure = EngineError(message)
        self._hand_over()
        if self._closing:
            while self._tasks:
                done = self._tasks.popleft()[1]
                self._tell(done.get_loop(), _settle, done, EngineError(message))

    def _tell(self, loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # that event loop is closed: nobody is waiting any more
            for job, stream in self._streams.items():
                if stream.loop is loop:
                    job.cancelled = True


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class LocalEngine:
    """A model in this process behind :class:`anabranch.engines.base.Engine`.

    Of each output: the end token is among the ids with empty text, so that training sees it;
    log-probs are those of the raw logits at temperature 1, before any cut. A token depends on its
    request's logits and seed alone; logits of one request in batches of different make-up may
    differ in the last bits, as floating point does.

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
            notes=(finding.note,) if finding.note else (),
        )
        kept = _cached_tokens(finding.forward) if max_cached_tokens is None else max_cached_tokens
        self._batch = Batch(finding.forward, max_batch, kept)
        self._worker = _Worker(self._batch, threads or default_threads(self._module))
        self._fresh: list[tuple[Job, _Stream]] = []
        weakref.finalize(self, self._worker.stop)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def statistics(self) -> Statistics:
        """Counts since the start; updated by the worker thread."""
        return self._batch.statistics

    async def generate(self, call: Call) -> AsyncIterator[Chunk]:
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
        job = Job(call, self.tokenizer, self._eos_ids)
        stream = _Stream(asyncio.get_running_loop())
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
        window = self._capabilities.window
        if window is not None and len(call.ids) + max(call.max_tokens, 0) > window:
            raise ContextWindowError(
                f"prompt ({len(call.ids)}) and max_tokens ({call.max_tokens}) exceed the model's "
                f"window of {window} tokens",
                window=window,
                prompt_tokens=len(call.ids),
            )

    def _submit(self, job: Job, stream: _Stream) -> None:
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
                weights were changed in place.

        Raises:
            ModelError: the weights do not fit; the old ones stay.
        """

        def replace() -> None:
            if source is not None:
                load_weights(self._module, source)
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
