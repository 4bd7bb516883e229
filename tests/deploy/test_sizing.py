"""docs/sizing.md is what the script writes from the measured costs."""

import json

import pytest

from deploy.sizing import COSTS, WORKS, core_hours, main, seconds_per_row

KNOWN = {"catalog.cpu_ms_per_row_of_10": 1.0, "catalog.cpu_ms_per_row_of_20": 2.0}


def test_sizing_page_is_that_of_the_script() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize(("points", "milliseconds"), [(5, 1.0), (10, 1.0), (15, 1.5), (40, 4.0)])
def test_seconds_per_row_follow_the_measured_lengths(points: float, milliseconds: float) -> None:
    assert seconds_per_row(KNOWN, points) == pytest.approx(milliseconds / 1e3)


def test_core_hours_grow_with_rows() -> None:
    costs = json.loads(COSTS.read_text())
    assert core_hours(costs, WORKS[0]) == pytest.approx(17e6 * seconds_per_row(costs, 40) / 0.85 / 3600)
