"""Public clients of the Open Inference Protocol in separate environments: KServe's and MLServer's codecs.

``test_routes_oip`` uses Triton's client, which is in the environment of the tests.
"""

from pathlib import Path
from typing import Any

import pytest

from support.edge import Live
from support.oip_clients.environment import run_client

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MODEL, VERSION = "echo", "0.0.1"


def results(edge: Live, folder: Path, package: str, version: str) -> list[Any]:
    """Classify light curves with a client, and return its output lines."""
    return run_client(folder, f"with_{package}.py", [f"{package}=={version}"], edge.url, MODEL, VERSION)


def test_mlserver_codecs_encode_and_decode_light_curves(edge: Live, tmp_path: Path) -> None:
    # With and without the version in the path, each with columns of shape [N, 1] and [N].
    expected = [MODEL, [2, 20], ["classified", "classified"]]
    assert results(edge, tmp_path, "mlserver", "1.7.1") == [expected] * 4


def test_kserve_client_classifies_in_json_and_binary(edge: Live, tmp_path: Path) -> None:
    expected = [MODEL, True, True, True, [2, 20], ["classified", "classified"]]
    assert results(edge, tmp_path, "kserve", "0.21.0") == [expected] * 2
