"""What a stage of a curation is: a generator that asks and decides, without any I/O.

It yields questions and gets values; sending them, retries and costs are the runner's. So a stage
is tested by a script of answers, and runs the same in a process pool, on Ray or in a test.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.annotation import Ask
from anabranch.curation.rows import Row


@dataclass(frozen=True, slots=True)
class Keep:
    """The row goes on; ``value`` (plain JSON) is kept under the stage's name."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The row ends here. ``reason`` is one of few words that are counted, ``detail`` is free."""

    reason: str
    detail: str = ""


Work = Generator[Ask[Any], Any, Keep | Drop]


class Stage(Protocol):
    """One stage. ``asks`` says whether it ever yields a question."""

    @property
    def name(self) -> str: ...

    @property
    def asks(self) -> bool: ...

    def settings(self) -> Mapping[str, Any]:
        """Everything that its result depends on, besides the row: part of the run's identity."""
        ...

    def work(self, row: Row) -> Work:
        """Treats one row. :class:`anabranch.annotation.AskFailed` comes out of a ``yield``."""
        ...
