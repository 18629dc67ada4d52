"""An event loop whose clock jumps: whenever all tasks wait, the next timer is due at once.

Everything that asks the loop for the time (`asyncio.sleep`, time-outs, deadlines) then takes no
real time, and the same program takes the same virtual time in every run. For programs without
sockets, subprocesses or threads: the clock does not wait for those.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, moves the loop's clock there."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select(None)  # no timer is set: only the outside can go on
        events = super().select(0)
        if not events and timeout > 0:
            self.loop.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop. ``now`` is its time in seconds since it was made."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
