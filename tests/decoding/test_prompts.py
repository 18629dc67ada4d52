"""Prompts: the checkpoint's own first, then the dialect's; the start token exactly once."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from anabranch.checkpoint import CheckpointInfo
from anabranch.decoding import make_setup, render_prompt, run
from anabranch.dialects import dialect_names, get_dialect
from anabranch.engines.simulated import SimulatedEngine
from anabranch.engines.symbols import CharTokenizer
from anabranch.engines.tokenizers import load_tokenizer
from anabranch.engines.virtual_time import run_virtual
from anabranch.errors import DialectError, ModelError, TokenizerError

TEMPLATE = "{{ bos_token }}U:{{ messages[0]['content'] }}A:"
PLAN = "<think><Parallel><Outlines><Subtask>1:a</Subtask><Subtask>2:b</Subtask></Outlines>"
SCRIPT = {"1:": "A</Thread>", "2:": "B</Thread>", "</Parallel>": "</think>c"}


@pytest.fixture
def folder(tmp_path):
    """A model's folder whose tokenizer adds the start token, and whose chat template does too."""
    tags = sorted({t for tag in get_dialect("parason").tags() for t in (tag.open, tag.close)})
    symbols = ["<s>", "</s>", *tags, *map(chr, range(32, 127)), "\n"]
    raw = Tokenizer(WordLevel({symbol: n for n, symbol in enumerate(symbols)}, unk_token="<s>"))
    raw.add_special_tokens(["<s>", "</s>"])
    raw.add_tokens(tags)
    raw.pre_tokenizer = Split("", "isolated")
    raw.decoder = Fuse()
    raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    raw.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_start_token_stands_once_in_every_call(folder):
    # vllm#2012, open-r1#462: the template writes it, and the tokenizer another.
    pytest.importorskip("transformers")
    tokenizer = load_tokenizer(folder)
    script = {"A:": PLAN, **SCRIPT}
    engine = SimulatedEngine(script, tokenizer)
    setup = make_setup("how", engine, dialect="parason:compact", folder=folder)
    assert setup.prompt.startswith("<s>U:how") and setup.prompt.endswith("A:")
    done = run_virtual(run(setup, engine))
    assert done.outcome == "answered" and len(engine.served) == 4
    for served in engine.served:
        assert served.call.ids.count(tokenizer.bos_id) == 1 and served.call.ids[0] == 0


def test_no_start_token_where_the_tokenizer_has_none():
    engine = SimulatedEngine({"{}.": "<think>a</think>c"}, CharTokenizer())
    setup = make_setup("how", engine, dialect="parason:compact")
    assert setup.prompt_ids == tuple(engine.tokenizer.encode(setup.prompt))


def test_the_checkpoint_s_prompt_wins():
    info = CheckpointInfo(dialect="parason", prompts={"parallel": "{problem}{x} go"})
    dialect = get_dialect("parason")
    assert render_prompt("{y}", dialect, info=info) == "{y}{x} go"
    with pytest.raises(ModelError, match="sequential"):
        render_prompt("p", dialect, "sequential", info=info)


@pytest.mark.parametrize("name", dialect_names())
def test_every_dialect_has_a_prompt_with_the_problem_in_it(name):
    dialect = get_dialect(name)
    assert "what is {1}?" in render_prompt("what is {1}?", dialect)
    plain = render_prompt("what is {1}?", dialect, "sequential")
    assert "what is {1}?" in plain and dialect.branch.open not in plain


def test_names_and_tags_are_checked_before_any_call():
    engine = SimulatedEngine({}, CharTokenizer())
    with pytest.raises(DialectError, match="parasol"):
        make_setup("p", engine, dialect="parasol")

    class Letters(CharTokenizer):
        def encode(self, text):
            return super().encode(text.replace("<", ""))

    with pytest.raises(TokenizerError, match="<"):
        make_setup("p", SimulatedEngine({}, Letters()), dialect="parason")
