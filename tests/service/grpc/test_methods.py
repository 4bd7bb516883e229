"""Methods of the Open Inference Protocol over gRPC, called with grpcio alone on a real service."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.service.registry.loader import load_one
from support.edge import Live, Network, live, loader, wait_until
from support.oip import history, json_body

pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from nightjar_alerts.service.grpc import SERVICE
from nightjar_alerts.service.grpc.messages import ModelInferResponse
from support.rpc import Client, client, infer_request, refused

KEY = "correct horse"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


@pytest.fixture(scope="module")
def grpc_edge() -> Iterator[Live]:
    with live(loader(Network()), grpc_port=0) as edge:
        yield edge


@pytest.fixture
def rpc(grpc_edge: Live) -> Iterator[Client]:
    with client(grpc_edge) as opened:
        yield opened


def values(response: ModelInferResponse) -> dict[str, list[float] | bytes]:
    """Outputs of a response: numbers of FP32, or the bytes of texts."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {each.name: np.frombuffer(raw, "<f4").tolist() if each.datatype == "FP32" else raw for each, raw in pairs}


def test_server_methods_ready_service_say_so(rpc: Client) -> None:
    assert rpc.call("ServerLive").live
    assert rpc.call("ServerReady").ready
    assert rpc.call("ServerMetadata").name == "nightjar"


def test_model_metadata_is_that_of_http(grpc_edge: Live, rpc: Client) -> None:
    response = rpc.call("ModelMetadata", name="echo")
    _, _, described = grpc_edge.ask("GET", "/v2/models/echo")
    names = [tensor.name for tensor in (*response.inputs, *response.outputs)]
    assert all(f'"{name}"'.encode() in described for name in names)
    assert (response.platform, list(response.versions)) == ("onnxruntime_onnx", ["0.0.1"])


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_infer_answers_as_http(grpc_edge: Live, rpc: Client, raw: bool) -> None:
    arrays = history(3.0, 5.0)
    response = rpc.call("ModelInfer", infer_request(arrays, raw=raw, id="mine"))
    _, expected = grpc_edge.post("/v2/models/echo/infer", json_body(arrays))
    by_name = {output["name"]: output["data"] for output in expected["outputs"]}
    assert (response.id, list(response.outputs[0].shape)) == ("mine", [2, 20])
    assert np.allclose(values(response)["probabilities"], by_name["probabilities"])
    assert response.parameters["sha256"].string_param == expected["parameters"]["sha256"]


def test_infer_requested_outputs_come_in_their_order(rpc: Client) -> None:
    response = rpc.infer(history(3.0), outputs=["embedding", "status"])
    assert list(values(response)) == ["embedding", "status"]
    assert values(response)["status"] == b"\x0a\x00\x00\x00classified"


def test_infer_invalid_light_curve_is_rejected_alone(rpc: Client) -> None:
    arrays = history(3.0, 5.0)
    arrays["flux"][0] = np.nan
    response = rpc.infer(arrays, outputs=["probabilities"])
    assert np.isnan(values(response)["probabilities"][:20]).all()
    assert not np.isnan(values(response)["probabilities"][20:]).any()


@pytest.mark.parametrize(
    ("name", "shape", "where"), [("flux", [9], "/inputs/1/shape/0"), ("mjd", [2**40], "/inputs/0/shape/0")]
)
def test_infer_shape_that_lies_is_refused_with_its_pointer(
    rpc: Client, name: str, shape: list[int], where: str
) -> None:
    request = infer_request(history(3.0))
    tensor = next(tensor for tensor in request.inputs if tensor.name == name)
    tensor.shape[:] = shape
    with refused("INVALID_ARGUMENT") as refusal:
        rpc.call("ModelInfer", request)
    assert refusal.message.startswith(f"{where}: ")
    assert refusal.metadata["problem"] == "/problems/invalid"


def test_infer_message_too_large_is_refused_by_grpc(rpc: Client, grpc_edge: Live) -> None:
    with refused("RESOURCE_EXHAUSTED"):
        rpc.call("ModelInfer", model_name="echo", raw_input_contents=[bytes(5_000_000)])
    grpc_edge.still_well()


def test_model_that_is_not_served_is_not_found(rpc: Client) -> None:
    for method in ("ModelReady", "ModelMetadata", "ModelStatistics"):
        with refused("NOT_FOUND"):
            rpc.call(method, name="nothing")
    with refused("NOT_FOUND"):
        rpc.infer(history(3.0), model="nothing")
    with refused("NOT_FOUND"):
        rpc.infer(history(3.0), model_version="9.9.9")


def test_method_that_is_not_served_is_unimplemented(rpc: Client) -> None:
    call = rpc.channel.unary_unary(f"/{SERVICE}/ModelConfig")
    with refused("UNIMPLEMENTED"):
        call(b"")


def test_statistics_count_light_curves_and_runs() -> None:
    with live(loader(Network()), grpc_port=0) as edge, client(edge) as rpc:
        rpc.infer(history(3.0, 5.0))
        totals = edge.service.models.default.metrics.totals
        wait_until(lambda: totals.light_curves == 2)  # counted after the response
        (stats,) = rpc.call("ModelStatistics", name="echo").model_stats
    assert stats.inference_count == stats.inference_stats.compute_infer.count == 2
    assert 1 <= stats.execution_count <= 2
    assert not stats.inference_stats.HasField("success")  # which nothing counts


def test_repository_calls_need_an_admin_key(rpc: Client, tiny_bundle: Path) -> None:
    with refused("PERMISSION_DENIED"):
        rpc.call("RepositoryIndex")
    edge_with_key = live(load_one, bundle=tiny_bundle, grpc_port=0, admin_keys=(DIGEST,))
    with edge_with_key as edge, client(edge) as other, refused("UNAUTHENTICATED"):
        other.call("RepositoryModelUnload", model_name="tiny")


def test_repository_triton_and_kserve_name_the_model_in_different_fields(tiny_bundle: Path) -> None:
    admin = {"authorization": f"Bearer {KEY}"}
    with live(load_one, bundle=tiny_bundle, grpc_port=0, admin_keys=(DIGEST,)) as edge, client(edge, admin) as rpc:
        (listed,) = rpc.call("RepositoryIndex", ready=True).models
        assert rpc.call("RepositoryModelLoad", repository_name="", model_name=listed.name).isLoaded
        assert rpc.call("RepositoryModelLoad", repository_name=listed.name).model_name == listed.name
        with refused("INVALID_ARGUMENT"):
            rpc.call("RepositoryModelLoad", model_name=listed.name, parameters={"config": {"string_param": "{}"}})
        with refused("NOT_FOUND"):
            rpc.call("RepositoryModelUnload", model_name="nothing")


def test_health_is_that_of_readyz(rpc: Client) -> None:
    health = health_pb2_grpc.HealthStub(rpc.channel)
    for name in ("", SERVICE):
        assert (
            health.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING
        )
    with refused("NOT_FOUND"):
        health.Check(health_pb2.HealthCheckRequest(service="other"))


def test_reflection_describes_the_services(rpc: Client) -> None:
    database = ProtoReflectionDescriptorDatabase(rpc.channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    assert database.FindFileContainingSymbol(SERVICE).package == "inference"
