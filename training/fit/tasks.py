"""Training tasks: loss and scores of classification, masked reconstruction and forecasting.

**Classification**: cross-entropies of every head and the load-balance loss of the mixtures, scored by macro-F1.

The loss is that of ATAT, the unweighted sum over heads (Astro-MoE has three, of which the mixed one predicts), plus the
weighted balance loss (Astro-MoE eq. 5). The expert loads are logged, since the loss does not show that a mixture has
stopped using an expert.

**RMSE and R2** of a masked reconstruction are defined as in ASTROMER's released code:

    RMSE = sqrt(mean over objects of the mean over its probed observations of (x - x^)^2)
    R2   = 1 - sum of (x - x^)^2 / sum of (x - mean of the object's probed x)^2, sums over all probed observations

The root is taken last, and every object has the same weight in the RMSE. An object without probed observations has no
error, as in the released code. R2 is relative to predicting the mean of each object; relative to one mean for all
objects it would be larger.

Legend: B objects, L length, K values per observation.

**Masked reconstruction**: pretraining on light curves without labels.

Masks are drawn from (seed, pool number) like the views, so a resumed run uses the masks of an uninterrupted one;
validation masks are drawn once. The loss is that of the papers: ``mse`` over all probed observations (RoMAE) or
``rmse``, the root of the mean over objects of each object's masked MSE (ASTROMER).

**Forecasting**: the likelihood of later observations, scored against persistence and the mean.

- The loss is the negative log likelihood of the observed flux (``FluxDistribution``), with equal weights of all
  queries. The standard deviation covers the noise of the visit and the uncertainty of the source, so it is fitted to
  the observations; ``flux_err`` of a target is used in scores only.
- Scores: mean NLL (nats per query), the share of observations inside the central 68.3 and 95 % intervals (the transform
  from asinh to flux is monotonic, so this is the coverage of the flux), and errors of the expected flux in units of
  ``flux_err`` of each observation, which are at best 1. The brightest objects dominate their root mean square, so the
  median is given, too.
- Baselines on the same validation questions: the last flux observed in the query's band (persistence) and the band's
  inverse-variance mean. Without a history in the band both are 0, the flux of the reference image.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nightjar_alerts.models.lightcurve import Bool, Float64, Int64, Tokens
from nightjar_alerts.models.networks import ranks
from nightjar_alerts.models.networks.informer import PaddedHistory, PaddedQueries
from nightjar_alerts.models.networks.network import (
    INPUTS,
    QUERIES,
    FluxDistribution,
    Masking,
    NetworkOutput,
    Reconstruction,
)
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.batches import (
    Example,
    TrainingBatch,
    collate,
    draw_examples,
    draw_indices,
    draw_weighted,
    pooled,
    stream,
)
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.targets import (
    ForecastQuestion,
    draw_masking,
    draw_question,
    forecastable,
    pad_questions,
)
from nightjar_alerts.training.fit.loop import (
    StarvationWatch,
    StepLoss,
    Task,
    expert_loads,
    expert_shares,
    load_range,
    to_device,
)
from nightjar_alerts.training.metrics import confusion, log_loss, macro_f1
from nightjar_alerts.training.recipes.schema import Recipe, ReconstructionLoss

VALIDATION_DRAW = 2**32  # random stream; larger than the pool numbers of training


class ClassificationTask(Task):
    """Train a classifier on the random views of a recipe."""

    def __init__(self, recipe: Recipe, dataset: Sample, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = draw_validation(dataset, split["validation"], recipe)
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[TrainingBatch, None, None]:
        """Yield class-balanced batches of similar length."""
        return stream(self.dataset, self.split["train"], self.recipe, step)

    def loss(self, network: nn.Module, batch: TrainingBatch) -> StepLoss:
        """Return the loss summed over heads and mixtures, and the values for the log line."""
        output: NetworkOutput = network(*batch.inputs_of(network))
        loss = loss_of(output, batch.label_B, self.recipe.aux_weight)
        predicted_B = output.logits_BC.detach().argmax(1)
        log = {
            "confusion": confusion_matrix(batch.label_B, predicted_B, output.logits_BC.shape[1]),
            "curves": torch.tensor(len(batch.label_B)),
            "padding": 1 - batch.mask_BL.float().mean(),
            **expert_loads(output),
        }
        return StepLoss(loss, log if output.aux_loss is None else log | {"aux_loss": output.aux_loss})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return macro-F1 and log loss of the validation views."""
        logits_BC = predict(network, self.validation, self.recipe.batch.size)
        probabilities_BC = torch.from_numpy(logits_BC).double().softmax(1).numpy()
        label_B = np.array([example.label for example in self.validation], dtype=np.int64)
        score = macro_f1(confusion(label_B, probabilities_BC.argmax(1), probabilities_BC.shape[1]))
        return {"score": score, "macro_f1": score, "log_loss": log_loss(probabilities_BC, label_B)}

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Return macro-F1 of the interval, speed, share of padding, range of expert loads, and starved experts."""
        line: dict[str, Any] = {"macro_f1": macro_f1(means["confusion"]), "padding": float(means["padding"])}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        if "aux_loss" in means:
            line["aux_loss"] = float(means["aux_loss"])
        shares = expert_shares(means)
        learning = self.recipe.optimizer.body_lr > 0
        starved = self.watch.update(step, shares) if learning else {}  # frozen experts cannot recover
        return line | {"expert_load": load_range(shares), "starved_experts": starved}


def loss_of(output: NetworkOutput, label_B: Tensor, aux_weight: float) -> Tensor:
    """Return the sum of the heads' cross-entropies and the weighted load-balance loss; a scalar in float32."""
    heads = (*output.other_logits, output.logits_BC)
    summed = torch.stack([cross_entropy(logits_BC.float(), label_B, reduction="sum") for logits_BC in heads]).sum()
    total = ranks.mean(summed, len(label_B))
    return total if output.aux_loss is None else total + aux_weight * output.aux_loss.float()


