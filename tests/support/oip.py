"""Light curves as tensors of the Open Inference Protocol: for a client, and byte by byte as no client would send it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.http as triton
from numpy.typing import NDArray

from support.edge import HOST, Live

Arrays = Mapping[str, NDArray[Any]]

JSON_LENGTH = "Inference-Header-Content-Length"
TYPES = {
    "f8": "FP64",
    "f4": "FP32",
    "i8": "INT64",
    "i4": "INT32",
    "u1": "UINT8",
    "b1": "BOOL",
    "O": "BYTES",
}


def client(edge: Live) -> triton.InferenceServerClient:
    """The public client, as it comes."""
    return triton.InferenceServerClient(f"{HOST}:{edge.port}")


def history(*markers: float, points: int = 8) -> dict[str, NDArray[Any]]:
    """One light curve per marker, which is its flux; light curve i has i more observations than the first."""
    lengths = [points + place for place in range(len(markers))]
    total = sum(lengths)
    return {
        "mjd": 60_000.0 + np.concatenate([np.arange(length, dtype=np.float64) for length in lengths]),
        "flux": np.repeat(np.array(markers, dtype=np.float32), lengths),
        "flux_err": np.ones(total, dtype=np.float32),
        "band": np.array([b"ugrizY"[place % 6 : place % 6 + 1] for place in range(total)], dtype=object),
        "offsets": np.concatenate(([0], np.cumsum(lengths))),
    }


def datatype(array: NDArray[Any]) -> str:
    """Name of its dtype."""
    return TYPES[array.dtype.str.lstrip("<|")]


def inputs(arrays: Arrays, *, binary: bool = True) -> list[triton.InferInput]:
    """Input tensors of the Triton client."""
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), datatype(array))
        made.append(tensor.set_data_from_numpy(array, binary_data=binary))
    return made


def outputs(*names: str, binary: bool = True) -> list[triton.InferRequestedOutput]:
    """Outputs that the Triton client asks for."""
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def as_bytes(array: NDArray[Any]) -> bytes:
    """The bytes of a tensor, as the extension describes them."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in array.ravel())


def described(name: str, array: NDArray[Any], **changes: Any) -> dict[str, Any]:
    """An input that is sent as bytes; a change of None leaves a member out."""
    tensor = {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype(array),
        "parameters": {"binary_data_size": len(as_bytes(array))},
    }
    return {key: value for key, value in (tensor | changes).items() if value is not None}


def binary_body(
    arrays: Arrays, changed: Mapping[str, Mapping[str, Any]] | None = None, **members: Any
) -> tuple[bytes, int]:
    """A body whose tensors follow its JSON part, and the length of that part.

    Parameters
    ----------
    changed : members of input descriptions to replace, by the name of the input.
    members : of the request.
    """
    changes = changed or {}
    tensors = [described(name, array, **changes.get(name, {})) for name, array in arrays.items()]
    head = json.dumps({"inputs": tensors, **members}).encode()
    return head + b"".join(map(as_bytes, arrays.values())), len(head)


def json_body(arrays: Arrays, **members: Any) -> dict[str, Any]:
    """A body that is JSON throughout."""
    tensors = [described(name, array, parameters=None, data=_values(array)) for name, array in arrays.items()]
    return {"inputs": tensors, **members}


def _values(array: NDArray[Any]) -> Sequence[Any]:
    values: list[Any] = array.tolist()
    return [text.decode() for text in values] if array.dtype == object else values


def post(edge: Live, body: bytes, length: int | str | None, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON reply of an inference request."""
    told = {"Content-Type": "application/octet-stream"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    if length is not None:
        told[JSON_LENGTH] = str(length)
    status, _, reply = edge.ask("POST", "/v2/models/echo/infer", body, told)
    document: dict[str, Any] = json.loads(reply)
    return status, document
