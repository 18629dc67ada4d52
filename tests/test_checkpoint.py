"""What a checkpoint says of itself, and what is said when it says nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.checkpoint import (
    CheckpointInfo,
    load_checkpoint_info,
    missing_files,
    require_checkpoint,
    save_checkpoint_info,
)
from anabranch.errors import ModelError

INFO = CheckpointInfo(
    dialect="parason",
    tags={"<Thread>": (7,)},
    prompts={"parallel": "<bos>{problem}[par]", "sequential": "{x}{problem}"},
    training={"learning_rate": 1e-3},
)


def test_round_trip_keeps_unknown_fields(tmp_path: Path) -> None:
    path = save_checkpoint_info(INFO, tmp_path)
    assert load_checkpoint_info(tmp_path) == INFO
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": [1]}))
    assert load_checkpoint_info(tmp_path).model_extra == {"later": [1]}


def test_prompts_keep_braces() -> None:
    assert INFO.prompt(r"\frac{1}{2}") == r"<bos>\frac{1}{2}[par]"
    assert INFO.prompt("p", "sequential") == "{x}p"
    with pytest.raises(ModelError, match=r"'mixed' .known: parallel, sequential."):
        INFO.prompt("p", "mixed")


def test_differences_are_listed_by_field() -> None:
    """Restates zhengkid/Parallel-R1#11: another prompt, and no parallel tags are seen."""
    other = INFO.model_copy(
        update={"thinking": True, "prompts": {**INFO.prompts, "parallel": "{problem}"}}
    )
    assert INFO.differences(other) == [
        "thinking: False against True",
        "prompts.parallel: '<bos>{problem}[par]' against '{problem}'",
    ]
    assert INFO.differences(INFO) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no anabranch.json, so its dialect and prompt are unknown"),
        ("{", "cannot be read"),
        ("{}", "field 'dialect'"),
        ('{"dialect": "x", "schema_version": 99}', "newer than 1: update anabranch"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "anabranch.json").write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint_info(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such checkpoint directory"):
        require_checkpoint(tmp_path / "none")
    with pytest.raises(
        ModelError, match=r"config\.json, tokenizer\.json, model\.safetensors missing"
    ):
        require_checkpoint(tmp_path)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_files(tmp_path) == ["model-00001-of-00002.safetensors"]
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    require_checkpoint(tmp_path)


def test_reading_needs_no_torch() -> None:
    code = "import sys, anabranch.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
