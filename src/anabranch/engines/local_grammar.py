"""Grammars for the in-process engine: xgrammar's matcher over this engine's own vocabulary.

The bytes of each token are those that the engine's tokenizer decodes it to, so what the matcher
lets through is what the caller reads. xgrammar (extra ``grammar``) is imported at the first call
that has a grammar.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from torch import Tensor

from anabranch.engines.base import Tokenizer
from anabranch.errors import EngineError

#: Compiled grammars kept; a trajectory uses one for each phase.
KEPT = 256


class Constrained(Protocol):
    """A row of the batch that may have a matcher."""

    @property
    def matcher(self) -> Any: ...


class Grammars:
    """Compiles grammars and makes matchers.

    Args:
        tokenizer: decodes id by id; see :func:`can_constrain`.
        vocabulary: the model's, padding included.
        eos_ids: what may end a text that the grammar accepts.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos_ids: Collection[int]) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._eos_ids = sorted(eos_ids)
        self._compiler: Any = None
        self._compile = lru_cache(maxsize=KEPT)(self._compiled)

    def matcher(self, grammar: str) -> Any:
        """A fresh matcher.

        Raises:
            EngineError: the grammar is none.
        """
        import xgrammar

        return xgrammar.GrammarMatcher(self._compile(grammar))

    def _compiled(self, grammar: str) -> Any:
        import xgrammar

        if self._compiler is None:
            info = xgrammar.TokenizerInfo(
                _symbols(self._tokenizer, self._vocabulary),
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=self._vocabulary,
                stop_token_ids=self._eos_ids,
            )
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        try:
            return self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(grammar))
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1:] or ["no reason given"]
            raise EngineError(f"the local engine cannot read the grammar: {reason[0]}") from None


def can_constrain(tokenizer: Tokenizer, eos_ids: Collection[int]) -> bool:
    """Whether grammars can be had: xgrammar is installed, and ids have bytes of their own."""
    pieces = getattr(tokenizer, "pieces", None)
    return find_spec("xgrammar") is not None and bool(eos_ids) and isinstance(pieces, dict)


def masked(logits: Tensor, rows: Sequence[Constrained]) -> Tensor:
    """The logits with everything that a row's grammar forbids at minus infinity.

    Args:
        logits: float, [rows, vocabulary]; returned as they are where no row has a grammar.
    """
    bound = [at for at, row in enumerate(rows) if row.matcher is not None]
    if not bound:
        return logits
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(len(rows), logits.shape[-1])
    for at in bound:
        rows[at].matcher.fill_next_token_bitmask(mask, at)
    free = logits.clone()
    xgrammar.apply_token_bitmask_inplace(free, mask.to(free.device), indices=bound)
    return free


def _symbols(tokenizer: Tokenizer, vocabulary: int) -> list[bytes]:
    pieces = tokenizer.pieces  # type: ignore[attr-defined]
    symbols = []
    for token in range(vocabulary):
        piece = pieces[token]
        if isinstance(piece, int):
            piece = bytes([piece])
        symbols.append(piece.encode("utf-8", "replace") if isinstance(piece, str) else piece or b"")
    return symbols
