"""``/v2`` over a real socket, with the public client of the Open Inference Protocol."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.http.edge.errors import Problem
from nightjar_alerts.service.http.oip import schemas
from nightjar_alerts.service.observe.metrics import STAGES
from nightjar_alerts.service.registry.loader import load_one
from support.edge import CLASSES, HOST, Live, Network, curve, live, loader, wait_until
from support.graph_bundles import HISTORY, classifier_bundle
from support.graphs import poison
from support.oip import Arrays, client, history, inputs, json_body, outputs

MODEL, COUNTER, VERSION = "echo", "counter", "0.0.1"
POISONOUS = 666.0


@pytest.fixture(scope="module")
def network() -> Network:
    network = Network()
    network.on_marker[POISONOUS] = poison
    return network


@pytest.fixture(scope="module")
def edge(network: Network) -> Iterator[Live]:
    with live(loader(network)) as edge:
        yield edge


@pytest.fixture
def asking(edge: Live) -> Iterator[triton.InferenceServerClient]:
    with client(edge) as asking:
        yield asking


def classes(probabilities: NDArray[np.float32]) -> list[int]:
    """Return the most probable class of every row; -1 without a result."""
    return [-1 if np.isnan(row).all() else int(row.argmax()) for row in probabilities]


def test_server_metadata_has_name_and_extensions(asking: triton.InferenceServerClient) -> None:
    assert (asking.is_server_live(), asking.is_server_ready()) == (True, True)
    told = schemas.ServerMetadata.model_validate(asking.get_server_metadata())
    assert told.name == "nightjar"
    assert {"binary_tensor_data", "parameters"} <= set(told.extensions)


@pytest.mark.parametrize(
    ("name", "version", "ready"), [(MODEL, "", True), (MODEL, VERSION, True), (MODEL, "9", False), ("other", "", False)]
)
def test_model_ready_by_name_and_version(
    asking: triton.InferenceServerClient, name: str, version: str, ready: bool
) -> None:
    assert asking.is_model_ready(name, version) is ready
    if ready:
        assert asking.get_model_metadata(name, version)["versions"] == [VERSION]
        return
    with pytest.raises(InferenceServerException, match="is served") as caught:
        asking.get_model_metadata(name, version)
    assert caught.value.status() == "404"


def test_model_metadata_describes_the_tensors(asking: triton.InferenceServerClient) -> None:
    metadata = schemas.ModelMetadata.model_validate(asking.get_model_metadata(MODEL))
    assert [tensor.name for tensor in metadata.inputs][:4] == ["mjd", "flux", "flux_err", "band"]
    shapes = {tensor.name: tensor.shape for tensor in [*metadata.inputs, *metadata.outputs]}
    assert (shapes["metadata"], shapes["probabilities"], shapes["embedding"]) == ([-1, 64], [-1, CLASSES], [-1, 4])


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_infer_one_light_curve_needs_no_offsets(asking: triton.InferenceServerClient, binary: bool) -> None:
    arrays = {name: array for name, array in history(7.0).items() if name != "offsets"}
    answer = asking.infer(MODEL, inputs(arrays, binary=binary), request_id="SN 1", model_version=VERSION)
    head = answer.get_response()
    schemas.InferReply.model_validate(head)
    assert (head["id"], head["model_name"], head["model_version"]) == ("SN 1", MODEL, VERSION)
    assert head["parameters"] == {"sha256": "0" * 64, "taxonomy": "elasticc-20/1", "calibration": "none"}
    assert [output["name"] for output in head["outputs"]] == ["probabilities", "status", "reason"]
    probabilities = answer.as_numpy("probabilities")
    assert (probabilities.shape, probabilities.dtype) == ((1, CLASSES), np.float32)
    assert (classes(probabilities), answer.as_numpy("status").tolist()) == ([7], [b"classified"])


@pytest.mark.parametrize("sent", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("given", [True, False], ids=["binary", "json"])
def test_infer_ragged_batch_in_json_and_binary_is_classified(
    asking: triton.InferenceServerClient, sent: bool, given: bool
) -> None:
    wanted = outputs("embedding", "object_id", "probabilities", "detail", binary=given)
    arrays = history(3.0, 1.0, 2.0) | {"object_id": np.array(["a", "β".encode(), b""], dtype=object)}
    answer = asking.infer(MODEL, inputs(arrays, binary=sent), outputs=wanted)
    assert [output["name"] for output in answer.get_response()["outputs"]] == [output.name() for output in wanted]
    assert classes(answer.as_numpy("probabilities")) == [3, 1, 2]
    assert answer.as_numpy("embedding").tolist() == [[marker] * 4 for marker in (3.0, 1.0, 2.0)]
    names = [name if isinstance(name, str) else name.decode() for name in answer.as_numpy("object_id")]
    assert (names, answer.as_numpy("status")) == (["a", "β", ""], None)


def test_infer_invalid_light_curve_is_rejected_alone(asking: triton.InferenceServerClient) -> None:
    arrays = history(1.0, 2.0, 3.0, POISONOUS, 5.0)
    arrays["flux_err"][arrays["offsets"][1] + 4] = -1.0
    arrays["flux"][arrays["offsets"][2] + 2] = np.nan
    answer = asking.infer(MODEL, inputs(arrays), outputs=outputs("status", "reason", "detail", "probabilities"))
    assert classes(answer.as_numpy("probabilities")) == [1, -1, -1, -1, 5]
    assert answer.as_numpy("status").tolist() == [b"classified", b"rejected", b"rejected", b"failed", b"classified"]
    assert answer.as_numpy("reason").tolist() == [b"", b"not_positive", b"not_finite", b"inference_failed", b""]
    assert answer.as_numpy("detail")[1].startswith(b"/flux_err/4: ")


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_infer_class_count_returns_labels(asking: triton.InferenceServerClient, count: int, binary: bool) -> None:
    arrays = history(7.0, 9.0)
    arrays["flux"][0] = np.inf
    wanted = triton.InferRequestedOutput("probabilities", binary_data=binary, class_count=count)
    texts = asking.infer(MODEL, inputs(arrays), outputs=[wanted]).as_numpy("probabilities")
    assert texts.shape == (2, min(count, CLASSES))
    first, second = [[text if isinstance(text, str) else text.decode() for text in row] for row in texts]
    assert first == [""] * min(count, CLASSES)
    value, index, label = second[0].split(":")
    assert float(value) == pytest.approx(0.741841, abs=1e-6)
    assert (index, label) == ("9", ELASTICC.names[9])
    values = [float(text.split(":")[0]) for text in second]
    assert values == sorted(values, reverse=True)


def test_infer_empty_and_long_light_curves_are_rejected_alone() -> None:
    with live(loader(Network()), max_points=9) as edge, client(edge) as asking:
        arrays = history(1.0, 2.0, 3.0)  # of 8, 9 and 10 observations
        arrays["offsets"] = np.array([0, 0, 8, 17, 27])
        arrays["object_id"] = np.array([b"", b"x" * 201, b"", b""], dtype=object)
        answer = asking.infer(MODEL, inputs(arrays))
        assert answer.as_numpy("reason").tolist() == [b"empty", b"too_long", b"", b"too_many_points"]


def test_infer_json_has_null_without_a_result(edge: Live) -> None:
    arrays = history(1.0)
    arrays["band"][0] = b"q"
    status, reply = edge.post(f"/v2/models/{MODEL}/infer", json_body(arrays))
    assert (status, reply["outputs"][0]["data"]) == (200, [None] * CLASSES)
    assert [output["data"] for output in reply["outputs"][1:]] == [["rejected"], ["unknown_band"]]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_infer_compressed_request_is_classified(asking: triton.InferenceServerClient, coding: str) -> None:
    answer = asking.infer(
        MODEL,
        inputs(history(4.0)),
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert classes(answer.as_numpy("probabilities")) == [4]


async def test_infer_asynchronous_client_is_answered(edge: Live) -> None:
    async with triton_aio.InferenceServerClient(f"{HOST}:{edge.port}") as asking:
        assert await asking.is_model_ready(MODEL)
        for coding in (None, "gzip"):
            answer = await asking.infer(MODEL, inputs(history(6.0, 8.0)), request_compression_algorithm=coding)
            assert classes(answer.as_numpy("probabilities")) == [6, 8]


def test_infer_timeout_is_a_deadline(edge: Live, asking: triton.InferenceServerClient, network: Network) -> None:
    network.hold()
    try:
        for asked in ({"timeout": 30_000}, {"parameters": {"deadline_ms": 30}}):
            with pytest.raises(InferenceServerException) as caught:
                asking.infer(MODEL, inputs(history(1.0)), **asked)
            assert caught.value.status() == "504"
    finally:
        network.release()
    with pytest.raises(InferenceServerException, match="at most 300000 milliseconds") as caught:
        asking.infer(MODEL, inputs(history(1.0)), timeout=300_000_001)
    assert caught.value.status() == "422"
    edge.still_well()


def test_infer_overload_is_429_with_retry_after() -> None:
    network = Network()
    with live(loader(network, CostModel(1.0, 0.0, 0.0)), workers=1, max_queued_seconds=1.5) as edge:
        network.hold()
        with ThreadPoolExecutor() as others:
            first = others.submit(edge.classify, curve())
            assert network.started.acquire(timeout=10)
            second = others.submit(edge.classify, curve())
            wait_until(lambda: edge.metric("nightjar_queue_depth") == 1)
            with client(edge) as asking, pytest.raises(InferenceServerException) as caught:
                asking.infer(MODEL, inputs(history(1.0)))
            network.release()
            assert (first.result()[0], second.result()[0], caught.value.status()) == (200, 200, "429")


def test_infer_stages_and_outcomes_are_counted(edge: Live, asking: triton.InferenceServerClient) -> None:
    before = edge.metric("nightjar_outcomes_total", survey="none", status="classified", reason="")
    asking.infer(MODEL, inputs(history(1.0, 2.0)))
    assert edge.metric("nightjar_outcomes_total", survey="none", status="classified", reason="") == before + 2
    wait_until(lambda: edge.metric("nightjar_requests_total", route="/v2/models/{model}/infer", code="200") >= 1)
    timing = edge.ask("POST", f"/v2/models/{MODEL}/infer", json.dumps(json_body(history(1.0))).encode())[1]
    assert [stage.split(";")[0] for stage in timing["server-timing"].split(", ")] == [*STAGES, "total"]


def test_infer_requires_a_key_and_probes_do_not() -> None:
    with live(loader(Network()), api_keys=("ab" * 32,)) as edge, client(edge) as asking:
        assert (asking.is_server_live(), asking.is_server_ready(), asking.is_model_ready(MODEL)) == (True, True, True)
        with pytest.raises(InferenceServerException) as caught:
            asking.get_model_metadata(MODEL)
        assert caught.value.status() == "401"
        assert edge.ask("GET", "/v2/models/ready")[0] == 401  # a model may have this name
        with pytest.raises(InferenceServerException, match="known key"):
            asking.infer(MODEL, inputs(history(1.0)))


def test_server_draining_is_live_and_not_ready(network: Network) -> None:
    with live(loader(network)) as edge, client(edge) as asking:
        edge.service.begin_drain()
        assert (asking.is_server_live(), asking.is_server_ready(), asking.is_model_ready(MODEL)) == (True, False, False)
        assert classes(asking.infer(MODEL, inputs(history(1.0))).as_numpy("probabilities")) == [1]


@pytest.mark.parametrize(("name", "version", "status"), [("default", "0.0.1", 200), ("default", "9.9.9", 404)])
def test_infer_alias_with_a_version_is_answered_if_it_leads_there(
    edge: Live, name: str, version: str, status: int
) -> None:
    """KServe's client sends the version with every name."""
    path = f"/v2/models/{name}/versions/{version}"
    assert edge.post(f"{path}/infer", json_body(history(1.0)))[0] == status
    assert [edge.ask("GET", one)[0] for one in (path, f"{path}/ready")] == [status, status]


