"""Configuration from TOML and from ``--set``; errors are one line naming the field."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from anabranch.config import load_config
from anabranch.errors import UsageError
from anabranch.training.config import SFTConfig, config_differences


class Outer(BaseModel):
    name: str = ""
    train: SFTConfig = SFTConfig()


def test_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('name = "a"\n[train]\nlearning_rate = 1e-3\nsteps = 5\n')
    config = load_config(Outer, path, ["train.steps=7", "name=b=c", "train.schedule=constant"])
    assert (config.name, config.train.steps, config.train.schedule) == ("b=c", 7, "constant")
    assert config.train.learning_rate == 1e-3
    assert load_config(SFTConfig) == SFTConfig()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["steps=0"], "field 'steps'"),
        (["lerning_rate=1"], "field 'lerning_rate': Extra inputs"),
        (["steps"], "--set takes name=value, not 'steps'"),
        (["=3"], "--set takes name=value"),
        (["steps.x=1", "steps=2"], "field"),
        (["steps=2", "steps.x=1"], "is a value, not a table"),
        (["schedule=exponential"], "field 'schedule'"),
    ],
)
def test_errors_name_the_field(overrides: list[str], message: str) -> None:
    if overrides == ["steps.x=1", "steps=2"]:
        assert load_config(SFTConfig, None, overrides).steps == 2
        return
    with pytest.raises(UsageError, match=message) as caught:
        load_config(SFTConfig, None, overrides)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        load_config(SFTConfig, tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(UsageError, match=r"bad\.toml: not TOML"):
        load_config(SFTConfig, tmp_path / "bad.toml")


def test_differences_leave_out_what_does_not_change_the_result() -> None:
    one = SFTConfig().model_dump()
    other = SFTConfig(seed=2, log_every=3, keep=9, save_every=1).model_dump()
    assert config_differences(one, other) == ["seed: 0 → 2"]


def test_the_page_shows_every_setting_with_its_default():
    page = Path(__file__).resolve().parents[2] / "docs" / "tree-training.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    shown = tomllib.loads(block)
    optional = set(re.findall(r"^# (\w+) =", block, re.MULTILINE))
    defaults = SFTConfig().model_dump()
    assert shown == {name: value for name, value in defaults.items() if name not in optional}
    assert {name for name in optional if defaults[name] is not None} == set()
