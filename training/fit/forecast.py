"""Forecasting: the likelihood of what a survey observed later, scored against persistence and the mean.

Notable:

- the loss is the negative log likelihood of the observed flux (``flux_distribution``), all queries alike. The
  standard deviation covers the noise of the visit as well as what is unknown of the source, so it is fitted to
  observations as they are; ``flux_err`` of a target is used in scores only;
- scores: mean NLL (nats per query), the share of observations inside the central 68.3 and 95 % intervals (they map from
  asinh to flux point by point, so this is the coverage of the flux), and errors of the expected flux in units of each
  observation's own ``flux_err``: 1 is the best possible for a source known exactly. Their root mean square is ruled by
  the brightest objects, so their median size stands beside it;
- two baselines answer the same validation questions: the last flux observed in the query's band (persistence) and the
  band's inverse-variance mean. Where a band has no history both say 0, the flux of the reference image.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.bands import BANDS
from models.lightcurve import Float64, Int64, Tokens
from models.networks import ranks
from models.networks.informer.network import PaddedHistory, PaddedQueries
from models.networks.network import INPUTS, QUERIES
from models.networks.statistics.flux_distribution import FluxDistribution
from training.data.batches import draw_indices, pooled
from training.data.dataset import Dataset
from training.data.forecasting import Question, askable, draw_question, pad_questions
from training.fit.loop import Step, Task, to_device
from training.recipes.schema import Recipe

VALIDATION_QUESTIONS = 2**32 + 4  # a draw of its own
WIDTH_95 = 1.959964  # standard deviations either side that hold 95 % of a Gaussian


class ForecastBatch(NamedTuple):
    """Padded histories and queries, and what was observed, [B, Q], in the network's flux unit."""

    history: PaddedHistory
    queries: PaddedQueries
    flux_BQ: Tensor
    flux_err_BQ: Tensor


class Forecasting(Task):
    """Train a forecaster on the later observations of cut light curves."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset = recipe, dataset
        self.train, held_out = (
            np.intersect1d(split[side], askable(dataset, recipe.forecasting.horizon_days))
            for side in ("train", "validation")
        )
        if not len(self.train) or not len(held_out):
            raise ValueError("too few objects were observed again within the horizon of a detection")
        rng = np.random.default_rng((recipe.seed, VALIDATION_QUESTIONS))
        sample = rng.permutation(held_out)[: recipe.validation.objects]
        self.validation = self._questions(sample, rng)

    def batches(self, step: int) -> Generator[ForecastBatch, None, None]:
        """Class-balanced batches of histories of similar length."""
        return pooled(self._pool, self.recipe.batch.pool, step)

    def loss(self, network: nn.Module, batch: ForecastBatch) -> Step:
        """Mean negative log likelihood of the queries."""
        likely = distribution(network, batch)
        asked_BQ, nll_BQ = batch.queries.mask_BQ, likely.negative_log_likelihood(batch.flux_BQ)
        loss = ranks.mean(torch.where(asked_BQ, nll_BQ, 0.0).sum(), asked_BQ.sum())
        return Step(loss, {"curves": torch.tensor(len(asked_BQ)), "padding": 1 - asked_BQ.float().mean()})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Scores of the network and of the baselines on the validation questions; the score is minus the NLL."""
        nll_N, deviation_N, expected_N = answer(network, self.validation, self.recipe.batch.size)
        scores = {"score": -float(nll_N.mean()), "nll": float(nll_N.mean())}
        scores["coverage_68"] = float((np.abs(deviation_N) < 1.0).mean())
        scores["coverage_95"] = float((np.abs(deviation_N) < WIDTH_95).mean())
        scores |= errors("", expected_N, self.validation)
        scores |= errors("persistence_", baseline(self.validation, last_flux), self.validation)
        return scores | errors("mean_", baseline(self.validation, mean_flux), self.validation)

    def _pool(self, number: int) -> list[ForecastBatch]:
        """Batches of one pool, a function of (seed, number): drawn, cut, sorted by length, divided, shuffled."""
        rng, batch = np.random.default_rng((self.recipe.seed, number)), self.recipe.batch
        size = batch.size * batch.pool
        drawn = draw_indices(self.dataset.label, self.train, size, balance=batch.balance, rng=rng)
        questions = self._questions(drawn, rng)
        places = np.array_split(np.arange(len(questions)), batch.pool)
        return [collate([questions[place] for place in places[part]]) for part in rng.permutation(batch.pool)]

    def _questions(self, indices: Int64, rng: np.random.Generator) -> list[Question]:
        """Return a question about every object that allows one, in order of length."""
        recipe = self.recipe
        config = (recipe.data.limits, recipe.data.flux_unit, recipe.forecasting, recipe.augmentation)
        drawn = (draw_question(self.dataset.curve(int(index)), *config, rng) for index in indices)
        return sorted((question for question in drawn if question is not None), key=lambda asked: len(asked.tokens))


