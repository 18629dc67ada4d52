"""SIGTERM and Ctrl-C as a request to stop in order. What stopping means is the run's matter."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stops_on_signal(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set the event; a second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
