"""Hugging Face tokenizers over the `tokenizers` library alone: no torch, no transformers.

Ids and text both ways without anything added or dropped, the ids that start and end a text, the
check that a dialect's tags survive, and a prompt's start token. Decoding id by id is in
:mod:`anabranch.engines.detokenizer`; training a vocabulary is not here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from anabranch.engines.base import Tokenizer
from anabranch.engines.detokenizer import Pieces, StreamDecoder, pieces_of
from anabranch.errors import TokenizerError

__all__ = [
    "HFTokenizer",
    "StreamDecoder",
    "check_tags",
    "load_tokenizer",
    "render_chat",
    "single_tokens",
]


class HFTokenizer:
    """A `tokenizers.Tokenizer` as :class:`anabranch.engines.base.Tokenizer`.

    Encoding adds no special token and never truncates; decoding keeps special tokens, so a tag
    that is one survives.

    Args:
        raw: the tokenizer; truncation and padding are switched off in it.
        eos_ids: ids that end an output.
        bos_id: the start token, if the vocabulary has one.
        adds_bos: whether a plain prompt starts with it by the tokenizer's own habit.
        name: for messages.
    """

    def __init__(
        self,
        raw: Any,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        adds_bos: bool = False,
        name: str = "tokenizer",
    ) -> None:
        raw.no_truncation()
        raw.no_padding()
        self.raw, self.name = raw, name
        self._eos_ids, self._bos_id = frozenset(eos_ids), bos_id
        self.adds_bos = adds_bos and bos_id is not None

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` alone. Lone surrogates, which no vocabulary has, become U+FFFD."""
        try:
            ids: list[int] = self.raw.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # how the library refuses a lone surrogate
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self.raw.encode(repaired, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens included; ids outside the vocabulary have none."""
        text: str = self.raw.decode(list(ids), skip_special_tokens=False)
        return text

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    def __len__(self) -> int:
        """Size of the vocabulary, added tokens included."""
        size: int = self.raw.get_vocab_size(with_added_tokens=True)
        return size

    def encode_prompt(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Ids of a complete rendered prompt, with the start token exactly once where wanted.

        A chat template may have written the start token already; then none is added, and one too
        many is taken away.

        Args:
            text: the prompt.
            add_bos: True: start with the start token; False: leave the text as it is; None: do
                as the tokenizer itself does for a plain text.
        """
        ids, bos = self.encode(text), self._bos_id
        if bos is None or add_bos is False:
            return ids
        while len(ids) > 1 and ids[0] == ids[1] == bos:
            del ids[0]
        if (add_bos or self.adds_bos) and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    @cached_property
    def pieces(self) -> Pieces | None:
        """How to decode id by id without neighbours, None if this tokenizer cannot."""
        decoder = json.loads(self.raw.to_str())["decoder"]
        return pieces_of(decoder, self.raw.id_to_token, self.decode, len(self))


def load_tokenizer(path: str | Path) -> HFTokenizer:
    """Reads a tokenizer from a model folder or from a `tokenizer.json`.

    The end tokens are those named by `generation_config.json` and by the tokenizer's own config
    together; the start token is the tokenizer's own.

    Raises:
        TokenizerError: a file is missing or cannot be read; the message names it.
    """
    place = Path(path)
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        raise TokenizerError(_missing(file))
    try:
        from tokenizers import Tokenizer as RawTokenizer
    except ModuleNotFoundError:
        raise TokenizerError(
            "the tokenizers library is missing: install anabranch[local]"
        ) from None
    try:
        raw = RawTokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every malformed file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TokenizerError(f"{file}: not a tokenizer file: {reason}") from None
    own = {**_json(file.with_name("special_tokens_map.json")), **_own_config(file)}
    eos = _symbol_ids(raw, own.get("eos_token"))
    generation = _json(file.with_name("generation_config.json"))
    eos |= _id_set(generation.get("eos_token_id"))
    if not eos:
        eos = _id_set(_json(file.with_name("config.json")).get("eos_token_id"))
    bos = next(iter(_symbol_ids(raw, own.get("bos_token"))), None)
    habit = own.get("add_bos_token")
    adds = habit if isinstance(habit, bool) else raw.encode("").ids[:1] == [bos]
    return HFTokenizer(raw, eos_ids=eos, bos_id=bos, adds_bos=adds, name=str(place))


def _missing(file: Path) -> str:
    old = [name for name in ("tokenizer.model", "vocab.json") if file.with_name(name).is_file()]
    if old:
        return (
            f"{file} is missing, only {old[0]} is there: write it with "
            f"transformers.AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    return f"{file} is missing: a tokenizer is needed; copy it next to the model or name another"


def _own_config(file: Path) -> dict[str, Any]:
    config = _json(file.with_name("tokenizer_config.json"))
    return {key: value for key, value in config.items() if value is not None or key == "bos_token"}


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{file}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{file}: a JSON object is expected")
    return content


def _symbol_ids(raw: Any, token: object) -> set[int]:
    """The id of a special token, given as text or as an added-token object; empty if unknown."""
    content = token.get("content") if isinstance(token, Mapping) else token
    number = raw.token_to_id(content) if isinstance(content, str) else None
    return set() if number is None else {number}


def _id_set(value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {number for number in values if isinstance(number, int)}


def check_tags(tokenizer: Tokenizer, tags: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Makes sure that every tag survives encoding and decoding; to be called at start-up.

    Returns:
        the ids of each tag.

    Raises:
        TokenizerError: names the first tag that does not come back, and what came instead.
    """
    known = {}
    for tag in tags:
        ids = tokenizer.encode(tag)
        back = tokenizer.decode(ids)
        if back != tag:
            name = getattr(tokenizer, "name", "the tokenizer")
            raise TokenizerError(
                f"{name} cannot represent the tag {tag!r}: decoding gives {back!r}; "
                "use another dialect or add the tag to the vocabulary"
            )
        known[tag] = tuple(ids)
    return known


def single_tokens(tokenizer: Tokenizer, tags: Iterable[str]) -> dict[str, bool]:
    """Whether each tag is one token (a model then cannot write half of it)."""
    return {tag: len(tokenizer.encode(tag)) == 1 for tag in tags}


def render_chat(
    path: str | Path, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool = True
) -> str:
    """The prompt text of a conversation by the chat template of a model folder.

    The template may write the start token itself: encode the result with
    :meth:`HFTokenizer.encode_prompt`.

    Raises:
        TokenizerError: transformers is not installed, or the model has no chat template.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        raise TokenizerError("chat templates need transformers: install anabranch[local]") from None
    try:
        loaded = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        text: str = loaded.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation_prompt
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TokenizerError(f"{path}: no prompt from its chat template: {reason}") from None
    return text