def collate(questions: Sequence[Question]) -> ForecastBatch:
    """Pad questions to the longest history and the most queries among them."""
    tensors = {name: torch.from_numpy(array) for name, array in pad_questions(questions).items()}
    return ForecastBatch(
        PaddedHistory(*(tensors[name] for name in INPUTS[:5])),
        PaddedQueries(*(tensors[name] for name in QUERIES)),
        tensors["target_flux"],
        tensors["target_flux_err"],
    )


def distribution(network: nn.Module, batch: ForecastBatch) -> FluxDistribution:
    """Ask the network about the queries of a batch, in float32."""
    likely: FluxDistribution = network.distribution(batch.history, batch.queries)  # type: ignore[operator]
    return likely


class Answers(NamedTuple):
    """Of every query asked, in order: NLL, deviation in predicted standard deviations, expected flux; each [N]."""

    nll_N: Float64
    deviation_N: Float64
    flux_N: Float64


def answer(network: nn.Module, questions: Sequence[Question], batch_size: int) -> Answers:
    """Ask a network; the queries of all questions follow each other."""
    device = next(network.parameters()).device
    parts = []
    for start in range(0, len(questions), batch_size):
        batch = to_device(collate(questions[start : start + batch_size]), device)
        likely = distribution(network, batch)
        columns = (likely.negative_log_likelihood(batch.flux_BQ), likely.deviation(batch.flux_BQ), likely.forecast()[0])
        parts.append([column[batch.queries.mask_BQ].double().cpu().numpy() for column in columns])
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


Baseline = Callable[[Tokens, int], float]


def last_flux(tokens: Tokens, band: int) -> float:
    """Return persistence: the newest flux of a band, 0 where it has none."""
    flux = tokens.flux[tokens.band == band]
    return float(flux[-1]) if len(flux) else 0.0


def mean_flux(tokens: Tokens, band: int) -> float:
    """Inverse-variance mean of a band's fluxes, 0 where it has none."""
    here = tokens.band == band
    return (
        float(np.average(tokens.flux[here], weights=tokens.flux_err[here].astype(np.float64) ** -2))
        if here.any()
        else 0.0
    )


def baseline(questions: Sequence[Question], rule: Baseline) -> Float64:
    """Flux that a rule expects for every query, [N]."""
    answers = []
    for question in questions:
        by_band = [rule(question.tokens, band) for band in range(len(BANDS))]
        answers.append(np.array(by_band)[question.queries.band])
    return np.concatenate(answers)


def errors(name: str, flux_N: Float64, questions: Sequence[Question]) -> dict[str, float]:
    """Root mean square and median size of (expected - observed) / flux_err, named after ``name``."""
    observed_N = np.concatenate([question.flux for question in questions]).astype(np.float64)
    error_N = (flux_N - observed_N) / np.concatenate([question.flux_err for question in questions])
    return {
        f"{name}rmse_sigma": float(np.sqrt(np.mean(error_N**2))),
        f"{name}median_sigma": float(np.median(np.abs(error_N))),
    }
