from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from anabranch.dialects import (
    MULTIVERSE,
    NPR,
    PARALLEL_R1,
    PARASON,
    THREADWEAVER,
    dialect_names,
    get_dialect,
    register_dialect,
    registry,
)
from anabranch.errors import DialectError


@pytest.fixture
def clean() -> Iterator[None]:
    before = dict(registry._known)
    yield
    registry._known.clear()
    registry._known.update(before)


def test_built_in_dialects_are_found() -> None:
    assert get_dialect("threadweaver") is THREADWEAVER
    assert get_dialect("parason") is PARASON
    assert get_dialect("parallel-r1") is PARALLEL_R1
    assert get_dialect("multiverse") is MULTIVERSE
    assert get_dialect("npr") is NPR
    names = {"threadweaver", "parason", "parallel-r1", "multiverse", "npr"}
    assert names <= set(dialect_names())


def test_every_dialect_has_a_compact_variant() -> None:
    for name in dialect_names():
        assert get_dialect(f"{name}:compact") == get_dialect(name).compact()
    assert not any(name.endswith(":compact") for name in dialect_names())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(DialectError, match=r"unknown dialect 'apr'.*parallel-r1, .*threadweaver"):
        get_dialect("apr")
    with pytest.raises(DialectError, match="unknown dialect 'apr'"):
        get_dialect("apr:compact")


def test_registering_is_idempotent_and_refuses_a_second_meaning(clean: None) -> None:
    mine = replace(THREADWEAVER, name="mine")
    register_dialect(mine)
    register_dialect(replace(mine))
    assert get_dialect("mine") is mine
    with pytest.raises(DialectError, match="already a different dialect"):
        register_dialect(replace(mine, title="other"))


def test_entry_points_are_loaded_on_demand(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("good", "anabranch.dialects.builtin:PARASON", registry.GROUP),
        EntryPoint("missing", "anabranch_absent.module:X", registry.GROUP),
        EntryPoint("wrong", "anabranch.dialects.builtin:BUILTIN", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert {"good", "missing", "wrong"} <= set(dialect_names())
    assert get_dialect("good") is PARASON
    with pytest.raises(DialectError, match=r"dialect 'missing'.*anabranch_absent"):
        get_dialect("missing")
    with pytest.raises(DialectError, match="is not a Dialect"):
        get_dialect("wrong")
