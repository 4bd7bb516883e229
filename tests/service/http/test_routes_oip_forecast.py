"""A forecaster as a model of ``/v2``, beside the classifier: queries in, fluxes out, the same as ``/v1/forecast``."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from nightjar_alerts.service.registry.load import load_configured
from support.edge import Live, curve, live
from support.graph_bundles import classifier_bundle, forecaster_bundle
from support.oip import client, history, inputs, outputs

MODEL = "ruler"
LIMIT = 5


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("bundles")
    bundles = {
        "bundle": classifier_bundle(folder / "counter").path,
        "forecast_bundle": forecaster_bundle(folder / "ruler", flux_unit="FLUXCAL", bands=("g", "r", "i", "z")).path,
    }
    with live(load_configured, max_queries=LIMIT, **bundles) as edge:
        yield edge


def asked(*markers: float, queries: int = 2) -> dict[str, NDArray[Any]]:
    """Light curves, each with the same queries: later and later, but not in the order of time."""
    count = len(markers) * queries
    return history(*markers) | {
        "query_mjd": np.tile(60_020.0 - np.arange(queries), len(markers)),
        "query_band": np.resize(np.array([b"r", b"g"], dtype=object), count),
        "query_offsets": np.arange(len(markers) + 1) * queries,
    }


def test_both_models_are_told(edge: Live) -> None:
    with client(edge) as asking:
        assert [asking.is_model_ready(name) for name in ("counter", MODEL, "other")] == [True, True, False]
        told = asking.get_model_metadata(MODEL)
        assert [tensor["name"] for tensor in told["inputs"]][-3:] == ["query_mjd", "query_band", "query_offsets"]
        assert [tensor["name"] for tensor in told["outputs"]][:4] == ["flux", "flux_err", "status", "reason"]
        assert "classes" not in asking.get_model_config(MODEL)["parameters"]
        names = [model["name"] for model in asking.get_inference_statistics()["model_stats"]]
        assert names == ["counter", MODEL]


@pytest.mark.parametrize("unit", ["nJy", "FLUXCAL"])
def test_both_routes_give_the_same_forecast(edge: Live, unit: str) -> None:
    queries = {"mjd": [60_009.0, 60_004.5, 59_990.0], "band": ["r", "g", "i"]}
    posted = curve(8, forecast=queries, flux_unit=unit)
    _, reply = edge.forecast(posted)
    arrays = {
        "mjd": np.array(posted["mjd"]),
        "flux": np.array(posted["flux"], dtype=np.float32),
        "flux_err": np.array(posted["flux_err"], dtype=np.float32),
        "band": np.array(["ugrizY".index(name) for name in posted["band"]]),
        "query_mjd": np.array(queries["mjd"]),
        "query_band": np.array([2, 1, 3], dtype=np.uint8),
    }
    with client(edge) as asking:
        answer = asking.infer(MODEL, inputs(arrays), parameters={"flux_unit": unit})
    assert answer.as_numpy("status").tolist() == [b"forecast"]
    for name in ("flux", "flux_err"):
        assert answer.as_numpy(name).dtype == np.float32
        assert answer.as_numpy(name).tolist() == pytest.approx(reply["results"][0][name], rel=1e-6)


def test_faults_and_silence_are_one_light_curves_own(edge: Live) -> None:
    arrays = asked(1.0, 2.0, 3.0, 4.0)
    arrays["query_band"][3] = b"u"  # known, but not to this network
    arrays["query_mjd"][4] = np.nan
    arrays["band"][arrays["offsets"][3] :] = b"u"
    with client(edge) as asking:
        answer = asking.infer(
            MODEL, inputs(arrays), outputs=outputs("flux", "status", "reason", "detail", binary=False)
        )
    assert answer.as_numpy("status").tolist() == ["forecast", "rejected", "rejected", "abstained"]
    assert answer.as_numpy("reason").tolist() == ["", "unsupported_band", "not_finite", "no_usable_points"]
    assert answer.as_numpy("detail")[1].startswith("/query/band/1: ")
    assert [math.isnan(flux) for flux in answer.as_numpy("flux")] == [False] * 2 + [True] * 6


def test_too_many_queries_or_none_are_one_light_curves_own(edge: Live) -> None:
    arrays = asked(1.0, 2.0, 3.0, queries=LIMIT - 1)
    arrays["query_offsets"] = np.array([0, 0, LIMIT + 1, 3 * (LIMIT - 1)])
    with client(edge) as asking:
        answer = asking.infer(MODEL, inputs(arrays))
    assert answer.as_numpy("reason").tolist() == [b"empty", b"too_many_queries", b"too_many_queries"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"query_offsets": np.array([0, 4])}, "query_offsets must have 3 values"),
        ({"query_offsets": np.array([0, 3, 2, 4])}, "go back"),
        ({"query_offsets": np.array([0, 2, 5])}, "must go from 0 to 4"),
        ({"query_band": np.array([1])}, "one for each query would be 4"),
        ({"query_mjd": np.zeros(4, np.float32)}, "FP64"),
    ],
)
def test_queries_that_do_not_fit(edge: Live, changes: dict[str, NDArray[Any]], fault: str) -> None:
    with client(edge) as asking, pytest.raises(InferenceServerException, match=fault) as caught:
        asking.infer(MODEL, inputs(asked(1.0, 2.0) | changes))
    assert caught.value.status() == "422"


def test_several_light_curves_need_query_offsets(edge: Live) -> None:
    arrays = asked(1.0, 2.0)
    del arrays["query_offsets"]
    with client(edge) as asking, pytest.raises(InferenceServerException, match="query_offsets must have 3 values"):
        asking.infer(MODEL, inputs(arrays))


def test_a_model_without_queries_refuses_them(edge: Live) -> None:
    with client(edge) as asking, pytest.raises(InferenceServerException, match="no input of this name"):
        asking.infer("counter", inputs(asked(1.0)))
