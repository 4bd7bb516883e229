"""The forecasting task: its loss, its scores against float64 restatements, its baselines, and a run that resumes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from nightjar_alerts.models.networks.informer import InformerForecaster
from nightjar_alerts.models.networks.network import FluxDistribution
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.tasks import (
    ForecastBatch,
    ForecastingTask,
    baseline,
    collate_questions,
    distribution,
    errors,
    last_flux,
    mean_flux,
    score_queries,
)
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.recipes.catalogue import debug_informer_forecast
from nightjar_alerts.training.recipes.schema import BatchConfig, Recipe, ScheduleConfig, ValidationConfig
from support.toy_dataset import write_toy_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 160)


@pytest.fixture(scope="module")
def dataset(data: Path) -> Sample:
    return read_dataset(data)


def recipe(steps: int = 12) -> Recipe:
    changes = {
        "schedule": ScheduleConfig(steps=steps, warmup_steps=2),
        "batch": BatchConfig(size=8, pool=3),
        "validation": ValidationConfig(every=6, objects=20, log_every=3),
    }
    return debug_informer_forecast().model_copy(update=changes)


@pytest.fixture(scope="module")
def task(dataset: Sample) -> ForecastingTask:
    return ForecastingTask(recipe(), dataset, split_indices(dataset))


def network() -> nn.Module:
    torch.manual_seed(0)
    return build(recipe().network, "forecast").eval()


def same(left: ForecastBatch, right: ForecastBatch) -> bool:
    columns = zip((*left.history, *left.queries, *left[2:]), (*right.history, *right.queries, *right[2:]), strict=True)
    return all(torch.equal(a, b) for a, b in columns)


def test_a_batch_is_a_function_of_its_step(task: ForecastingTask) -> None:
    stream, later = task.batches(0), task.batches(4)
    batches = [next(stream) for _ in range(5)]
    assert same(batches[4], next(later))
    assert not same(batches[0], batches[1])
    assert {len(batch.flux_BQ) for batch in batches} == {8}
    for generator in (stream, later):
        generator.close()


def test_training_and_validation_objects_are_different(task: ForecastingTask, dataset: Sample) -> None:
    split = split_indices(dataset)
    assert set(task.train) <= set(split["train"])
    histories = {float(question.tokens.origin_mjd) for question in task.validation}
    firsts = {float(dataset.mjd[dataset.offsets[index]]) for index in task.train}
    assert not histories & firsts


def test_the_loss_is_the_mean_over_queries(task: ForecastingTask) -> None:
    model, batch = network(), next(task.batches(0))
    with torch.no_grad():
        step, likely = task.loss(model, batch), distribution(model, batch)
    mean, std, scale = (column.double().numpy() for column in likely)
    flux = batch.flux_BQ.double().numpy()
    density = norm.logpdf(np.arcsinh(flux / scale), mean, std) - 0.5 * np.log(flux**2 + scale**2)
    assert float(step.loss) == pytest.approx(-density[batch.queries.mask_BQ.numpy()].mean(), rel=1e-4)


class Known(nn.Module):
    """Forecaster with a given distribution."""

    def __init__(self, mean_BQ: torch.Tensor, std: float) -> None:
        super().__init__()
        self.mean_BQ, self.std = nn.Parameter(mean_BQ), std

    def distribution(self, *batch: object) -> FluxDistribution:
        return FluxDistribution(
            self.mean_BQ, torch.full_like(self.mean_BQ, self.std), torch.full_like(self.mean_BQ[:, :1], 10.0)
        )


def test_answers_and_errors(task: ForecastingTask) -> None:
    questions = task.validation[:3]
    batch = collate_questions(questions)
    observed = np.concatenate([question.flux for question in questions]).astype(np.float64)
    flux_err = np.concatenate([question.flux_err for question in questions]).astype(np.float64)
    with torch.no_grad():
        scored = score_queries(Known(torch.asinh(batch.flux_BQ / 10.0) + 0.02, 0.01), questions, 8)
    np.testing.assert_allclose(scored.deviation_N, -2.0, atol=1e-2)
    width = 0.01 * np.hypot(observed, 10.0)
    np.testing.assert_allclose(scored.nll_N, 2.0 + np.log(width) + 0.5 * np.log(2 * np.pi), atol=2e-2)
    expected = 10.0 * np.sinh(np.arcsinh(observed / 10.0) + 0.02) * np.exp(0.5e-4)
    np.testing.assert_allclose(scored.flux_N, expected, rtol=1e-4, atol=1e-4)
    scores = errors("x_", scored.flux_N, questions)
    assert scores["x_rmse_sigma"] == pytest.approx(np.sqrt(np.mean(((expected - observed) / flux_err) ** 2)), rel=1e-3)
    assert scores["x_median_sigma"] == pytest.approx(np.median(np.abs(expected - observed) / flux_err), rel=1e-3)


def test_baselines(task: ForecastingTask) -> None:
    for rule in (last_flux, mean_flux):
        expected_flux = iter(baseline(task.validation, rule))
        for question in task.validation:
            for band in question.queries.band:
                here = question.tokens.band == band
                flux, weight = question.tokens.flux[here].astype(np.float64), question.tokens.flux_err[here] ** -2.0
                expected = 0.0
                if here.any():
                    expected = flux[-1] if rule is last_flux else (flux * weight).sum() / weight.sum()
                assert next(expected_flux) == pytest.approx(expected, rel=1e-5)
        assert next(expected_flux, None) is None


def test_scores_are_those_of_the_answers(task: ForecastingTask) -> None:
    with torch.no_grad():
        scores, scored = task.score(network()), score_queries(network(), task.validation, 8)
    assert scores["score"] == -scores["nll"] == pytest.approx(-scored.nll_N.mean(), rel=1e-6)
    assert scores["coverage_68"] == pytest.approx(np.mean(np.abs(scored.deviation_N) < norm.ppf(0.8413447)), abs=0.01)
    assert scores["coverage_95"] == pytest.approx(np.mean(np.abs(scored.deviation_N) < norm.ppf(0.975)), abs=0.01)
    assert scores["rmse_sigma"] == pytest.approx(errors("", scored.flux_N, task.validation)["rmse_sigma"], rel=1e-4)
    persistence = errors("persistence_", baseline(task.validation, last_flux), task.validation)
    assert scores["persistence_rmse_sigma"] == persistence["persistence_rmse_sigma"]


def test_a_run_learns_and_a_killed_one_ends_alike(data: Path, dataset: Sample, tmp_path: Path) -> None:
    whole = train(recipe(), data, tmp_path / "whole", progress=False)
    train(recipe(), data, tmp_path / "cut", max_minutes=0.003, progress=False)
    resumed = train(recipe(), data, tmp_path / "cut", progress=False)
    assert whole.finished
    assert resumed == whole
    weights = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["network"] for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    untrained = build(recipe().network, "forecast").eval()
    assert isinstance(untrained, InformerForecaster)
    with torch.no_grad():
        before = ForecastingTask(recipe(), dataset, split_indices(dataset)).score(untrained)
    assert whole.best_score > before["score"]


def test_forecasting_without_later_observations_raises(dataset: Sample) -> None:
    never = recipe().model_copy(update={"forecasting": recipe().forecasting.model_copy(update={"horizon_days": 1e-9})})
    with pytest.raises(ValueError, match="observed again"):
        ForecastingTask(never, dataset, split_indices(dataset))
