"""Classify light curves with KServe's client: ``python with_kserve.py URL MODEL VERSION``; prints the results.

Runs in an environment of its own: KServe brings the client of Kubernetes and much else.
"""

import asyncio
import json
import sys

from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

from support.oip_clients.columns import COLUMNS


def request(model: str, binary: bool) -> InferRequest:
    inputs = []
    for name, (datatype, column) in COLUMNS.items():
        tensor = InferInput(name, list(column.shape), datatype)
        tensor.set_data_from_numpy(column, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(model_name=model, infer_inputs=inputs)


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
