"""What an engine is to the decoder: token ids in, a stream of token ids and text out.

Only the protocol and its plain data live here; each engine has a module of its own. Nothing here
knows of dialects: an engine sees a prompt, stop strings and a cap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from anabranch.dialects.grammar import Flavour
from anabranch.errors import EngineError
from anabranch.records import FinishReason


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an engine.

    Attributes:
        ids: the prompt's token ids, complete (the engine adds no BOS).
        stop: strings that end the output; the engine includes the matched string in it.
        max_tokens: cap on sampled tokens; always sent.
        temperature, top_p, top_k: as in :class:`anabranch.records.Sampling`.
        seed: seed of this call alone.
        affinity: calls with one key share a prefix and should meet one cache.
        logprobs: whether the log-prob of each sampled token is wanted.
        grammar: what may be sampled, in the flavour that :attr:`Capabilities.grammar` names; None
            leaves everything open. The output ends where the grammar does, at the latest.
    """

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    affinity: str = ""
    logprobs: bool = True
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output. The last chunk of a stream, and only that, has ``finish``.

    ``ids`` are the new sampled tokens and ``text`` their new text; the concatenated text of a
    stream is the text of the concatenated ids up to and including the stop string. A stop string
    may end inside a token: the text is then cut behind it and the ids are kept whole.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[float, ...] | None = None
    finish: FinishReason | None = None
    stop: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Capabilities:
    """What an engine was found to be able to do.

    ``grammar`` is the flavour of grammar that it constrains calls by, None where it does not or
    was not asked (:func:`find_grammar`).
    """

    ids_in: bool = True
    ids_out: bool = True
    logprobs: bool = True
    include_stop: bool = True
    prefix_cache: bool = False
    window: int | None = None
    grammar: Flavour | None = None
    notes: tuple[str, ...] = field(default=())


class Tokenizer(Protocol):
    """The two directions between text and ids, without any special token added."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def bos_id(self) -> int | None: ...


@runtime_checkable
class Engine(Protocol):
    """A source of tokens. ``generate`` may be called many times at once.

    Leaving the iterator early (``aclose``, or cancelling its task) aborts the request in the
    engine. Errors are :class:`anabranch.errors.EngineError`.
    """

    name: str
    model: str
    tokenizer: Tokenizer

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]: ...

    async def close(self) -> None: ...


async def find_grammar(engine: Engine) -> Flavour | None:
    """The flavour of grammar that an engine takes; a server is asked for it once, on demand."""
    known = engine.capabilities.grammar
    ask = getattr(engine, "find_grammar", None)
    if known is None and ask is not None:
        found: Flavour | None = await ask()
        return found
    return known


def required_grammar(engine: Engine) -> Flavour:
    """The flavour that a call's grammar is in.

    Raises:
        EngineError: the engine takes no grammar, or was not asked whether it does.
    """
    flavour = engine.capabilities.grammar
    if flavour is None:
        raise EngineError(f"{engine.name} takes no grammar, or was not asked: see find_grammar")
    return flavour
