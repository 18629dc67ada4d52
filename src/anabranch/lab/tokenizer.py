"""The lab's tokenizer: about 150 symbols, one token each, in the ordinary Hugging Face form.

It is built from data alone (no training, no files), saved as `tokenizer.json` with its config, and
then loads with `AutoTokenizer` like any other. Tags are ordinary vocabulary, so decoding keeps
them; only padding, start, end and unknown are special. Nothing is added when encoding: prompts
carry their own `<bos>`. Decoding joins symbols without spaces, so lab texts round-trip.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from anabranch.lab.structure import BOS, CANCELLED, EOS, FAILED, MARKERS

PAD = "<pad>"
UNKNOWN = "<unk>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN)
TAGS = (
    "think",
    "Think",
    "Parallel",
    "Outlines",
    "Outline",
    "Subtask",
    "Trial",
    "Thread",
    "Path",
    "Summary",
    "Goal",
    "Conclusion",
    "guideline",
    "plan",
    "step",
    "takeaway",
)
CONTEXT_LENGTH = 1024

_SYMBOLS = "}0123456789abcdefghijklmnopqxyABCDEFGHIJKLMNOPQRSTUVWXYZ+-*/=:;?!,.()[] \n"


def vocabulary() -> list[str]:
    """All symbols in the order of their ids."""
    tags = [form for tag in TAGS for form in (f"<{tag}>", f"</{tag}>")]
    operations = [f"({operator}{operand})" for operator in "+-*" for operand in range(10)]
    words = ["\\boxed{", "Final Answer: ", *MARKERS.values(), CANCELLED, FAILED]
    return [*SPECIAL, *tags, *words, *operations, *_SYMBOLS]


def description() -> dict[str, Any]:
    """The content of `tokenizer.json`."""
    symbols = vocabulary()
    # Longest first: a marker such as `[seq]` must win over its first bracket.
    by_length = sorted(symbols[len(SPECIAL) :], key=len, reverse=True)
    special = [
        {
            "id": number,
            "content": symbol,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, symbol in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "|".join(_escape(symbol) for symbol in by_length) + r"|[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {symbol: number for number, symbol in enumerate(symbols)},
            "unk_token": UNKNOWN,
        },
    }


def _escape(symbol: str) -> str:
    # re.escape also escapes the space, which the tokenizer's regular expressions do not know.
    return re.escape(symbol).replace("\\ ", " ").replace("\\\n", "\\n")


def config() -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_LENGTH,
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }


def save_tokenizer(folder: Path) -> None:
    """Writes the two files of the tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", description()), ("tokenizer_config.json", config())):
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")
