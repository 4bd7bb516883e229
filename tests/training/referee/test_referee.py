"""The way from data to a bundle gives the recorded numbers, to the last digit where they were recorded."""

from pathlib import Path

import pytest

from support.referee import STAGES, differences, environment, recorded, run_stage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", STAGES)
def test_stage_gives_the_recorded_numbers(stage: str, tmp_path: Path) -> None:
    made_in, expected = recorded(stage)
    assert differences(expected, run_stage(stage, tmp_path), exact=made_in == environment()) == []
