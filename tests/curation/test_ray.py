"""Ray Data gives the same lines as the runner, where it is installed."""

import pytest

from anabranch.curation.ray_runner import treat_on_ray
from anabranch.curation.stages import make_stages
from anabranch.curation.treating import treat_lines
from anabranch.errors import UsageError
from anabranch.lab.teacher import KINDS, trace_rows


def test_stages_that_ask_are_refused() -> None:
    with pytest.raises(UsageError, match="steps asks a model"):
        list(treat_on_ray([], make_stages(["steps"])))


def test_the_same_lines_as_without_ray() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")
    rows = [
        {**row, "text": f"{n} {row['text']}"} for n, row in enumerate(trace_rows(1, KINDS, 200))
    ]
    stages = make_stages(["check"], {"check": {"survived": 0}})
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        assert list(treat_on_ray(rows, stages)) == [line for line, _ in treat_lines(rows, stages)]
    finally:
        ray.shutdown()
