"""Tokenizer files, ids and text both ways, decoding id by id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from anabranch.engines.detokenizer import StreamDecoder
from anabranch.engines.tokenizers import (
    HFTokenizer,
    check_tags,
    load_tokenizer,
    render_chat,
    single_tokens,
)
from anabranch.errors import TokenizerError
from anabranch.lab.tokenizer import save_tokenizer

TAGS = ("<Parallel>", "</Parallel>", "</Outlines>", "<Thread>")
CORPUS = ["hello world, she fills it", "let a<b and </Outer> 1+2=3", "naïve 漢字 🙂🙂"] * 4


def byte_level(special: Sequence[str] = (), plain: Sequence[str] = ()) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", *special],
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return raw


def byte_fallback(margin: bool = True) -> Tokenizer:
    letters = ["▁", *"abcdehlorstw<>/,", "▁he", "ll", "▁wor", "ld", "▁▁"]
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab = {symbol: number for number, symbol in enumerate(symbols)}
    merges = [("l", "l"), ("▁", "▁")]
    raw = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if margin else steps)
    tail = [decoders.Strip(" ", 1, 0)] if margin else []
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    return raw


def words(decoder: Any = None) -> Tokenizer:
    vocab = {
        word: number for number, word in enumerate(["<unk>", "a", "b", "##c", "▁d", "▁", "'s"])
    }
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        raw.decoder = decoder
    return raw


@cache
def tokenizer(kind: str) -> HFTokenizer:
    makers = {
        "byte_level": lambda: byte_level(special=TAGS[:2], plain=TAGS[2:]),
        "byte_fallback": byte_fallback,
        "byte_fallback_no_margin": lambda: byte_fallback(margin=False),
        "joined_by_spaces": words,
        "wordpiece": lambda: words(decoders.WordPiece()),
        "metaspace": lambda: words(decoders.Metaspace()),
    }
    return HFTokenizer(makers[kind](), name=kind)


EXACT = ("byte_level", "byte_fallback", "byte_fallback_no_margin")
WINDOWED = ("joined_by_spaces", "wordpiece", "metaspace")


def streamed(known: HFTokenizer, ids: Sequence[int]) -> str:
    stream = StreamDecoder(known)
    return "".join([stream.push([token]) for token in ids] + [stream.close()])


@pytest.mark.parametrize("kind", EXACT)
def test_decoding_without_neighbours_is_recognised(kind: str) -> None:
    assert tokenizer(kind).pieces is not None


@pytest.mark.parametrize("kind", WINDOWED)
def test_decoding_with_neighbours_is_recognised(kind: str) -> None:
    assert tokenizer(kind).pieces is None


@pytest.mark.parametrize("kind", EXACT)
@given(data=st.data())
def test_pieces_concatenate_to_the_decoded_text(kind: str, data: st.DataObject) -> None:
    known = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, len(known) + 2), max_size=60))
    assert streamed(known, ids) == known.decode(ids)
    stream = StreamDecoder(known)
    half = data.draw(st.integers(0, len(ids)))
    assert stream.push(ids[:half]) + stream.push(ids[half:]) + stream.close() == known.decode(ids)


@pytest.mark.parametrize("kind", WINDOWED)
@given(ids=st.lists(st.integers(0, 6), max_size=40))
def test_neighbours_are_respected(kind: str, ids: list[int]) -> None:
    known = tokenizer(kind)
    assert streamed(known, ids) == known.decode(ids)


@given(text=st.text())
def test_text_survives_a_byte_level_vocabulary(text: str) -> None:
    known = tokenizer("byte_level")
    repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert known.decode(known.encode(text)) == repaired
    assert streamed(known, known.encode(text)) == repaired


def test_lone_surrogates_become_replacement_characters() -> None:
    known = tokenizer("byte_level")
    assert known.decode(known.encode("a\udc81b\ud83c\udf78")) == "a\ufffdb🍸"


def test_a_cut_character_is_held_back() -> None:
    known = tokenizer("byte_level")
    ids = known.encode("é")
    assert len(ids) == 2
    stream = StreamDecoder(known)
    assert [stream.push(ids[:1]), stream.push(ids[1:]), stream.close()] == ["", "é", ""]
    cut = StreamDecoder(known)
    assert [cut.push(ids[:1]), cut.close()] == ["", "\ufffd"]


def test_any_tokenizer_of_the_protocol_can_be_streamed() -> None:
    class Plain:
        eos_ids: frozenset[int] = frozenset()
        bos_id = None

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: Sequence[int]) -> str:
            return bytes(ids).decode("utf-8", "replace")

    stream = StreamDecoder(Plain())
    assert [stream.push([byte]) for byte in "aé".encode()] == ["a", "", "é"]


def test_tags_that_are_special_tokens_survive() -> None:
    """Restates vllm#2123: a special tag must not vanish in decoding."""
    known = tokenizer("byte_level")
    assert check_tags(known, TAGS).keys() == set(TAGS)
    assert all(single_tokens(known, TAGS).values())
    assert known.decode(known.encode("x<Parallel>y</Outlines>")) == "x<Parallel>y</Outlines>"


