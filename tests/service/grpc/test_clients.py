"""Public clients of the Open Inference Protocol over gRPC, unchanged, in separate environments."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_alerts.service.registry.loader import load_one
from support.edge import HOST, live
from support.oip_clients.environment import run_client
from support.repository import version

pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
from support.rpc import grpc_port

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ADMIN_KEY = "correct horse"
PROTOCOL = ["grpcio==1.85.3", "protobuf==6.33.6"]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Address of a service with a model ``mine`` in its repository."""
    version(tmp_path / "bundles", "1.0.0")
    bundle = version(tmp_path / "other", "1.0.0", name="other").path
    keys = (hashlib.sha256(ADMIN_KEY.encode()).hexdigest(),)
    with live(load_one, bundle=bundle, repository=tmp_path / "bundles", grpc_port=0, admin_keys=keys) as edge:
        yield f"{HOST}:{grpc_port(edge)}"


def test_triton_client_classifies_and_changes_models(address: str, tmp_path: Path) -> None:
    requirements = ["tritonclient[grpc]==2.73.0", *PROTOCOL]
    lines = run_client(tmp_path / "venv", "with_tritonclient.py", requirements, address, "mine", ADMIN_KEY)
    classified, described, refused, (state, count), ended = lines
    assert classified == ["mine", True, True, True, [2, 20], ["classified", "classified"]]
    assert described == [True, "mine"]
    assert refused == ["StatusCode.INVALID_ARGUMENT", True]
    assert (state, count >= 2, ended) == ("READY", True, True)


def test_kserve_client_classifies_with_typed_and_raw_tensors(address: str, tmp_path: Path) -> None:
    requirements = ["kserve==0.21.0", *PROTOCOL]
    lines = run_client(tmp_path / "venv", "with_kserve_grpc.py", requirements, address, "mine", ADMIN_KEY)
    assert lines[:2] == [["mine", True, True, True, [2, 20], ["classified", "classified"]]] * 2
    assert lines[2] == ["mine", True, "mine", True]
