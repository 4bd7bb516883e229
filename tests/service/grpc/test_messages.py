"""Compiled messages: they are those of ``oip.proto``, and every error has a status code."""

from pathlib import Path

import pytest

from nightjar_alerts.service.grpc.codes import CODES
from nightjar_alerts.service.http.edge.errors import KINDS

SOURCES = Path(__file__).parents[3] / "service" / "grpc"


def test_messages_are_compiled_from_the_proto(tmp_path: Path) -> None:
    """After a change of ``oip.proto``, copy the two files that differ."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is missing: pip install '.[dev]'")
    outputs = [f"--descriptor_set_out={tmp_path}/messages.binpb", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", f"-I{SOURCES}", *outputs, "oip.proto"]) == 0
    assert (tmp_path / "messages.binpb").read_bytes() == (SOURCES / "messages.binpb").read_bytes()
    assert (tmp_path / "oip_pb2.pyi").read_text() == (SOURCES / "messages.pyi").read_text()


def test_codes_every_problem_has_one() -> None:
    assert set(CODES) == set(KINDS.values())
