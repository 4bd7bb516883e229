"""Requests for inference as bytes: what is refused before protobuf parses it, and tensors in typed fields."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.service.http.edge.errors import INVALID, MALFORMED, ProblemError, ProblemKind
from nightjar_alerts.service.http.oip.inference import InferInputs
from support.edge import settings
from support.graphs import echo_manifest
from support.oip import history

pytest.importorskip("google.protobuf", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
pytest.importorskip("grpc", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
from nightjar_alerts.service.grpc.decoding import MAX_FIELDS, decode_request, read_model
from nightjar_alerts.service.grpc.messages import ModelInferRequest
from support.rpc import infer_request

MANIFEST, SETTINGS = echo_manifest(), settings(max_points=2000, max_curves=50)


def decode(message: bytes) -> InferInputs:
    """Check and decode a message."""
    read_model(message)
    return decode_request(message, MANIFEST, SETTINGS)


def refusal(message: bytes) -> tuple[ProblemKind, str]:
    """Kind of a refusal, and the first pointer."""
    with pytest.raises(ProblemError) as caught:
        decode(message)
    return caught.value.kind, caught.value.errors[0].pointer if caught.value.errors else ""


def changed(**changes: Any) -> bytes:
    """A request whose first input (``mjd``) is changed."""
    request = infer_request(history(3.0), raw=False)
    for name, value in changes.items():
        if name == "contents":
            request.inputs[0].contents.Clear()
            request.inputs[0].contents.MergeFrom(value)
        else:
            setattr(request.inputs[0], name, value)
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_name": "echo"}, "echo"),
        ({"model_name": "echo", "model_version": "1.2.3"}, "echo@1.2.3"),
        ({}, ""),
    ],
)
def test_read_model_is_the_name_with_its_version(fields: dict[str, Any], expected: str) -> None:
    assert read_model(ModelInferRequest(**fields).SerializeToString()) == expected


@pytest.mark.parametrize(
    "part",
    [b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00", b"\x2a\x02\x22\x00", b"\x32\x02\x12\x00", b"\x58\x00"],
    ids=["inputs", "outputs", "raw", "parameters", "parameters of inputs", "parameters of outputs", "unknown"],
)
def test_read_model_too_many_fields_are_refused(part: bytes) -> None:
    assert refusal(part * (MAX_FIELDS + 1))[0] is MALFORMED


def test_read_model_many_contents_of_an_input_are_refused() -> None:
    assert refusal(b"\x2a\x80\x10" + b"\x2a\x00" * 1024)[0] is MALFORMED


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x08\xff", b"\x09\x00", b"\x2a\x01\x0a"],
)
def test_message_that_is_not_valid_is_refused(message: bytes) -> None:
    assert refusal(message)[0] is MALFORMED


def test_read_model_long_shape_is_refused_before_it_is_parsed() -> None:
    request = ModelInferRequest(inputs=[{"shape": [1] * 1000}])
    assert refusal(request.SerializeToString()) == (INVALID, "/inputs/0/shape")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"contents": {"fp64_contents": [1.0] * 7}}, "/inputs/0/contents/fp64_contents"),
        ({"contents": {"fp32_contents": [1.0] * 8}}, "/inputs/0/contents/fp32_contents"),
        ({"contents": {}}, "/inputs/0/contents/fp64_contents"),
        ({"datatype": "FP128"}, "/inputs/0/datatype"),
        ({"datatype": "FP32"}, "/inputs/0/datatype"),
        ({"name": "time"}, "/inputs/0/name"),
    ],
)
def test_decode_request_typed_tensor_that_does_not_match_is_refused(changes: dict[str, Any], pointer: str) -> None:
    if "contents" in changes:
        changes = {"contents": type(ModelInferRequest.InferInputTensor().contents)(**changes["contents"])}
    assert refusal(changed(**changes)) == (INVALID, pointer)


def test_decode_request_raw_and_typed_tensors_are_not_mixed() -> None:
    request = infer_request(history(3.0))
    request.inputs[1].contents.fp32_contents.append(1.0)
    assert refusal(request.SerializeToString()) == (INVALID, "/inputs/1/contents")
    request = infer_request(history(3.0))
    del request.raw_input_contents[-1]
    assert refusal(request.SerializeToString()) == (INVALID, "/raw_input_contents")


def test_decode_request_raw_tensor_of_another_size_is_refused() -> None:
    request = infer_request(history(3.0))
    request.raw_input_contents[0] += b"\0"
    assert refusal(request.SerializeToString()) == (INVALID, "/raw_input_contents/0")


def test_decode_request_small_integers_have_wide_fields() -> None:
    arrays = history(3.0) | {"band": np.arange(8, dtype=np.uint8) % 6}
    request = infer_request(arrays, raw=False)
    (curve,) = decode(request.SerializeToString()).light_curves
    assert not isinstance(curve, InvalidLightCurve)
    assert curve.band.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    request.inputs[3].contents.uint_contents[0] = 256
    assert refusal(request.SerializeToString()) == (INVALID, "/inputs/3/contents/uint_contents")


def test_decode_request_shared_memory_is_refused() -> None:
    parameters: Any = {"shared_memory_region": {"string_param": "x"}}
    request = infer_request(history(3.0))
    request.inputs[0].MergeFrom(ModelInferRequest.InferInputTensor(parameters=parameters))
    assert refusal(request.SerializeToString()) == (INVALID, "/inputs/0/parameters")


def test_decode_request_misspelt_parameter_is_refused_and_others_are_ignored() -> None:
    own: Any = {"sequence_id": {"int64_param": 7}, "caller": {"string_param": "a"}, "unset": {}}
    assert len(decode(infer_request(history(3.0), parameters=own).SerializeToString()).light_curves) == 1
    request = infer_request(history(3.0), parameters={"flux_units": {"string_param": "uJy"}})
    with pytest.raises(ProblemError) as refused:
        decode(request.SerializeToString())
    assert refused.value.errors[0].detail == "unknown parameter flux_units; send flux_unit"


@given(st.binary(max_size=200), st.integers(0, 400))
def test_decode_request_any_bytes_are_decoded_or_refused(flood: bytes, at: int) -> None:
    valid = infer_request(history(3.0)).SerializeToString()
    for message in (flood, valid[:at] + flood + valid[at + len(flood) :]):
        with suppress(ProblemError):
            decode(message)
