"""Which field of a completions request takes a grammar, found by trying: vLLM's or llama.cpp's.

An unknown field is ignored by most servers, so a grammar that leaves one text only is sent, and
what comes back decides. The grammars of dialects are :mod:`anabranch.dialects.grammar`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.dialects.grammar import Flavour
from anabranch.engines.base import Tokenizer
from anabranch.engines.discovery import ask, encode_body, probe_prompt
from anabranch.engines.failures import StatusError
from anabranch.engines.transport import Transport

#: Two texts that no model writes by itself, so that one being there is the grammar's doing.
_TEXTS = ("7373", "9191")


def grammar_field(flavour: Flavour, text: str) -> dict[str, Any]:
    """The field that carries a grammar in a completions request."""
    if flavour == "gbnf":
        return {"grammar": text}
    return {"structured_outputs": {"grammar": text}}


async def find_grammar_flavour(
    transport: Transport, model: str, tokenizer: Tokenizer, extra: Mapping[str, Any]
) -> Flavour | None:
    """The flavour of grammar that a completions server takes, None if it takes none.

    Raises:
        EngineError: the server fails in another way than by refusing the field.
    """
    prompt = probe_prompt(tokenizer, 64)
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0.0}
    tries: tuple[tuple[Flavour, str], ...] = (("xgrammar", _TEXTS[0]), ("gbnf", _TEXTS[1]))
    for flavour, wanted in tries:
        field = grammar_field(flavour, f'root ::= "{wanted}"')
        try:
            probe = await ask(transport, encode_body({**body, **field, "ignore_eos": False}, extra))
        except StatusError as error:
            if 400 <= error.status < 500 and error.status not in (401, 403, 404, 429):
                continue
            raise
        if probe.text.startswith(wanted):
            return flavour
    return None
