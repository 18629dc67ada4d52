"""Checkpoints that cannot be used: one line that names the file and what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anabranch.engines.base import Call
from anabranch.engines.local import LocalEngine
from anabranch.engines.local_load import default_threads
from anabranch.errors import ModelError
from anabranch.lab.tokenizer import save_tokenizer, vocabulary


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny model with the lab's tokenizer, as an ordinary folder."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    return tmp_path


async def tokens_of(engine: LocalEngine, size: int) -> list[int]:
    call = Call(ids=(1, 5, 6), stop=(), max_tokens=size)
    return [token async for chunk in engine.generate(call) for token in chunk.ids]


def test_a_folder_is_served_with_its_tokenizer(checkpoint: Path) -> None:
    async def work() -> None:
        engine = LocalEngine(checkpoint, threads=1)
        assert engine._module.dtype == torch.float32
        assert engine.tokenizer.eos_ids == {2}
        assert engine.model == str(checkpoint)
        first = await tokens_of(engine, 8)
        await engine.update_weights(checkpoint)
        assert await tokens_of(engine, 8) == first
        await engine.close()
        other = LocalEngine(checkpoint, threads=1, dtype="bfloat16", device="cpu")
        assert other.capabilities.prefix_cache
        assert len(await tokens_of(other, 8)) > 0
        await other.close()

    asyncio.run(work())


def no_folder(path: Path) -> Path:
    return path / "nowhere"


def no_config(path: Path) -> Path:
    (path / "config.json").unlink()
    return path


def bad_config(path: Path) -> Path:
    (path / "config.json").write_text("{")
    return path


def no_weights(path: Path) -> Path:
    (path / "model.safetensors").unlink()
    return path


def cut_weights(path: Path) -> Path:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    return path


def no_shard(path: Path) -> Path:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def unknown_architecture(path: Path) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "no-such-model"}))
    return path


def no_tokenizer(path: Path) -> Path:
    (path / "tokenizer.json").unlink()
    return path


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_folder, r"nowhere is not a folder"),
        (no_config, r"config\.json is missing"),
        (bad_config, r"config\.json: not JSON"),
        (no_weights, r"model\.safetensors is missing: .* holds no complete model"),
        (cut_weights, r"model\.safetensors is not a readable safetensors file"),
        (no_shard, r"model-00001-of-00002\.safetensors is missing: .* holds no complete model"),
        (unknown_architecture, r"cannot be loaded as a causal language model: .*no-such-model"),
        (no_tokenizer, r"tokenizer\.json is missing"),
    ],
)
def test_one_line_says_what_is_wrong(
    checkpoint: Path, spoil: Callable[[Path], Path], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        LocalEngine(spoil(checkpoint), threads=1)
    assert "\n" not in str(caught.value)


def test_odd_arguments(checkpoint: Path) -> None:
    with pytest.raises(ModelError, match="'int8' is no type of weights"):
        LocalEngine(checkpoint, dtype="int8")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    with pytest.raises(ModelError, match="needs a tokenizer"):
        LocalEngine(model)


def test_a_model_that_gives_no_numbers_is_refused(checkpoint: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.inf)
    model.save_pretrained(checkpoint)
    with pytest.raises(ModelError, match="not finite"):
        LocalEngine(checkpoint)


def test_threads_of_a_small_model(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads(model) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_threads(model) == 3
