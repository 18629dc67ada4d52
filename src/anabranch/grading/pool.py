"""Killable worker processes for pairs that need algebra.

One thread a worker: it hands over a pair, waits until the deadline, kills the process when it
passes, and starts a new one. Works from any thread and from an event loop (futures), forks nothing,
and imports no main module, so it is safe beside torch and threads. Pairs that look dear (towers of
powers, huge factorials, long texts) never occupy the last worker, so the others go on. What is
compared is the matter of :mod:`anabranch.grading.worker`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.grading.rules import Rules

_DEAR = re.compile(
    r"\^\s*(?:\{[^{}]{0,12}|\w{1,6}\s*)\^|\^\s*\{?\s*\d{3,}|\^\s*\\left|\d{3,}\s*!|!!|\\(?:sum|prod|int)"
)
_LONG = 400
_START_SECONDS = 60.0
_MAX_STARTS = 3


class PoolError(AnabranchError):
    """The workers cannot be started at all."""


@dataclass
class Answer:
    """What a worker said: ``correct``, ``wrong``, ``unreadable``, ``timeout`` or ``error``."""

    status: str
    reason: str
    seconds: float = 0.0


@dataclass
class _Task:
    line: bytes
    dear: bool
    future: Future[Answer] = field(default_factory=Future)


class WorkerPool:
    """A fixed number of workers, started when the first pair comes.

    Args:
        size: how many processes.
        timeout: seconds for one pair, from when a worker that is ready gets it.
        memory: bytes that a worker may allocate on top of what its imports take.
    """

    def __init__(self, size: int = 2, timeout: float = 5.0, memory: int = 192 << 20) -> None:
        self.size, self.timeout, self.memory = size, timeout, memory
        self.pid = os.getpid()
        self.killed = 0
        self._light: deque[_Task] = deque()
        self._dear: deque[_Task] = deque()
        self._dear_running = 0
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._workers: list[_Worker] = []
        _open_pools.add(self)

    def submit(self, gold: str, answer: str, rules: Rules) -> Future[Answer]:
        """Compare a pair; the future is always resolved, with an exception only on a start-up
        failure."""
        task = {"gold": gold, "answer": answer, "rules": rules.to_json(), "timeout": self.timeout}
        line = json.dumps(task).encode("ascii") + b"\n"
        dear = len(gold) + len(answer) > _LONG or bool(_DEAR.search(gold + " " + answer))
        entry = _Task(line, dear)
        with self._changed:
            if self._closed:
                raise PoolError("the grader is closed")
            (self._dear if dear else self._light).append(entry)
            if len(self._threads) < self.size:
                self._grow()
            self._changed.notify()
        return entry.future

    def warm_up(self) -> None:
        """Start all workers now, and wait until they are ready."""
        with self._changed:
            while len(self._threads) < self.size:
                self._grow()
            workers = list(self._workers)
        for worker in workers:
            worker.ready.wait(_START_SECONDS)

    def pids(self) -> list[int]:
        """The processes that live now."""
        return [w.process.pid for w in self._workers if w.process and w.process.poll() is None]

    def close(self) -> None:
        """End all workers; pairs that wait are answered with ``error``. May be called again."""
        with self._changed:
            self._closed = True
            waiting = [*self._light, *self._dear]
            self._light.clear()
            self._dear.clear()
            self._changed.notify_all()
        for task in waiting:
            task.future.set_result(Answer("error", "the grader was closed"))
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)
        _open_pools.discard(self)

    def _grow(self) -> None:
        worker = _Worker(self.memory)
        thread = threading.Thread(
            target=self._run, args=(worker,), name="anabranch-grader", daemon=True
        )
        self._workers.append(worker)
        self._threads.append(thread)
        thread.start()

    def _run(self, worker: _Worker) -> None:
        try:
            with contextlib.suppress(PoolError):  # said again, to the first pair
                worker.start()
            while (task := self._take()) is not None:
                answer: Answer | PoolError
                try:
                    answer = worker.answer(task.line, self.timeout)
                except PoolError as error:
                    answer = error
                with self._changed:
                    self.killed += isinstance(answer, Answer) and answer.status == "timeout"
                    if task.dear:
                        self._dear_running -= 1
                        self._changed.notify_all()
                if isinstance(answer, PoolError):
                    task.future.set_exception(answer)
                else:
                    task.future.set_result(answer)
        finally:
            worker.stop()

    def _take(self) -> _Task | None:
        """The next pair: one that looks cheap, or a dear one where a worker stays free."""
        with self._changed:
            while not self._closed:
                if self._light:
                    return self._started(self._light)
                if self._dear and self._dear_running < max(1, self.size - 1):
                    task = self._started(self._dear)
                    self._dear_running += task is not None
                    if task is not None:
                        return task
                    continue
                self._changed.wait()
            return None

    @staticmethod
    def _started(queue: deque[_Task]) -> _Task | None:
        task = queue.popleft()
        return task if task.future.set_running_or_notify_cancel() else None


class _Worker:
    """One process, restarted when it was killed. Used by one thread; ``stop`` by any."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._rest = b""

    def start(self) -> None:
        for _ in range(_MAX_STARTS):
            with self._lock:
                if self._stopped:
                    raise PoolError("the grader was closed")
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "anabranch.grading.worker", str(self.memory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    bufsize=0,
                )
            self._rest = b""
            line = self._line(_START_SECONDS)
            if line is not None and line:
                self.ready.set()
                return
            self.kill()
        raise PoolError(
            "the grader's workers cannot be started: is the extra installed? "
            "pip install 'anabranch[math]'"
        )

    def answer(self, line: bytes, timeout: float) -> Answer:
        if self.process is None or self.process.poll() is not None:
            self.kill()
            self.start()
        assert self.process is not None and self.process.stdin is not None
        begin = time.monotonic()
        try:
            self.process.stdin.write(line)
            found = self._line(timeout)
        except (BrokenPipeError, OSError):
            found = b""
        seconds = time.monotonic() - begin
        if found is None:
            self.kill()
            return Answer("timeout", f"no verdict within {timeout:g} s", seconds)
        if not found:
            self.kill()
            return Answer("error", "the worker ended unexpectedly", seconds)
        said = json.loads(found)
        if said["status"] == "resources":
            # Its memory may be full of what it could not finish.
            self.kill()
            return Answer("timeout", f"out of memory or depth ({said['reason']})", seconds)
        return Answer(said["status"], said["reason"], seconds)

    def _line(self, timeout: float) -> bytes | None:
        """The next line; empty when the process ended, None when the time passed."""
        process = self.process
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0:
                return None
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(left * 1000):
                return None
            piece = os.read(descriptor, 65536)
            if not piece:
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def stop(self) -> None:
        """End the process; the thread that waits for it sees its end."""
        with self._lock:
            self._stopped = True
            process = self.process
        if process is not None and process.poll() is None:
            process.kill()
        if process is not None:
            process.wait()
            if not self._in_use():
                self.kill()

    def _in_use(self) -> bool:
        return threading.current_thread().name != "anabranch-grader"


_open_pools: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_open_pools):
        if pool.pid == os.getpid():
            pool.close()
