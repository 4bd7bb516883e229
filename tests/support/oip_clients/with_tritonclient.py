"""Classify light curves with Triton's gRPC client: ``python with_tritonclient.py ADDRESS MODEL ADMIN_KEY``.

Prints the results. Runs in an environment of its own, as the client needs protobuf below 7.
"""

import json
import sys

import tritonclient.grpc as triton

from support.oip_clients.columns import COLUMNS


def main(address: str, model: str, admin_key: str) -> None:
    client = triton.InferenceServerClient(address)
    ready = client.is_server_live(), client.is_server_ready(), client.is_model_ready(model)
    inputs = []
    for name, (datatype, column) in COLUMNS.items():
        inputs.append(triton.InferInput(name, list(column.shape), datatype))
        inputs[-1].set_data_from_numpy(column)
    result = client.infer(model, inputs, client_timeout=60)
    status = [value.decode() for value in result.as_numpy("status").tolist()]
    print(json.dumps([result.get_response().model_name, *ready, list(result.as_numpy("probabilities").shape), status]))
    best = client.infer(model, inputs, outputs=[triton.InferRequestedOutput("probabilities", class_count=1)])
    print(json.dumps([best.as_numpy("probabilities").shape == (2, 1), client.get_model_metadata(model).name]))
    try:
        client.infer(model, inputs[:1])
    except triton.InferenceServerException as error:
        print(json.dumps([error.status(), "/inputs" in error.message()]))
    headers = {"authorization": f"Bearer {admin_key}"}
    index = client.get_model_repository_index(headers=headers)
    client.load_model(model, headers=headers)
    (statistics,) = client.get_inference_statistics(model).model_stats
    print(json.dumps([index.models[0].state, statistics.inference_count]))
    client.unload_model(model, headers=headers)
    print(json.dumps(client.is_server_ready()))
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