def confusion_matrix(label_B: Tensor, predicted_B: Tensor, n_classes: int) -> Tensor:
    """Return counts [C, C] of (true, predicted), on the device of the labels."""
    counts = torch.bincount(label_B * n_classes + predicted_B, minlength=n_classes * n_classes)
    return counts.view(n_classes, n_classes)


def draw_validation(dataset: Sample, indices: Int64, recipe: Recipe) -> list[Example]:
    """Return random views of a fixed sample of validation objects, sorted by length; the same in every call."""
    rng = np.random.default_rng((recipe.seed, VALIDATION_DRAW))
    if dataset.weight is None:
        sample = rng.permutation(indices)[: recipe.validation.objects]
    else:
        sample = draw_weighted(dataset, indices, recipe.validation.objects, recipe, rng)
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    return sorted(examples, key=lambda example: len(example.tokens))


@torch.inference_mode()
def predict(network: nn.Module, examples: list[Example], batch_size: int = 64) -> NDArray[np.float32]:
    """Return the logits of the examples, [N, C]; fastest if examples are sorted by length."""
    network.eval()
    device = next(network.parameters()).device
    parts = [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]
    batches = (to_device(collate(part), device) for part in parts)
    return np.concatenate([network(*batch.inputs_of(network)).logits_BC.float().cpu().numpy() for batch in batches])


Float = NDArray[np.floating]


@dataclass(slots=True)
class ReconstructionScore:
    """RMSE and R2 accumulated over batches."""

    objects: int = 0
    mean_squares: float = 0.0
    squares: float = 0.0
    deviations: float = 0.0

    def add(self, target_BLK: Float, prediction_BLK: Float, probed_BL: Bool) -> None:
        """Add a padded batch; only observations in ``probed_BL`` count."""
        target_BLK, probed_BL1 = target_BLK.astype(np.float64), probed_BL[..., None]
        count_B = np.maximum(probed_BL.sum(1), 1)
        error_B = ((prediction_BLK - target_BLK) ** 2 * probed_BL1).mean(2).sum(1)
        mean_B1K = (target_BLK * probed_BL1).sum(1, keepdims=True) / count_B[:, None, None]
        self.objects += len(probed_BL)
        self.mean_squares += float((error_B / count_B).sum())
        self.squares += float(error_B.sum())
        self.deviations += float((((target_BLK - mean_B1K) ** 2) * probed_BL1).mean(2).sum())

    @property
    def rmse(self) -> float:
        """Root of the mean over objects of their mean squared error; NaN without objects."""
        return float(np.sqrt(self.mean_squares / self.objects)) if self.objects else float("nan")

    @property
    def r2(self) -> float:
        """Share of the variance about each object's mean that is predicted; NaN without variance."""
        return 1.0 - self.squares / self.deviations if self.deviations else float("nan")


VALIDATION_MASKS = 2**32 + 2  # random stream


class MaskedBatch(NamedTuple):
    """A batch of light curves and their masks."""

    curves: TrainingBatch
    masking: Masking


