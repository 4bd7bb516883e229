"""Codec of the Open Inference Protocol without a socket: round trips, and rejected bodies."""

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from pydantic import ValidationError
from tritonclient.http import InferResult
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.oip.schemas import InferRequest, InputTensor
from nightjar_alerts.service.http.oip.tensors import DTYPES, decode_tensors, encode_response, split_body

NUMERIC = [name for name in DTYPES if name != "BYTES"]


def described(
    datatype: str, shape: list[int], size: int | None = None, data: Any = None, name: str = "x"
) -> InputTensor:
    parameters = {} if size is None else {"binary_data_size": size}
    members = {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters, "data": data}
    return InputTensor.model_validate(members)


def decoded(tensor: InputTensor, binary: bytes = b"") -> NDArray[Any]:
    return decode_tensors([tensor], memoryview(binary))["x"]


def refused(*inputs: InputTensor, binary: bytes = b"") -> tuple[int, str]:
    """Return the status of a rejection, and the pointer of the error or its detail."""
    with pytest.raises(ProblemError) as caught:
        decode_tensors(inputs, memoryview(binary))
    problem = caught.value
    return problem.kind.status, problem.errors[0].pointer if problem.errors else problem.detail


@pytest.mark.parametrize("datatype", NUMERIC)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_tensors_numbers_round_trip(datatype: Any, data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5))
    array = data.draw(arrays.arrays(DTYPES[datatype], shape))
    binary = array.tobytes()
    back = decoded(described(datatype, list(shape), len(binary)), binary)
    assert (back.tobytes(), back.shape, back.dtype) == (binary, shape, DTYPES[datatype])
    content, length = encode_response({}, {"x": array}, {"x"})
    assert content[length:] == binary
    if DTYPES[datatype].kind != "f" or np.isfinite(array).all():  # JSON tells all others as null
        (tensor,) = json.loads(encode_response({}, {"x": array}, ())[0])["outputs"]
        again = decoded(described(datatype, tensor["shape"], data=tensor["data"]))
        assert again.dtype == array.dtype
        assert (again == array).all()
        assert (decoded(described(datatype, list(shape), data=array.tolist())) == array).all()


@given(texts=st.lists(st.binary(max_size=6), max_size=8))
@settings(max_examples=50, deadline=None)
def test_tensors_texts_match_the_triton_client(texts: list[bytes]) -> None:
    array = np.array(texts, dtype=object)
    theirs = serialize_byte_tensor(array)
    binary = theirs.item() if texts else b""
    assert decoded(described("BYTES", [len(texts)], len(binary)), binary).tolist() == texts
    content, length = encode_response({}, {"x": array}, {"x"})
    assert content[length:] == binary
    assert deserialize_bytes_tensor(content[length:]).tolist() == texts


@pytest.mark.parametrize("texts", [[b"g", b"r", b"i"], [b"gg", b"r\0", b"\0\0"], [b"", b""], [b""], [b"g", b"rr"]])
def test_decode_tensors_texts_of_one_length_keep_every_byte(texts: list[bytes]) -> None:
    binary = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    assert decoded(described("BYTES", [len(texts)], len(binary)), binary).tolist() == texts


def test_decode_tensors_unaligned_numbers_become_aligned() -> None:
    values = np.arange(5, dtype="<f8")
    for shift in range(1, 9):
        inputs = [described("UINT8", [shift], shift, name="shift"), described("FP64", [5], 40)]
        back = decode_tensors(inputs, memoryview(bytes(shift) + values.tobytes()))["x"]
        assert back.flags.aligned
        assert (back == values).all()


def test_decode_tensors_binary_parts_follow_the_order_of_inputs() -> None:
    inputs = [
        described("INT32", [1], 4, name="a"),
        described("FP32", [2], data=[1, 2.5], name="b"),
        described("INT32", [1], 4, name="c"),
    ]
    tensors = decode_tensors(inputs, memoryview(struct.pack("<ii", 1, -2)))
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a": [1], "b": [1, 2.5], "c": [-2]}


def test_decode_tensors_null_is_a_missing_float() -> None:
    assert np.isnan(decoded(described("FP32", [2], data=[None, 1.0]))).tolist() == [True, False]
    assert refused(described("INT64", [1], data=[None])) == (422, "/inputs/0/data")
    assert refused(described("BYTES", [1], data=[None])) == (422, "/inputs/0/data")


def test_decode_tensors_number_beyond_fp32_is_infinite() -> None:
    assert decoded(described("FP32", [2], data=[1e300, 1.0])).tolist() == [np.inf, 1.0]


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", [1], [True]),
        ("FP32", [1], ["1.0"]),
        ("FP32", [1], [[1.0], [2.0]]),
        ("FP32", [2, 2], [[1.0, 2.0], [3.0]]),
        ("FP32", [2, 2], [[1.0, 2.0], 3.0]),
        ("FP32", [2, 2], [1.0, 2.0, 3.0, [4.0]]),
        ("FP32", [2], [1.0]),
        ("FP32", [2], {"0": 1.0}),
        ("FP32", [2], "11"),
        ("FP32", [0], None),
        ("FP64", [1], [10**400]),
        ("INT64", [1], [1.0]),
        ("INT64", [1], [2**63]),
        ("INT64", [1], [True]),
        ("UINT8", [1], [-1]),
        ("UINT8", [1], [256]),
        ("BOOL", [1], [1]),
        ("BYTES", [1], [1]),
        ("BYTES", [1], [["g"]]),
    ],
)
def test_decode_tensors_json_is_not_coerced(datatype: str, shape: list[int], data: Any) -> None:
    assert refused(described(datatype, shape, data=data)) == (422, "/inputs/0/data")


