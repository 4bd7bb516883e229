"""Classify light curves with MLServer's codecs: ``python with_mlserver.py URL MODEL VERSION``; prints the results.

Runs in an environment of its own, since MLServer pins an older FastAPI.
"""

import json
import sys
import urllib.request

import numpy as np
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse

NUMBERS = {
    "mjd": np.array([60310.12, 60313.09, 60317.21, 60310.12, 60314.30]),
    "flux": np.array([812.5, 2304.1, 4120.9, 310.2, 295.7], np.float32),
    "flux_err": np.array([110.2, 131.7, 140.3, 55.1, 57.9], np.float32),
    "offsets": np.array([0, 3, 5]),
}
BANDS = ["r", "g", "r", "i", "i"]


def ask(url: str, data: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        body: bytes = reply.read()
    return body


def requests() -> list[InferenceRequest]:
    """Flat columns, and columns of shape [N, 1], which the codecs make of a one-dimensional array."""
    inputs = [NumpyCodec.encode_input(name, column) for name, column in NUMBERS.items()]
    flat = [NumpyCodec.encode_input(name, column) for name, column in NUMBERS.items()]
    for tensor in flat:
        tensor.shape = tensor.shape[:1]
    strings = StringCodec.encode_input("band", BANDS, use_bytes=False)
    parameters = {"content_type": NumpyRequestCodec.ContentType}
    return [
        InferenceRequest(id="1", inputs=[*inputs, strings], parameters=parameters),
        InferenceRequest(inputs=[*flat, strings]),
    ]


def main(url: str, model: str, version: str) -> None:
    for path in (f"/v2/models/{model}", f"/v2/models/{model}/versions/{version}"):
        metadata = MetadataModelResponse.model_validate_json(ask(url + path))
        for request in requests():
            reply = ask(f"{url}{path}/infer", request.model_dump_json().encode())
            response = InferenceResponse.model_validate_json(reply)
            outputs = {output.name: output for output in response.outputs}
            probabilities = NumpyCodec.decode_output(outputs["probabilities"])
            status = StringCodec.decode_output(outputs["status"])
            print(json.dumps([metadata.name, list(probabilities.shape), np.ravel(status).tolist()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