class MaskedReconstruction(Task):
    """Pretrain a network to reconstruct masked observations."""

    def __init__(self, recipe: Recipe, dataset: Sample, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = list(self._validation())
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Yield batches of similar length with new random masks."""
        curves = stream(self.dataset, self.split["train"], self.recipe, step)
        for number, batch in enumerate(curves, start=step):
            yield self._mask(batch, np.random.default_rng((self.recipe.seed, VALIDATION_MASKS, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> StepLoss:
        """Return the error of the probed observations plus the weighted balance loss of a network with mixtures."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        error = reconstruction_loss(output, batch.masking.probed_BL, self.recipe.reconstruction_loss)
        log = {"curves": torch.tensor(len(batch.curves.label_B)), "error": error, **expert_loads(output)}
        if output.aux_loss is None:
            return StepLoss(error, log)
        return StepLoss(error + self.recipe.aux_weight * output.aux_loss.float(), log | {"aux_loss": output.aux_loss})

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Return the error of the interval, speed, range of expert loads, and starved experts."""
        line: dict[str, Any] = {name: float(means[name]) for name in ("error", "aux_loss") if name in means}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        shares = expert_shares(means)
        return line | {"expert_load": load_range(shares), "starved_experts": self.watch.update(step, shares)}

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return RMSE and R2 of the probed observations of the validation views; the score is minus the RMSE."""
        return reconstruction_scores(network, self.validation)

    def _validation(self) -> Iterator[MaskedBatch]:
        examples, size = draw_validation(self.dataset, self.split["validation"], self.recipe), self.recipe.batch.size
        rng = np.random.default_rng((self.recipe.seed, VALIDATION_MASKS))
        for start in range(0, len(examples), size):
            yield self._mask(collate(examples[start : start + size]), rng)

    def _mask(self, batch: TrainingBatch, rng: np.random.Generator) -> MaskedBatch:
        return MaskedBatch(batch, draw_masking(batch.mask_BL.numpy(), self.recipe.masking, rng))


def reconstruction_scores(network: nn.Module, batches: Iterable[MaskedBatch]) -> dict[str, float]:
    """Return RMSE and R2 of the probed observations of all batches, and minus the RMSE as ``score``."""
    total, device = ReconstructionScore(), next(network.parameters()).device
    for batch in batches:
        moved = to_device(batch, device)
        output: Reconstruction = network(*moved.curves.inputs_of(network), moved.masking)
        values = (output.target_BLK.float(), output.prediction_BLK.float(), moved.masking.probed_BL)
        total.add(*(value.cpu().numpy() for value in values))
    return {"score": -total.rmse, "rmse": total.rmse, "r2": total.r2}


def reconstruction_loss(output: Reconstruction, probed_BL: Tensor, kind: ReconstructionLoss) -> Tensor:
    """Return the error of probed observations, a scalar: ``mse`` over all of them, ``rmse`` over objects first."""
    error_BL = (output.prediction_BLK.float() - output.target_BLK.float()).square().mean(-1) * probed_BL
    if kind == "mse":
        return ranks.mean(error_BL.sum(), probed_BL.sum())
    error_B = error_BL.sum(1) / probed_BL.sum(1).clamp(min=1)
    return ranks.mean(error_B.sum(), len(error_B)).sqrt()


VALIDATION_QUESTIONS = 2**32 + 4  # random stream
WIDTH_95 = 1.959964  # half width of the central 95 % of a Gaussian, in standard deviations


class ForecastBatch(NamedTuple):
    """Padded histories and queries, and the observed fluxes, [B, Q], in the network's flux unit."""

    history: PaddedHistory
    queries: PaddedQueries
    flux_BQ: Tensor
    flux_err_BQ: Tensor


class ForecastingTask(Task):
    """Train a forecaster on the later observations of truncated light curves."""

    def __init__(self, recipe: Recipe, dataset: Sample, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset = recipe, dataset
        self.train, held_out = (
            np.intersect1d(split[side], forecastable(dataset, recipe.forecasting.horizon_days))
            for side in ("train", "validation")
        )
        if not len(self.train) or not len(held_out):
            raise ValueError("too few objects were observed again within the horizon of a detection")
        rng = np.random.default_rng((recipe.seed, VALIDATION_QUESTIONS))
        sample = rng.permutation(held_out)[: recipe.validation.objects]
        self.validation = self._questions(sample, rng)

    def batches(self, step: int) -> Generator[ForecastBatch, None, None]:
        """Yield class-balanced batches of histories of similar length."""
        return pooled(self._pool, self.recipe.batch.pool, step)

    def loss(self, network: nn.Module, batch: ForecastBatch) -> StepLoss:
        """Return the mean negative log likelihood of the queries."""
        predicted = distribution(network, batch)
        is_query_BQ, nll_BQ = batch.queries.mask_BQ, predicted.negative_log_likelihood(batch.flux_BQ)
        loss = ranks.mean(torch.where(is_query_BQ, nll_BQ, 0.0).sum(), is_query_BQ.sum())
        return StepLoss(loss, {"curves": torch.tensor(len(is_query_BQ)), "padding": 1 - is_query_BQ.float().mean()})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Return scores of network and baselines on the validation questions; ``score`` is minus the NLL."""
        nll_N, deviation_N, expected_N = score_queries(network, self.validation, self.recipe.batch.size)
        scores = {"score": -float(nll_N.mean()), "nll": float(nll_N.mean())}
        scores["coverage_68"] = float((np.abs(deviation_N) < 1.0).mean())
        scores["coverage_95"] = float((np.abs(deviation_N) < WIDTH_95).mean())
        scores |= errors("", expected_N, self.validation)
        scores |= errors("persistence_", baseline(self.validation, last_flux), self.validation)
        return scores | errors("mean_", baseline(self.validation, mean_flux), self.validation)

    def _pool(self, number: int) -> list[ForecastBatch]:
        """Return the batches of a pool, a function of (seed, number): histories of similar length, in random order."""
        rng, batch = np.random.default_rng((self.recipe.seed, number)), self.recipe.batch
        size = batch.size * batch.pool
        drawn = draw_indices(self.dataset.label, self.train, size, balance=batch.balance, rng=rng)
        questions = self._questions(drawn, rng)
        parts = np.array_split(np.arange(len(questions)), batch.pool)
        return [collate_questions([questions[index] for index in parts[part]]) for part in rng.permutation(batch.pool)]

    def _questions(self, indices: Int64, rng: np.random.Generator) -> list[ForecastQuestion]:
        """Return a question about every object with later observations, sorted by length."""
        recipe = self.recipe
        config = (recipe.data.limits, recipe.data.flux_unit, recipe.forecasting, recipe.augmentation)
        drawn = (draw_question(self.dataset.curve(int(index)), *config, rng) for index in indices)
        return sorted(
            (question for question in drawn if question is not None), key=lambda question: len(question.tokens)
        )


def collate_questions(questions: Sequence[ForecastQuestion]) -> ForecastBatch:
    """Pad questions to the longest history and the largest number of queries."""
    tensors = {name: torch.from_numpy(array) for name, array in pad_questions(questions).items()}
    return ForecastBatch(
        PaddedHistory(*(tensors[name] for name in INPUTS[:5])),
        PaddedQueries(*(tensors[name] for name in QUERIES)),
        tensors["target_flux"],
        tensors["target_flux_err"],
    )


def distribution(network: nn.Module, batch: ForecastBatch) -> FluxDistribution:
    """Run the network on the queries of a batch, in float32."""
    predicted: FluxDistribution = network.distribution(batch.history, batch.queries)  # type: ignore[operator]  # a forecaster has it; nn.Module does not
    return predicted


class QueryScores(NamedTuple):
    """NLL, deviation in predicted standard deviations and expected flux of every query, each [N]."""

    nll_N: Float64
    deviation_N: Float64
    flux_N: Float64


def score_queries(network: nn.Module, questions: Sequence[ForecastQuestion], batch_size: int) -> QueryScores:
    """Run a network on all questions, with the queries of all objects concatenated."""
    device = next(network.parameters()).device
    parts = []
    for start in range(0, len(questions), batch_size):
        batch = to_device(collate_questions(questions[start : start + batch_size]), device)
        predicted = distribution(network, batch)
        columns = (
            predicted.negative_log_likelihood(batch.flux_BQ),
            predicted.deviation(batch.flux_BQ),
            predicted.forecast()[0],
        )
        parts.append([column[batch.queries.mask_BQ].double().cpu().numpy() for column in columns])
    return QueryScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


Baseline = Callable[[Tokens, int], float]


def last_flux(tokens: Tokens, band: int) -> float:
    """Return the persistence baseline: the last flux of a band, 0 if it has none."""
    flux = tokens.flux[tokens.band == band]
    return float(flux[-1]) if len(flux) else 0.0


def mean_flux(tokens: Tokens, band: int) -> float:
    """Return the inverse-variance mean of a band's fluxes, 0 if it has none."""
    in_band = tokens.band == band
    if not in_band.any():
        return 0.0
    return float(np.average(tokens.flux[in_band], weights=tokens.flux_err[in_band].astype(np.float64) ** -2))


def baseline(questions: Sequence[ForecastQuestion], rule: Baseline) -> Float64:
    """Return the flux that a baseline predicts for every query, [N]."""
    fluxes = []
    for question in questions:
        by_band = [rule(question.tokens, band) for band in range(len(BANDS))]
        fluxes.append(np.array(by_band)[question.queries.band])
    return np.concatenate(fluxes)


def errors(name: str, flux_N: Float64, questions: Sequence[ForecastQuestion]) -> dict[str, float]:
    """Return root mean square and median absolute value of (expected - observed) / flux_err, with a name prefix."""
    observed_N = np.concatenate([question.flux for question in questions]).astype(np.float64)
    error_N = (flux_N - observed_N) / np.concatenate([question.flux_err for question in questions])
    return {
        f"{name}rmse_sigma": float(np.sqrt(np.mean(error_N**2))),
        f"{name}median_sigma": float(np.median(np.abs(error_N))),
    }
