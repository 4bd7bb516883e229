"""Public clients of the Open Inference Protocol in separate environments: KServe's and MLServer's codecs.

``test_routes_oip`` uses Triton's client, which is in the environment of the tests.
"""

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from support.edge import Live

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SCRIPTS = Path(__file__).parents[2] / "support" / "oip_clients"
MODEL, VERSION = "echo", "0.0.1"


def results(edge: Live, folder: Path, package: str, version: str) -> list[Any]:
    """Install a client, classify light curves with it, and return its output lines."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{package}=={version}"]
    if (installed := subprocess.run(install, capture_output=True, text=True)).returncode:
        pytest.skip(
            f"pip cannot install {package}=={version}, set its index (PIP_INDEX_URL): {installed.stderr[-300:]}"
        )
    script = SCRIPTS / f"with_{package}.py"
    command = [python, "-W", "ignore", str(script), edge.url, MODEL, VERSION]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_mlserver_codecs_encode_and_decode_light_curves(edge: Live, tmp_path: Path) -> None:
    # With and without the version in the path, each with columns of shape [N, 1] and [N].
    expected = [MODEL, [2, 20], ["classified", "classified"]]
    assert results(edge, tmp_path, "mlserver", "1.7.1") == [expected] * 4


def test_kserve_client_classifies_in_json_and_binary(edge: Live, tmp_path: Path) -> None:
    expected = [MODEL, True, True, True, [2, 20], ["classified", "classified"]]
    assert results(edge, tmp_path, "kserve", "0.21.0") == [expected] * 2
