"""The thread that owns an in-process model, and the way of its output into event loops.

Calls come in through an inbox that is read between two steps; output goes out in one
`call_soon_threadsafe` per event loop, and not after every step: each hand-over makes two threads
contend for the interpreter. What a step does is in :mod:`anabranch.engines.local_batch`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from anabranch.engines.base import Chunk
from anabranch.engines.local_batch import Batch
from anabranch.engines.local_job import Job
from anabranch.errors import EngineError

#: Output is handed to the event loop at most every so many seconds, unless a request has ended.
HAND_OVER = 0.02


class Stream:
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


def _put_all(items: list[tuple[Stream, Chunk | BaseException]]) -> None:
    for stream, item in items:
        stream.put(item)


class Worker:
    """The thread that owns the model. Everything it is told goes through its inbox."""

    def __init__(self, batch: Batch, threads: int) -> None:
        self.batch, self._threads = batch, threads
        self._inbox: deque[tuple[Job, Stream]] = deque()
        self._tasks: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._streams: dict[Job, Stream] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, pairs: list[tuple[Job, Stream]]) -> None:
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
            if self.batch.ended or now - last >= HAND_OVER:
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
            except Exception as error:  # the thread lives on, who asked for the task is told
                self._tell(done.get_loop(), _settle, done, error)
            else:
                self._tell(done.get_loop(), _settle, done, None)

    def _hand_over(self) -> None:
        """Sends all new output, one call per event loop."""
        self.batch.ended = False
        outgoing: dict[Any, list[tuple[Stream, Chunk | BaseException]]] = {}
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
