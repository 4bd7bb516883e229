"""Forecast questions: histories end at the cut, targets are observations, and draws depend on the seed only."""

from dataclasses import replace

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurve, Limits, featurise
from nightjar_alerts.training.data.augment import AugmentationConfig
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.targets import (
    ForecastingConfig,
    ForecastQuestion,
    cut_times,
    draw_question,
    forecastable,
    make_question,
    pad_questions,
)
from support.toy_dataset import write_toy_dataset

LIMITS, WHOLE = Limits(max_points_per_band=20), AugmentationConfig(mta_days=())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return read_dataset(write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 80))


def draw(curve: LightCurve, seed: int, config: ForecastingConfig | None = None) -> ForecastQuestion:
    question = draw_question(
        curve, LIMITS, "FLUXCAL", config or ForecastingConfig(), WHOLE, np.random.default_rng((3, seed))
    )
    assert question is not None
    return question


def cut_of(question: ForecastQuestion) -> float:
    return question.tokens.origin_mjd + float(question.tokens.time[-1])


def test_history_ends_at_a_detection_and_queries_follow_it(dataset: Sample) -> None:
    config = ForecastingConfig(horizon_days=25.0, max_queries=6)
    for index in forecastable(dataset, 25.0):
        curve = dataset.curve(int(index))
        question = draw(curve, int(index), config)
        ahead = question.tokens.origin_mjd + question.queries.time.astype(np.float64) - cut_of(question)
        assert question.tokens.detected[-1]
        assert 1 <= len(question.queries.time) <= 6
        assert (ahead > 0).all()
        assert (ahead <= 25.0 + 1e-4).all()


def test_question_targets_are_the_observations_of_its_queries(dataset: Sample) -> None:
    curve = dataset.curve(5)
    question = draw(curve, 0)
    order = np.lexsort((curve.band, curve.mjd))
    for place in range(len(question.queries.time)):
        mjd = question.tokens.origin_mjd + float(question.queries.time[place])
        match = order[np.argmin(np.abs(curve.mjd[order] - mjd))]
        assert curve.band[match] == question.queries.band[place]
        factor = 10 ** (0.4 * (31.4 - 27.5))
        assert question.flux[place] == pytest.approx(curve.flux[match] / factor, rel=1e-6)
        assert question.flux_err[place] == pytest.approx(curve.flux_err[match] / factor, rel=1e-6)


def test_nothing_after_the_cut_reaches_the_history(dataset: Sample) -> None:
    """Another future, asked at the same moment, leaves the history as it was."""
    for index in range(12):
        curve = dataset.curve(index)
        cut = cut_times(curve, 60.0)[0]
        later = curve.mjd > cut
        other = replace(
            curve, flux=np.where(later, -9e6, curve.flux).astype(np.float32), detected=curve.detected | later
        )
        tokens = [featurise(both.rows(both.mjd <= cut), LIMITS, "FLUXCAL", ()) for both in (curve, other)]
        for name in ("time", "flux", "flux_err", "band", "detected"):
            np.testing.assert_array_equal(getattr(tokens[0], name), getattr(tokens[1], name))
        assert tokens[0].origin_mjd == tokens[1].origin_mjd


def test_queries_do_not_depend_on_the_fluxes_to_predict(dataset: Sample) -> None:
    """The draw looks at when visits and detections were, never at fluxes."""
    curve = dataset.curve(7)
    brighter = replace(curve, flux=curve.flux * np.float32(3.0))
    first, second = draw(curve, 1), draw(brighter, 1)
    np.testing.assert_array_equal(first.queries.time, second.queries.time)
    np.testing.assert_allclose(second.flux, 3.0 * first.flux, rtol=1e-6)


