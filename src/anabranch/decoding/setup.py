"""Everything that decides a trajectory before the first token: one immutable object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from anabranch.decoding.joins import JoinPolicy, WaitForAll
from anabranch.dialects import Dialect
from anabranch.dialects.grammar import Flavour
from anabranch.engines.base import Tokenizer
from anabranch.engines.chat_call import Message
from anabranch.errors import UsageError
from anabranch.records import Limits, Problem, Sampling

#: ``tools`` is for chat engines and has a machine of its own.
Mode = Literal["parallel", "sequential", "constrained", "prompted", "tools"]

#: Modes by the names that a user gives them.
MODES: dict[str, Mode] = {
    "native": "parallel",
    "constrained": "constrained",
    "prompted": "prompted",
    "tools": "tools",
    "sequential": "sequential",
}


def read_mode(name: str) -> Mode:
    """The mode with this name; ``parallel`` is taken for ``native``.

    Raises:
        UsageError: no mode has this name.
    """
    mode = MODES.get("native" if name == "parallel" else name)
    if mode is None:
        raise UsageError(f"unknown mode {name!r}: use {', '.join(MODES)}")
    return mode


@dataclass(frozen=True)
class Setup:
    """Everything that decides a trajectory, besides what the engine returns.

    Attributes:
        prompt, prompt_ids: the rendered prompt and its tokens, BOS included where wanted.
        width: branches per block in a dialect without a plan, fixed or asked for at each fork
            (None: the dialect's default).
        retokenized: the engine gives text only, and ids are the tokenizer's; drift is counted.
        retries: how often a call that failed retryably is sent again.
        grammar: flavour in which every call is constrained to the dialect; None: free. Filled in by
            :func:`anabranch.decoding.run` in the modes that want it.
        min_blocks: blocks of the main line that are forced (by the grammar, or by the choice of the
            tool), as far as limits admit them.
        messages: the conversation that a chat begins with.
        affinity: key under which a fleet keeps the calls of this trajectory together.
    """

    dialect: Dialect
    tokenizer: Tokenizer
    prompt: str
    prompt_ids: tuple[int, ...]
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    policy: JoinPolicy = field(default_factory=WaitForAll)
    mode: Mode = "parallel"
    window: int | None = None
    width: int | Callable[[], int] | None = None
    retries: int = 1
    logprobs: bool = True
    grammar: Flavour | None = None
    min_blocks: int = 0
    messages: tuple[Message, ...] = ()
    retokenized: bool = False
    id: str = ""
    affinity: str = ""
    problem: Problem | None = None
    model: str = ""
    engine: str = ""
    policy_version: str | None = None