def test_infer_problem_has_the_member_error(edge: Live) -> None:
    for path in ("/v2/nowhere", "/v2/models/other/infer", f"/v2/models/{MODEL}/versions/9"):
        status, _, body = edge.ask("POST" if path.endswith("infer") else "GET", path)
        problem = Problem.model_validate_json(body, strict=True)
        assert (status, problem.error) == (404, problem.detail)
    assert "error" not in json.loads(edge.ask("GET", "/v1/nowhere")[2])


def test_infer_parameters_that_clients_send_by_themselves_have_no_effect(edge: Live) -> None:
    with client(edge) as asking:
        own = {"sequence_id": 7, "sequence_start": True, "priority": 1, "parameters": {"content_type": "np"}}
        answer = asking.infer(MODEL, inputs(history(1.0)), **own)
    assert answer.as_numpy("status").tolist() == [b"classified"]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A graph whose embedding starts with a summary of its inputs: points, mean flux, time and band, metadata."""
    bundle = classifier_bundle(
        tmp_path_factory.mktemp("counter"), (*HISTORY, "metadata"), metadata_columns=("mwebv", "z_final")
    )
    with live(load_one, bundle=bundle.path) as edge:
        yield edge


def both(edge: Live, arrays: Arrays, posted: dict[str, Any], **parameters: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the embeddings of a light curve by tensors and by ``/v1/classify``."""
    with client(edge) as asking:
        answer = asking.infer(COUNTER, inputs(arrays), outputs=outputs("embedding"), parameters=parameters)
    _, reply = edge.classify({**posted, "options": {"embedding": True}})
    return answer.as_numpy("embedding")[0], np.array(reply["results"][0]["embedding"], dtype=np.float32)