def test_a_draw_is_a_function_of_one_number(dataset: Sample) -> None:
    curve = dataset.curve(2)
    first, again, other = draw(curve, 4), draw(curve, 4), draw(curve, 5)
    np.testing.assert_array_equal(first.queries.time, again.queries.time)
    assert len(first.queries.time) != len(other.queries.time) or (first.queries.time != other.queries.time).any()
    rng, before = np.random.default_rng(0), np.random.default_rng(0)
    draw_question(curve, LIMITS, "FLUXCAL", ForecastingConfig(), WHOLE, rng)
    before.integers(2**63)
    assert rng.random() == before.random()


def test_views_thin_the_history_only(dataset: Sample) -> None:
    """No brightness either: the history stays in the units of the targets."""
    detections = AugmentationConfig(mta_days=(), detected_only=1.0, as_ztf=0.5, ztf_brightness=(20.0, 20.0))
    gone = 0
    for index in range(12):
        whole, thinned = (
            draw_question(dataset.curve(index), LIMITS, "FLUXCAL", ForecastingConfig(), views, np.random.default_rng(8))
            for views in (WHOLE, detections)
        )
        assert whole is not None
        assert thinned is not None
        np.testing.assert_array_equal(thinned.flux, whole.flux)
        assert np.isin(thinned.tokens.flux, whole.tokens.flux).all()
        gone += len(whole.tokens) - len(thinned.tokens)
    assert gone > 0


def columns(mjd: list[float], detected: list[bool]) -> LightCurve:
    ones = np.ones(len(mjd))
    return LightCurve.from_columns(mjd, ones, ones, ["r"] * len(mjd), detected)


def test_cuts_need_a_detection_and_something_after_it() -> None:
    curve = columns([0.0, 1.0, 2.0, 50.0, 51.0], [False, True, True, True, True])
    assert cut_times(curve, 10.0).tolist() == [1.0, 50.0]
    assert cut_times(curve, 60.0).tolist() == [1.0, 2.0, 50.0]
    assert (
        draw_question(
            columns([0.0, 90.0], [True, True]), LIMITS, "nJy", ForecastingConfig(), WHOLE, np.random.default_rng(0)
        )
        is None
    )


def test_simultaneous_visits_are_not_each_others_future() -> None:
    curve = LightCurve.from_columns([1.0, 1.0, 3.0], [5.0] * 3, [1.0] * 3, ["g", "r", "g"], [True, True, False])
    assert cut_times(curve, 10.0).tolist() == [1.0]
    assert cut_times(curve, 1.0).tolist() == []
    assert len(draw(curve, 0).tokens) == 2


@pytest.mark.parametrize("horizon", [0.5, 3.0, 60.0])
def test_forecastable_returns_the_objects_with_a_cut(dataset: Sample, horizon: float) -> None:
    expected = [index for index in range(len(dataset)) if len(cut_times(dataset.curve(index), horizon))]
    assert forecastable(dataset, horizon).tolist() == expected


def test_padding(dataset: Sample) -> None:
    questions = [draw(dataset.curve(index), index) for index in range(4)]
    arrays = pad_questions(questions)
    is_query = arrays["query_mask"]
    assert is_query.sum(1).tolist() == [len(question.queries.time) for question in questions]
    assert arrays["mask"].sum(1).tolist() == [len(question.tokens) for question in questions]
    np.testing.assert_array_equal(arrays["target_flux"][2][is_query[2]], questions[2].flux)
    assert not arrays["target_flux_err"][~is_query].any()
    assert arrays["query_band"].dtype == np.int64
    assert arrays["target_flux"].dtype == arrays["query_time"].dtype == np.float32


def test_make_question_sorts_by_time_and_band() -> None:
    curve = LightCurve.from_columns(
        [0.0, 5.0, 5.0, 2.0], [1.0, 2.0, 3.0, 4.0], [1.0] * 4, ["g", "r", "g", "i"], [True] * 4, flux_unit="nJy"
    )
    question = make_question(curve, np.array([1, 2, 3]), curve.rows(curve.mjd <= 0.0), LIMITS, "nJy")
    assert question.queries.time.tolist() == [2.0, 5.0, 5.0]
    assert question.flux.tolist() == [4.0, 3.0, 2.0]
