"""The output of real processes, compared with what was recorded; ``support.contract`` records it anew."""

import shutil
import sys
from typing import Any

import pytest

pytest.importorskip("onnx", reason="making a bundle of a few nodes needs the [train] extra")

from support.contract.__main__ import PARTS, observed, recorded
from support.contract.exact import exact_differences
from support.contract.masks import differences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=PARTS)  # both comparisons of a part are next to each other
def output(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Run a part once for both comparisons."""
    part: str = request.param
    if part in ("redis", "worker") and shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    return part, *observed(part)


def test_output_of_processes_is_as_recorded(output: tuple[str, dict[str, Any], dict[str, str]]) -> None:
    part, decoded, _ = output
    assert differences(recorded(part), decoded) == []


def test_bytes_of_processes_are_as_recorded(output: tuple[str, dict[str, Any], dict[str, str]]) -> None:
    """Compare every byte that is not masked; on another processor than the recording's, numbers within 1e-5.

    ``support.contract.exact`` has the rule.
    """
    part, _, raw = output
    if part == "commands" and sys.version_info[:2] != (3, 11):
        pytest.skip("the help texts are those of Python 3.11; argparse words and wraps them by its version")
    if lines := exact_differences(part, raw):
        pytest.fail("\n".join(lines), pytrace=False)
