"""``GET /v1/models/{model}/stats`` of a real service: every number is worked out by hand."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.answers.models import StatsReply
from nightjar_alerts.service.observe.metrics import STAGES
from support.edge import CLASSES, Live, Network, curve, live, loader, wait_until


@pytest.fixture
def edge() -> Iterator[Live]:
    network = Network()
    network.on_marker[7.0] = lambda: 1 / 0
    with live(loader(network), workers=1) as edge:
        yield edge


def ask(edge: Live, model: str = "echo") -> dict[str, Any]:
    status, _, body = edge.ask("GET", f"/v1/models/{model}/stats")
    assert status == 200
    StatsReply.model_validate_json(body, strict=True)
    told: dict[str, Any] = json.loads(body)
    return told


def counted(edge: Live, runs: int) -> None:
    """Wait until the runs are counted, which they are after their light curves were answered."""
    wait_until(lambda: bool(ask(edge)["since_start"]["runs"] == runs))


WINDOWS = ("since_start", "last_minute", "last_5_minutes", "last_15_minutes")


def test_before_the_first_request(edge: Live) -> None:
    told = ask(edge)
    assert told["queue"] == {"waiting": 0, "running": 0, "predicted_seconds": 0.0}
    for window in WINDOWS:
        assert (told[window]["runs"], told[window]["stages"], told[window]["classes"]) == (0, {}, {})
        assert told[window]["batch_size"]["max"] == 0


def test_after_a_few(edge: Live) -> None:
    for flux in (1.0, 1.0, 2.0):
        edge.classify(curve(flux=[flux] * 8))
    edge.classify(curve(flux=[7.0] * 8))
    edge.classify({"light_curves": [curve(flux=[3.0] * 8), curve(flux=[3.0] * 8, flux_err=[-1.0] * 8)]})
    counted(edge, 4)
    told = ask(edge)
    assert told["model"] == {"name": "echo", "version": "0.0.1", "sha256": "0" * 64}
    for window in WINDOWS:
        period = told[window]
        assert period["light_curves"] == {"answered": 4, "failed": 1, "cached": 0}
        assert (period["runs"], period["batch_sizes"]) == (4, {"1": 4})
        assert period["classes"] == {ELASTICC.names[flux % CLASSES]: count for flux, count in ((1, 2), (2, 1), (3, 1))}
        assert set(period["stages"]) == {*STAGES, "total"}
        counts = {stage: values["count"] for stage, values in period["stages"].items()}
        # The request that failed went through all but the last stage, and is told by none of its own.
        assert counts == {
            "receive": 4, "decode": 4, "validate": 4, "featurise": 5,
            "queue": 4, "assemble": 4, "run": 4, "encode": 4, "total": 5,
        }  # fmt: skip
        for values in period["stages"].values():
            assert 0 <= values["p10"] <= values["p50"] <= values["p90"] <= values["p99"] <= values["max"] < 10
        assert (period["padding_ratio"]["mean"], period["padding_ratio"]["count"]) == (1.0, 4)
        assert period["cost_model_error_ratio"]["count"] == 4
        assert 0 < period["seconds"] < 60


def test_any_name_of_the_model_will_do(edge: Live) -> None:
    edge.classify(curve())
    counted(edge, 1)
    for name in ("echo", "echo@0.0.1", "default"):
        assert ask(edge, name)["since_start"]["runs"] == 1


@pytest.mark.parametrize("name", ["nobody", "echo@9.9.9", "%2e%2e", "x" * 5000])
def test_a_model_that_is_not_served(edge: Live, name: str) -> None:
    status, _, body = edge.ask("GET", f"/v1/models/{name}/stats")
    assert (status, json.loads(body)["type"]) == (404, "/problems/not-found")