SIZE = "/inputs/0/parameters/binary_data_size"


@pytest.mark.parametrize(
    ("datatype", "shape", "binary", "where"),
    [
        ("FP64", [2], bytes(15), SIZE),
        ("FP64", [2], bytes(17), SIZE),
        ("FP64", [0], bytes(8), SIZE),
        ("FP64", [2**31 - 1], bytes(8), SIZE),
        ("FP64", [2**31 - 1] * 8, bytes(8), "/inputs/0/shape"),
        ("FP64", [0, 2**31 - 1, 2**31 - 1], b"", "/inputs/0/shape"),
        ("BOOL", [2], b"\x01\x02", "/inputs/0"),
        ("BYTES", [2**31 - 1], bytes(8), SIZE),
        ("BYTES", [0], bytes(4), "/inputs/0"),
        ("BYTES", [1], struct.pack("<I", 2**32 - 1) + b"x", "/inputs/0"),
        ("BYTES", [2], struct.pack("<IxI", 1, 9), "/inputs/0"),
        ("BYTES", [2], struct.pack("<I", 5) + bytes(5), "/inputs/0"),
        ("BYTES", [1], bytes(3), SIZE),
        ("BYTES", [1], bytes(5), "/inputs/0"),
    ],
)
def test_decode_tensors_invalid_bytes_raise(datatype: str, shape: list[int], binary: bytes, where: str) -> None:
    assert refused(described(datatype, shape, len(binary)), binary=binary) == (422, where)


def test_decode_tensors_binary_part_of_other_length_raises() -> None:
    status, detail = refused(described("FP32", [1], 4), described("FP32", [1], 4, name="y"), binary=bytes(7))
    assert (status, detail) == (400, "y has a binary_data_size of 4, but 3 bytes are left")
    assert refused(described("FP32", [1], 4), binary=bytes(9)) == (400, "5 bytes follow the last tensor")
    assert refused(described("FP32", [1], 2**62), binary=bytes(4))[0] == 400


def test_decode_tensors_data_and_binary_size_raise() -> None:
    assert refused(described("FP32", [1], 4, data=[1.0]), binary=bytes(4)) == (422, "/inputs/0/data")


@pytest.mark.parametrize("length", ["", "x", "-1", "+1", "1.0", "0x1", "٣", "1 ", "9" * 5000, "0", "00", "11"])
def test_split_body_invalid_header_length_raises(length: str) -> None:
    with pytest.raises(ProblemError) as caught:
        split_body(b"0123456789", length)
    assert caught.value.kind.status == 400


@pytest.mark.parametrize(("body", "length", "binary"), [("{}abc", None, ""), ("{}abc", "2", "abc"), ("{}", "2", "")])
def test_split_body_divides_at_the_header_length(body: str, length: str | None, binary: str) -> None:
    text, rest = split_body(body.encode(), length)
    assert (text + bytes(rest), bytes(rest)) == (body.encode(), binary.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [-1]},
        {"shape": [2**31]},
        {"shape": [1.0]},
        {"shape": [True]},
        {"shape": ["1"]},
        {"shape": [1] * 9},
        {"shape": None},
        {"datatype": "FP8"},
        {"datatype": "fp32"},
        {"name": 1},
        {"name": "x" * 101},
        {"parameters": {"binary_data_size": -1}},
        {"parameters": {"binary_data_size": "4"}},
        {"parameters": {"shared_memory_region": "mine"}},
        {"surprise": 1},
    ],
)
def test_input_tensor_invalid_description_raises(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        InputTensor.model_validate({"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]} | changes)


def test_infer_request_many_unknown_names_give_one_error() -> None:
    with pytest.raises(ValidationError) as caught:
        InferRequest.model_validate({str(number): 0 for number in range(100_000)})
    assert caught.value.error_count() == 1


def test_encode_response_is_read_by_the_triton_client() -> None:
    outputs = {
        "rows": np.array([[1.5, np.nan]], dtype=np.float32),
        "texts": np.array([b"a", "β".encode()], dtype=object),
        "none": np.zeros((0, 3), dtype=np.float32),
    }
    for binary in (set(outputs), {"texts"}, set[str]()):
        content, length = encode_response({"id": "1"}, outputs, binary)
        assert (length is None) == (not binary)
        read = InferResult.from_response_body(content, header_length=length)
        assert np.array_equal(read.as_numpy("rows"), outputs["rows"], equal_nan=True)
        assert read.as_numpy("none").shape == (0, 3)
        texts = [text if isinstance(text, bytes) else text.encode() for text in read.as_numpy("texts")]
        assert texts == outputs["texts"].tolist()


def test_encode_response_invalid_utf8_is_replaced_in_json() -> None:
    content, _ = encode_response({}, {"x": np.array([b"\xff"], dtype=object)}, ())
    assert json.loads(content)["outputs"][0]["data"] == ["\ufffd"]
    assert decoded(described("BYTES", [1], data=["\ud800"])).tolist() == [b"?"]


@given(flood=st.binary(max_size=200), shape=st.lists(st.integers(0, 2**31 - 1), max_size=8), data=st.data())
@settings(max_examples=150, deadline=None)
def test_decode_tensors_any_bytes_give_a_tensor_or_raise(flood: bytes, shape: list[int], data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(list(DTYPES)))
    with suppress(ProblemError):
        values = decode_tensors([described(datatype, shape, len(flood))], memoryview(flood))["x"]
        assert (list(values.shape), values.dtype) == (shape, DTYPES[datatype])
