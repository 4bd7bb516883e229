"""The way from data to a bundle gives the recorded numbers, to the last digit where they were recorded.

Stages that export a network with all statistics take a minute each and run at night.
"""

from pathlib import Path

import pytest

from support.referee import STAGES, differences, environment, recorded, run_stage

pytestmark = pytest.mark.slow

AT_NIGHT = {"simulated", "surveys", "ztf_types", "adapted"}


@pytest.mark.parametrize(
    "stage", [pytest.param(one, marks=[pytest.mark.nightly] if one in AT_NIGHT else []) for one in STAGES]
)
def test_stage_gives_the_recorded_numbers(stage: str, tmp_path: Path) -> None:
    made_in, expected = recorded(stage)
    assert differences(expected, run_stage(stage, tmp_path), exact=made_in == environment()) == []
