"""Tasks and their graphs: how each makes the inputs and reads the outputs."""

from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.forecast import query_order
from nightjar_alerts.models.lightcurve import LightCurveError, Limits
from nightjar_alerts.service.engine.batch import Arrays, Classification, Forecasting, ForecastItem, program_of
from support.graphs import curve, echo_manifest


def manifest(**changes: Any) -> Manifest:
    document = echo_manifest(Limits(max_points_per_band=20)).model_dump() | changes
    return Manifest.model_validate(document)


FORECASTER = manifest(task="forecast", taxonomy=None, embedding_dim=0, metadata_columns=(), flux_unit="FLUXCAL")


def item(marker: float, length: int, days: list[float], band: int = 2) -> ForecastItem:
    mjd = 60_000 + np.array(days)
    return ForecastItem(curve(marker, length), mjd, np.full(len(days), band), "nJy")


def test_the_program_is_that_of_the_manifests_task() -> None:
    assert isinstance(program_of(manifest()), Classification)
    assert isinstance(program_of(FORECASTER), Forecasting)


def test_a_forecasters_batch_is_padded_in_history_and_in_queries() -> None:
    program = Forecasting(FORECASTER)
    questions = [program.prepare(item(100, 3, [5.0])), program.prepare(item(200, 7, [9.0, 8.0]))]
    inputs = program.assemble(questions)
    assert {name: value.shape for name, value in inputs.items() if name != "metadata"} == {
        **dict.fromkeys(("flux", "flux_err", "time", "band", "mask"), (2, 7)),
        **dict.fromkeys(("query_time", "query_band", "query_mask"), (2, 2)),
    }
    assert inputs["query_time"].tolist() == [[5.0, 0.0], [8.0, 9.0]]
    assert [len(question) for question in questions] == [4, 9]
    assert inputs["flux"][0, 0] == pytest.approx(100 * 10 ** (-0.4 * 3.9))


def test_a_network_that_does_not_forecast_is_asked_nothing() -> None:
    question = Classification(manifest()).prepare(curve(1, 7))
    assert question.queries is None
    assert len(question) == len(question.tokens) == 7


def test_length_is_predicted_before_the_work_is_done() -> None:
    program = Forecasting(FORECASTER)
    for length in (1, 5, 120, 500):
        wanted = item(1, length, [1.0, 2.0])
        assert program.longest(wanted) >= len(program.prepare(wanted))
    assert program.longest(item(1, 5_000, [1.0, 2.0])) == 6 * 20 + 2
    assert Classification(manifest(bands=("r",))).longest(curve(1, 5_000)) == 20


def outputs(flux: list[list[float]], flux_err: list[list[float]]) -> Arrays:
    values = {"forecast_flux": flux, "forecast_flux_err": flux_err}
    return {name: np.array(value, dtype=np.float32) for name, value in values.items()}


def test_each_question_gets_its_own_answers_and_no_padding() -> None:
    program = Forecasting(FORECASTER)
    questions = [program.prepare(item(1, 3, [5.0])), program.prepare(item(2, 3, [9.0, 8.0]))]
    first, second = program.split(outputs([[1.0, np.nan], [2.0, 3.0]], [[0.1, -1.0], [0.0, 0.3]]), questions)
    assert first is not None
    assert second is not None
    assert (first["forecast_flux"].tolist(), second["forecast_flux"].tolist()) == ([1.0], [2.0, 3.0])
    assert second["forecast_flux_err"].base is None
    assert query_order(60_000 + np.array([9.0, 8.0]), np.array([2, 2])).tolist() == [1, 0]


@pytest.mark.parametrize(("flux", "flux_err"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, -1e-6)])
def test_a_forecast_that_is_none_fails_alone(flux: float, flux_err: float) -> None:
    program = Forecasting(FORECASTER)
    questions = [program.prepare(item(marker, 3, [5.0])) for marker in (1, 2)]
    first, second = program.split(outputs([[flux], [2.0]], [[flux_err], [0.5]]), questions)
    assert first is None
    assert second is not None


def test_rows_are_counted() -> None:
    program = Forecasting(FORECASTER)
    with pytest.raises(ValueError, match="1 rows to 2 light curves"):
        program.split(outputs([[1.0]], [[1.0]]), [program.prepare(item(marker, 3, [5.0])) for marker in (1, 2)])


def test_a_curve_without_a_known_band_is_nothing_to_ask_about() -> None:
    for program, asked in ((Classification(manifest(bands=("g",))), curve(1)),):
        with pytest.raises(LightCurveError) as caught:
            program.prepare(asked)
        assert caught.value.reason == "no_usable_points"
