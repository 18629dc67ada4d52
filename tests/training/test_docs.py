"""The example in the documentation runs, and its table of settings is complete."""

import re
import tomllib
from pathlib import Path

import pytest

from anabranch.training.config import SFTConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tree-training.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block.replace("steps=100", "steps=40"), names)
    assert names["result"].loss < 3.0  # type: ignore[attr-defined]
    assert [r.steps for r in names["results"]] == [40, 40]  # type: ignore[attr-defined]


def test_the_settings_are_all_there_with_their_defaults() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = tomllib.loads(block)
    optional = set(re.findall(r"^# (\w+) =", block, re.MULTILINE))
    defaults = SFTConfig().model_dump()
    assert shown == {name: value for name, value in defaults.items() if name not in optional}
    assert {name for name in optional if defaults[name] is not None} == set()
