"""Classify light curves with KServe's gRPC client: ``python with_kserve_grpc.py ADDRESS MODEL ADMIN_KEY``.

Prints the results. Runs in an environment of its own: KServe brings the client of Kubernetes and much else.
"""

import asyncio
import json
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from support.oip_clients.columns import COLUMNS


def request(model: str, binary: bool) -> InferRequest:
    inputs = []
    for name, (datatype, column) in COLUMNS.items():
        tensor = InferInput(name, list(column.shape), datatype)
        tensor.set_data_from_numpy(column, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(model_name=model, infer_inputs=inputs)


async def main(address: str, model: str, admin_key: str) -> None:
    client = InferenceGRPCClient(address, timeout=60)
    ready = await client.is_server_live(), await client.is_server_ready(), await client.is_model_ready(model)
    for binary in (False, True):
        response = await client.infer(request(model, binary))
        outputs = {output.name: output.as_numpy() for output in response.outputs}
        status = [value.decode() if isinstance(value, bytes) else value for value in outputs["status"].tolist()]
        print(json.dumps([response.model_name, *ready, list(np.shape(outputs["probabilities"])), status]))
    await client.close()
    async with grpc.aio.insecure_channel(address) as channel:  # the client has no calls for the repository
        stub, metadata = GRPCInferenceServiceStub(channel), [("authorization", f"Bearer {admin_key}")]
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=model), metadata=metadata)
        gone = await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=model), metadata=metadata)
    print(json.dumps([loaded.model_name, loaded.isLoaded, gone.model_name, gone.isUnloaded]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
