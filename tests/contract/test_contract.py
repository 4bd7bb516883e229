"""The output of real processes, compared with what was recorded; ``support.contract`` records it anew."""

import shutil

import pytest

pytest.importorskip("onnx", reason="making a bundle of a few nodes needs the [train] extra")

from support.contract.__main__ import PARTS, observed, recorded
from support.contract.masks import differences

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", PARTS)
def test_output_of_processes_is_as_recorded(part: str) -> None:
    if part in ("redis", "worker") and shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    assert differences(recorded(part), observed(part)) == []