def test_tags_that_are_plain_text_survive() -> None:
    known = HFTokenizer(byte_level())
    assert [len(ids) > 1 for ids in check_tags(known, TAGS).values()] == [True] * 4
    assert not any(single_tokens(known, TAGS).values())


def test_a_tag_that_does_not_survive_is_named() -> None:
    known = tokenizer("joined_by_spaces")
    with pytest.raises(TokenizerError, match=r"joined_by_spaces cannot represent the tag 'a<b>'"):
        check_tags(known, ["a", "a<b>"])


def write(folder: Path, raw: Tokenizer, **configs: dict[str, Any]) -> Path:
    raw.save(str(folder / "tokenizer.json"))
    for name, content in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_end_tokens_of_both_configs_count(tmp_path: Path) -> None:
    raw = byte_level(special=("<end>", "<turn>"))
    turn, end = raw.token_to_id("<turn>"), raw.token_to_id("<end>")
    write(
        tmp_path,
        raw,
        tokenizer_config={"eos_token": {"content": "<turn>"}, "bos_token": None},
        special_tokens_map={"eos_token": "<s>", "bos_token": "<s>"},
        generation_config={"eos_token_id": [end]},
        config={"eos_token_id": 7},
    )
    known = load_tokenizer(tmp_path)
    assert known.eos_ids == {turn, end}
    assert known.bos_id is None
    assert load_tokenizer(tmp_path / "tokenizer.json").eos_ids == {turn, end}


def test_start_token_exactly_once(tmp_path: Path) -> None:
    """Restates vllm#2012 and open-r1#462: no double start token, none where none belongs."""
    raw = byte_level()
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    known = load_tokenizer(write(tmp_path, raw, tokenizer_config={"bos_token": "<s>"}))
    bos = known.bos_id
    hello = known.encode("hello")
    assert bos is not None
    assert bos not in hello
    for text in ("hello", "<s>hello", "<s><s>hello"):
        assert known.encode_prompt(text) == [bos, *hello]
        assert known.encode_prompt(text, add_bos=True) == [bos, *hello]
    assert known.encode_prompt("hello", add_bos=False) == hello
    assert known.encode_prompt("<s>hello", add_bos=False) == [bos, *hello]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"bos_token": "<s>"}, False),
        ({"bos_token": "<s>", "add_bos_token": True}, True),
        ({"bos_token": "<s>", "add_bos_token": False}, False),
        ({"bos_token": None, "add_bos_token": True}, False),
        ({}, False),
    ],
)
def test_start_token_by_habit(tmp_path: Path, config: dict[str, Any], expected: bool) -> None:
    known = load_tokenizer(write(tmp_path, byte_level(), tokenizer_config=config))
    assert known.adds_bos is expected
    assert len(known.encode_prompt("hello")) - len(known.encode("hello")) == int(expected)


def test_truncation_in_the_file_is_ignored(tmp_path: Path) -> None:
    raw = byte_level()
    raw.enable_truncation(3)
    raw.enable_padding(length=9)
    known = load_tokenizer(write(tmp_path, raw))
    assert known.decode(known.encode("hello world, she fills it")) == "hello world, she fills it"


def test_the_lab_tokenizer_streams_symbol_by_symbol(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    known = load_tokenizer(tmp_path)
    text = "<think>1+2=3\n<Parallel><Thread>4</Thread>"
    assert known.pieces is not None
    assert streamed(known, known.encode(text)) == text
    assert all(single_tokens(known, ["<Parallel>", "</Thread>"]).values())


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"only tokenizer\.model is there"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer file") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    write(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: not JSON"):
        load_tokenizer(tmp_path)


def test_chat_prompt(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "chat_template": template,
        "add_bos_token": True,
    }
    write(tmp_path, byte_level(), tokenizer_config=config)
    text = render_chat(tmp_path, [{"role": "user", "content": "hello"}])
    assert text == "<s>[user]hello[assistant]"
    ids = load_tokenizer(tmp_path).encode_prompt(text)
    assert ids.count(0) == 1


def test_chat_prompt_without_a_template(tmp_path: Path) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    write(tmp_path, byte_level(), tokenizer_config=config)
    with pytest.raises(TokenizerError, match="no prompt from its chat template"):
        render_chat(tmp_path, [{"role": "user", "content": "hello"}])


def test_importing_the_engines_imports_no_torch() -> None:
    code = (
        "import sys, anabranch.engines, anabranch.engines.tokenizers, anabranch.engines.stops;"
        "print([name for name in ('torch', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
