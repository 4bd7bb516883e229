"""Classify light curves with KServe's client: ``python with_kserve.py URL MODEL VERSION``; prints the results.

Runs in an environment of its own: KServe brings the client of Kubernetes and much else.
"""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

COLUMNS = {
    "mjd": ("FP64", np.array([60310.12, 60313.09, 60317.21, 60310.12, 60314.30])),
    "flux": ("FP32", np.array([812.5, 2304.1, 4120.9, 310.2, 295.7], np.float32)),
    "flux_err": ("FP32", np.array([110.2, 131.7, 140.3, 55.1, 57.9], np.float32)),
    "band": ("BYTES", np.array([b"r", b"g", b"r", b"i", b"i"], object)),
    "offsets": ("INT64", np.array([0, 3, 5])),
}


def request(model: str, binary: bool) -> InferRequest:
    inputs = []
    for name, (datatype, column) in COLUMNS.items():
        tensor = InferInput(name, list(column.shape), datatype, parameters={"caller": "a pipeline"})
        tensor.set_data_from_numpy(column, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(model_name=model, infer_inputs=inputs, parameters={"caller": "a pipeline"})


async def main(url: str, model: str, version: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    ready = await client.is_server_ready(url), await client.is_server_live(url), await client.is_model_ready(url, model)
    for binary in (False, True):
        response = await client.infer(url, request(model, binary), model_name=model)
        outputs = {output.name: output.as_numpy() for output in response.outputs}
        status = [value.decode() if isinstance(value, bytes) else value for value in outputs["status"].tolist()]
        print(json.dumps([response.model_name, *ready, list(outputs["probabilities"].shape), status]))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
