"""Presets and cluster files: they load, say what is published, and accelerate reads its own."""

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from anabranch.config import load_config
from anabranch.dialects import get_dialect
from anabranch.errors import UsageError
from anabranch.training.config import SFTConfig
from anabranch.training.presets import (
    accelerate_file,
    accelerate_names,
    load_preset,
    preset_names,
)


@pytest.mark.parametrize("name", preset_names())
def test_presets_load(name: str) -> None:
    preset = load_preset(name)
    assert get_dialect(preset.dialect).name == preset.dialect
    assert set(preset.published) <= preset.given().keys()
    changed = load_config(SFTConfig, None, ["learning_rate=2e-3"], base=preset.given())
    assert changed.learning_rate == 2e-3
    assert (
        changed.model_copy(update={"learning_rate": preset.settings.learning_rate})
        == preset.settings
    )


def test_the_published_settings_of_threadweaver() -> None:
    found = load_preset("threadweaver-8b").settings
    assert (found.row_tokens, found.learning_rate, found.schedule) == (40960, 1e-5, "cosine")
    assert (found.warmup, found.weight_decay, found.beta1, found.beta2) == (0.05, 1e-4, 0.9, 0.95)
    assert (found.samples_per_batch, found.epochs, found.precision) == (2 * 8, 8.0, "bf16")


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="lab-cpu, parallel-r1-4b"):
        load_preset("threadweaver-80b")
    with pytest.raises(UsageError, match="ddp-8"):
        accelerate_file("ddp-9")


@pytest.mark.parametrize("name", accelerate_names())
def test_accelerate_reads_its_files(name: str) -> None:
    found = load_config_from_file(str(accelerate_file(name)))
    kind, _, size = name.partition("-")
    machines = 4 if size == "4x8" else 1
    assert (found.num_machines, found.num_processes) == (machines, 8 * machines)
    kinds = {"ddp": "MULTI_GPU", "fsdp": "FSDP", "deepspeed": "DEEPSPEED"}
    assert found.distributed_type == kinds[kind]
    assert found.mixed_precision == "no"
    if kind == "fsdp":
        assert found.fsdp_config["fsdp_version"] == 2
    if kind == "deepspeed":
        assert found.deepspeed_config["zero_stage"] == 3