@pytest.mark.parametrize(
    ("integer", "real", "unit"),
    [(np.int64, np.float32, "nJy"), (np.uint8, np.float64, "uJy"), (None, np.float32, "FLUXCAL")],
)
def test_infer_network_gets_the_input_of_classify(
    counting: Live, integer: type[np.generic] | None, real: type[np.generic], unit: str
) -> None:
    posted = curve(6, flux_unit=unit, detected=[False, True] * 3, metadata={"z_final": 0.1})
    bands: NDArray[Any] = np.array([name.encode() for name in posted["band"]], dtype=object)
    if integer is not None:
        bands = np.array(["ugrizY".index(name) for name in posted["band"]], dtype=integer)
    arrays: Arrays = {
        "mjd": np.array(posted["mjd"]),
        "flux": np.array(posted["flux"], dtype=real),
        "flux_err": np.array(posted["flux_err"], dtype=real),
        "band": bands,
        "detected": np.array(posted["detected"]),
        "metadata": np.array([[math.nan, 0.1]], dtype=real),
    }
    ours, theirs = both(counting, arrays, posted, flux_unit=unit)
    assert (ours == theirs).all()
    assert (ours[0], ours[5]) == (6, 1)  # points, and metadata present


def test_infer_metadata_nan_is_missing_and_inf_rejected(counting: Live) -> None:
    arrays = history(1.0, 2.0, 3.0) | {"metadata": np.array([[0.1, -9.0], [np.inf, 0.1], [np.nan, np.nan]], np.float32)}
    with client(counting) as asking:
        for binary in (True, False):
            answer = asking.infer(COUNTER, inputs(arrays, binary=binary), outputs=outputs("embedding", "reason"))
            assert answer.as_numpy("reason").tolist() == [b"", b"not_finite", b""]
            assert answer.as_numpy("embedding")[[0, 2], 5].tolist() == [1, 0]  # -9 is a survey's word for missing
        doubles = arrays | {"metadata": np.array([[0.1, 1e39], [-1e39, 0.1], [0.1, 0.1]])}
        answer = asking.infer(COUNTER, inputs(doubles), outputs=outputs("reason"))
        assert answer.as_numpy("reason").tolist() == [b"not_finite", b"not_finite", b""]


def test_infer_light_curve_in_other_bands_is_abstained(tmp_path: Path) -> None:
    bundle = classifier_bundle(tmp_path, bands=("r",))
    arrays = history(1.0, 2.0) | {"band": np.array([b"r"] * 8 + [b"g"] * 9, dtype=object)}
    with live(load_one, bundle=bundle.path) as edge, client(edge) as asking:
        assert "metadata" not in [tensor["name"] for tensor in asking.get_model_metadata(COUNTER)["inputs"]]
        answer = asking.infer(COUNTER, inputs(arrays))
        assert answer.as_numpy("status").tolist() == [b"classified", b"abstained"]
        assert np.isnan(answer.as_numpy("probabilities")).all(axis=1).tolist() == [False, True]
