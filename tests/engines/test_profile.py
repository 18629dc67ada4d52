"""Profiles: the fit finds the model that made the points; a real engine can be measured."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anabranch.engines.local import LocalEngine
from anabranch.engines.profile import (
    BurstPoint,
    PrefillPoint,
    Profile,
    StepPoint,
    load_profile,
    save_profile,
)
from anabranch.engines.profile_fit import fit, least_squares
from anabranch.engines.profile_measure import Plan, measure, numbers
from anabranch.errors import EngineError, RecordError, UsageError
from anabranch.lab.bundled import bundled_model

TRUE = Profile(base=4e-3, sequence=3e-4, context=2e-7, prefill=5e-5, latency=2e-3, serial=1e-3)


def points() -> tuple[Any, Any, Any]:
    cold = [
        PrefillPoint(tokens=n, seconds=(TRUE.latency + TRUE.serial + TRUE.step(1, n, n),))
        for n in (32, 64, 128, 256, 512)
    ]
    steps = [
        StepPoint(batch=b, context=b * c, seconds=(TRUE.step(b, b * c),))
        for b in (1, 2, 4, 8, 16)
        for c in (64, 512)
    ]
    bursts = [
        BurstPoint(
            calls=n, tokens=1, seconds=(TRUE.latency + TRUE.serial * n + TRUE.step(n, 0, n),)
        )
        for n in (1, 2, 4, 8)
    ]
    return cold, steps, bursts


def test_the_fit_finds_the_model_that_made_the_points() -> None:
    found = fit(*points())
    for name in ("base", "sequence", "context", "prefill", "latency", "serial"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02, abs=1e-5), name
    assert all(one.worst_error < 0.02 for one in found.fits.values())
    # A step of one output takes 4.3 ms; of fifteen about twice that.
    assert found.knee in (14, 15)


def test_no_term_is_negative() -> None:
    falling = least_squares([(1.0, n) for n in (1, 2, 3, 4)], [4.0, 3.0, 2.0, 1.0])
    assert min(falling) == 0 and falling[0] > 0
    with pytest.raises(EngineError, match="at least two"):
        fit([], [], [])


def test_the_in_process_engine_is_measured() -> None:
    async def main() -> Profile:
        engine = LocalEngine(bundled_model())
        told: list[tuple[int, int]] = []
        plan = Plan((16, 64), (1, 2), (32, 48), tokens=64, repeats=1)
        try:
            return await measure(engine, plan, lambda done, total: told.append((done, total)))
        finally:
            assert told[-1][0] == told[-1][1] == len(told) == 8
            await engine.close()

    found = asyncio.run(main())
    assert found.base + found.sequence > 0 and found.engine == "local" and found.window
    assert {point.batch for point in found.step_points} <= {1, 2}


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(TRUE, path)
    assert load_profile(path) == TRUE
    for content, message in (("{", "not JSON"), ("{}", "base"), ('{"base": -1}', "base"),
                             ('{"base": 1, "schema_version": 9}', "newer")):  # fmt: skip
        path.write_text(content)
        with pytest.raises(RecordError, match=message):
            load_profile(path)
    with pytest.raises(RecordError, match="No such file"):
        load_profile(tmp_path / "none.json")


def test_lists_of_numbers() -> None:
    assert numbers("4,1,4", "--x") == (1, 4)
    with pytest.raises(UsageError, match="--x 'a'"):
        numbers("a", "--x")


def test_a_window_that_is_too_small() -> None:
    with pytest.raises(UsageError, match="window of 20"):
        Plan().within(20)
