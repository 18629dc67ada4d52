"""Intervals over few runs, against textbook values."""

import pytest

from anabranch.metrics.intervals import over_seeds, student_t


def test_student_t_by_table_and_by_expansion() -> None:
    for degrees, quantile in ((1, 12.706), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042)):
        assert student_t(degrees) == pytest.approx(quantile, abs=3e-3)


def test_one_run_has_no_interval() -> None:
    assert over_seeds([1.0]) is None
    assert over_seeds([78.0, 82.0]) == pytest.approx(12.7062 * 2)
