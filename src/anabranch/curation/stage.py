"""What a stage of a curation is: a generator that asks and decides, without any I/O.

It yields questions and gets values; sending them, retries and costs are the runner's. So a stage
is tested by a script of answers, and runs the same in a process pool, on Ray or in a test.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

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


Result = Keep | Drop
Work = Generator[Ask[Any], Any, Result]


class Stage(BaseModel):
    """One stage; its fields are its settings.

    A subclass gives ``name`` and says in ``asks`` whether it ever yields a question; ``prompt`` is
    what it asks with, part of what its results depend on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    asks: ClassVar[bool] = False
    prompt: ClassVar[str] = ""
    #: Stages whose results it reads; they stand before it, or ran before.
    needs: ClassVar[tuple[str, ...]] = ()

    def settings(self) -> dict[str, Any]:
        """Everything that its result depends on, besides the row: part of the run's identity."""
        return {"prompt": self.prompt, **self.model_dump(mode="json")}

    @abstractmethod
    def work(self, row: Row) -> Work | Result:
        """Treats one row; a stage that asks nothing returns its result at once.

        :class:`anabranch.annotation.AskFailed` comes out of a ``yield``.
        """
