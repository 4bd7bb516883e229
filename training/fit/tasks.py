"""Tasks of training: the loss and the scores of classification, masked reconstruction and forecasts.

**Classification**: cross-entropies of every head and the load-balance loss of the mixtures, scored by macro-F1.

Notable: the loss is ATAT's, the unweighted sum over heads (Astro-MoE has three, of which the mixed one predicts), plus
the weighted balance loss (Astro-MoE eq. 5). A mixture that stops using one of its experts keeps training and its loss
looks ordinary, so the log watches the experts.

**RMSE and R2** of a masked reconstruction are those that ASTROMER's released code defines:

    RMSE = sqrt(mean over objects of the mean over its probed observations of (x - x^)^2)
    R2   = 1 - sum of (x - x^)^2 / sum of (x - mean of the object's probed x)^2, sums over all probed observations

Notable: the root is taken last, and every object weighs the same in the RMSE, however many observations it has. An
object without probed observations counts as reconstructed without error, as in the released code. R2 is relative to
predicting each object's own mean, which a network that has learned nothing but brightness does not reach; relative to
one mean for all objects it would be larger.

Legend: B objects, L length, K values per observation.

**Masked reconstruction**: pretraining on light curves without using their labels.

Notable: which observations are probed, hidden or replaced is drawn from (seed, pool number) like the views themselves,
so a resumed run hides what an uninterrupted one would have hidden; validation masks are drawn once. The loss is read as
the papers do: ``mse`` over all probed observations (RoMAE) or ``rmse``, the root of the mean over objects of each
object's masked MSE (ASTROMER).

**Forecasting**: the likelihood of what a survey observed later, scored against persistence and the mean.

Notable:

- the loss is the negative log likelihood of the observed flux (``FluxDistribution``), all queries alike. The
  standard deviation covers the noise of the visit as well as what is unknown of the source, so it is fitted to
  observations as they are; ``flux_err`` of a target is used in scores only;
- scores: mean NLL (nats per query), the share of observations inside the central 68.3 and 95 % intervals (they map from
  asinh to flux point by point, so this is the coverage of the flux), and errors of the expected flux in units of each
  observation's own ``flux_err``: 1 is the best possible for a source known exactly. Their root mean square is ruled by
  the brightest objects, so their median size is given, too;
- two baselines answer the same validation questions: the last flux observed in the query's band (persistence) and the
  band's inverse-variance mean. Without a history in the band both are 0, the flux of the reference image.
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
from nightjar_alerts.models.networks.network import INPUTS, QUERIES, FluxDistribution, Masking, Output, Reconstruction
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
from nightjar_alerts.training.data.dataset import Dataset
from nightjar_alerts.training.data.targets import ForecastQuestion, askable, draw_masking, draw_question, pad_questions
from nightjar_alerts.training.fit.loop import (
    StarvationWatch,
    StepLoss,
    Task,
    expert_loads,
    expert_shares,
    load_range,
    to_device,
)
from nightjar_alerts.training.recipes.schema import Recipe, ReconstructionLoss
from nightjar_alerts.training.score.metrics import confusion, log_loss, macro_f1

VALIDATION_DRAW = 2**32  # a pool number that no training step reaches


class ClassificationTask(Task):
    """Train a classifier on the random views of a recipe."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = draw_validation(dataset, split["validation"], recipe)
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[TrainingBatch, None, None]:
        """Class-balanced batches of similar length."""
        return stream(self.dataset, self.split["train"], self.recipe, step)

    def loss(self, network: nn.Module, batch: TrainingBatch) -> StepLoss:
        """Sum over heads and mixtures; logs what the line reports."""
        output: Output = network(*batch.inputs_of(network))
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
        """Macro-F1 and log loss on the validation draw."""
        logits_BC = predict(network, self.validation, self.recipe.batch.size)
        probabilities_BC = torch.from_numpy(logits_BC).double().softmax(1).numpy()
        label_B = np.array([example.label for example in self.validation], dtype=np.int64)
        score = macro_f1(confusion(label_B, probabilities_BC.argmax(1), probabilities_BC.shape[1]))
        return {"score": score, "macro_f1": score, "log_loss": log_loss(probabilities_BC, label_B)}

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Macro-F1 of the interval, pace, share of padding, the range of expert loads, and the experts that starve."""
        line: dict[str, Any] = {"macro_f1": macro_f1(means["confusion"]), "padding": float(means["padding"])}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        if "aux_loss" in means:
            line["aux_loss"] = float(means["aux_loss"])
        shares = expert_shares(means)
        learning = self.recipe.optimiser.body_lr > 0  # experts that do not learn cannot be brought back
        starved = self.watch.update(step, shares) if learning else {}
        return line | {"expert_load": load_range(shares), "starved_experts": starved}


def loss_of(output: Output, label_B: Tensor, aux_weight: float) -> Tensor:
    """Sum of the heads' cross-entropies and the weighted load-balance loss; a scalar in float32."""
    heads = (*output.other_logits, output.logits_BC)
    summed = torch.stack([cross_entropy(logits_BC.float(), label_B, reduction="sum") for logits_BC in heads]).sum()
    total = ranks.mean(summed, len(label_B))
    return total if output.aux_loss is None else total + aux_weight * output.aux_loss.float()


def confusion_matrix(label_B: Tensor, predicted_B: Tensor, n_classes: int) -> Tensor:
    """Return counts [C, C] of (true, predicted), on the device of the labels."""
    counts = torch.bincount(label_B * n_classes + predicted_B, minlength=n_classes * n_classes)
    return counts.view(n_classes, n_classes)


def draw_validation(dataset: Dataset, indices: Int64, recipe: Recipe) -> list[Example]:
    """Random views of a fixed sample of validation objects, in order of length; the same ones for every call."""
    rng = np.random.default_rng((recipe.seed, VALIDATION_DRAW))
    if dataset.weight is None:
        sample = rng.permutation(indices)[: recipe.validation.objects]
    else:
        sample = draw_weighted(dataset, indices, recipe.validation.objects, recipe, rng)
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    return sorted(examples, key=lambda example: len(example.tokens))


@torch.inference_mode()
def predict(network: nn.Module, examples: list[Example], batch_size: int = 64) -> NDArray[np.float32]:
    """Logits, shape (len(examples), C), in order; fastest when examples are ordered by length."""
    network.eval()
    device = next(network.parameters()).device
    parts = [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]
    batches = (to_device(collate(part), device) for part in parts)
    return np.concatenate([network(*batch.inputs_of(network)).logits_BC.float().cpu().numpy() for batch in batches])


Float = NDArray[np.floating]


@dataclass(slots=True)
class ReconstructionScore:
    """Sums over the batches added so far."""

    objects: int = 0
    mean_squares: float = 0.0
    squares: float = 0.0
    deviations: float = 0.0

    def add(self, target_BLK: Float, prediction_BLK: Float, probed_BL: Bool) -> None:
        """Take in a padded batch; only places in ``probed_BL`` count."""
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
        """Root of the mean over objects of their mean squared error; NaN before anything was added."""
        return float(np.sqrt(self.mean_squares / self.objects)) if self.objects else float("nan")

    @property
    def r2(self) -> float:
        """Share of the variance about each object's mean that is predicted; NaN where there is none."""
        return 1.0 - self.squares / self.deviations if self.deviations else float("nan")


VALIDATION_MASKS = 2**32 + 2  # a draw of its own


class MaskedBatch(NamedTuple):
    """A batch of light curves and what is hidden of them."""

    curves: TrainingBatch
    masking: Masking


class MaskedReconstruction(Task):
    """Pretrain a network on what its recipe hides."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = list(self._validation())
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Batches of similar length with new random masks."""
        curves = stream(self.dataset, self.split["train"], self.recipe, step)
        for number, batch in enumerate(curves, start=step):
            yield self._mask(batch, np.random.default_rng((self.recipe.seed, VALIDATION_MASKS, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> StepLoss:
        """Error of the probed observations, and the weighted balance loss of a network with mixtures."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        error = reconstruction_loss(output, batch.masking.probed_BL, self.recipe.reconstruction_loss)
        log = {"curves": torch.tensor(len(batch.curves.label_B)), "error": error, **expert_loads(output)}
        if output.aux_loss is None:
            return StepLoss(error, log)
        return StepLoss(error + self.recipe.aux_weight * output.aux_loss.float(), log | {"aux_loss": output.aux_loss})

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Error of the interval, pace, the range of expert loads, and the experts that starve."""
        line: dict[str, Any] = {name: float(means[name]) for name in ("error", "aux_loss") if name in means}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        shares = expert_shares(means)
        return line | {"expert_load": load_range(shares), "starved_experts": self.watch.update(step, shares)}

    def score(self, network: nn.Module) -> dict[str, float]:
        """RMSE and R2 of the probed observations of the validation draw; the score is minus the RMSE."""
        return reconstruction_scores(network, self.validation)

    def _validation(self) -> Iterator[MaskedBatch]:
        examples, size = draw_validation(self.dataset, self.split["validation"], self.recipe), self.recipe.batch.size
        rng = np.random.default_rng((self.recipe.seed, VALIDATION_MASKS))
        for start in range(0, len(examples), size):
            yield self._mask(collate(examples[start : start + size]), rng)

    def _mask(self, batch: TrainingBatch, rng: np.random.Generator) -> MaskedBatch:
        return MaskedBatch(batch, draw_masking(batch.mask_BL.numpy(), self.recipe.masking, rng))


def reconstruction_scores(network: nn.Module, batches: Iterable[MaskedBatch]) -> dict[str, float]:
    """RMSE and R2 of the probed observations of all batches, and minus the RMSE as ``score``."""
    total, device = ReconstructionScore(), next(network.parameters()).device
    for batch in batches:
        moved = to_device(batch, device)
        output: Reconstruction = network(*moved.curves.inputs_of(network), moved.masking)
        values = (output.target_BLK.float(), output.prediction_BLK.float(), moved.masking.probed_BL)
        total.add(*(value.cpu().numpy() for value in values))
    return {"score": -total.rmse, "rmse": total.rmse, "r2": total.r2}


def reconstruction_loss(output: Reconstruction, probed_BL: Tensor, kind: ReconstructionLoss) -> Tensor:
    """Error over probed observations, a scalar: ``mse`` over all of them, ``rmse`` over objects first."""
    error_BL = (output.prediction_BLK.float() - output.target_BLK.float()).square().mean(-1) * probed_BL
    if kind == "mse":
        return ranks.mean(error_BL.sum(), probed_BL.sum())
    error_B = error_BL.sum(1) / probed_BL.sum(1).clamp(min=1)
    return ranks.mean(error_B.sum(), len(error_B)).sqrt()


VALIDATION_QUESTIONS = 2**32 + 4  # a draw of its own
WIDTH_95 = 1.959964  # standard deviations either side that hold 95 % of a Gaussian


class ForecastBatch(NamedTuple):
    """Padded histories and queries, and what was observed, [B, Q], in the network's flux unit."""

    history: PaddedHistory
    queries: PaddedQueries
    flux_BQ: Tensor
    flux_err_BQ: Tensor


class ForecastingTask(Task):
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

    def loss(self, network: nn.Module, batch: ForecastBatch) -> StepLoss:
        """Mean negative log likelihood of the queries."""
        likely = distribution(network, batch)
        is_query_BQ, nll_BQ = batch.queries.mask_BQ, likely.negative_log_likelihood(batch.flux_BQ)
        loss = ranks.mean(torch.where(is_query_BQ, nll_BQ, 0.0).sum(), is_query_BQ.sum())
        return StepLoss(loss, {"curves": torch.tensor(len(is_query_BQ)), "padding": 1 - is_query_BQ.float().mean()})

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
        return [collate_questions([questions[place] for place in places[part]]) for part in rng.permutation(batch.pool)]

    def _questions(self, indices: Int64, rng: np.random.Generator) -> list[ForecastQuestion]:
        """Return a question about every object that allows one, in order of length."""
        recipe = self.recipe
        config = (recipe.data.limits, recipe.data.flux_unit, recipe.forecasting, recipe.augmentation)
        drawn = (draw_question(self.dataset.curve(int(index)), *config, rng) for index in indices)
        return sorted(
            (question for question in drawn if question is not None), key=lambda question: len(question.tokens)
        )


def collate_questions(questions: Sequence[ForecastQuestion]) -> ForecastBatch:
    """Pad questions to the longest history and the most queries among them."""
    tensors = {name: torch.from_numpy(array) for name, array in pad_questions(questions).items()}
    return ForecastBatch(
        PaddedHistory(*(tensors[name] for name in INPUTS[:5])),
        PaddedQueries(*(tensors[name] for name in QUERIES)),
        tensors["target_flux"],
        tensors["target_flux_err"],
    )


def distribution(network: nn.Module, batch: ForecastBatch) -> FluxDistribution:
    """Run the network on the queries of a batch, in float32."""
    likely: FluxDistribution = network.distribution(batch.history, batch.queries)  # type: ignore[operator]  # a forecaster has it; nn.Module does not
    return likely


class QueryScores(NamedTuple):
    """Answers to every query, in order: NLL, deviation in predicted standard deviations, expected flux; each [N]."""

    nll_N: Float64
    deviation_N: Float64
    flux_N: Float64


def answer(network: nn.Module, questions: Sequence[ForecastQuestion], batch_size: int) -> QueryScores:
    """Run a network; queries of all objects are concatenated."""
    device = next(network.parameters()).device
    parts = []
    for start in range(0, len(questions), batch_size):
        batch = to_device(collate_questions(questions[start : start + batch_size]), device)
        likely = distribution(network, batch)
        columns = (likely.negative_log_likelihood(batch.flux_BQ), likely.deviation(batch.flux_BQ), likely.forecast()[0])
        parts.append([column[batch.queries.mask_BQ].double().cpu().numpy() for column in columns])
    return QueryScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


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


def baseline(questions: Sequence[ForecastQuestion], rule: Baseline) -> Float64:
    """Flux that a rule expects for every query, [N]."""
    answers = []
    for question in questions:
        by_band = [rule(question.tokens, band) for band in range(len(BANDS))]
        answers.append(np.array(by_band)[question.queries.band])
    return np.concatenate(answers)


def errors(name: str, flux_N: Float64, questions: Sequence[ForecastQuestion]) -> dict[str, float]:
    """Root mean square and median size of (expected - observed) / flux_err, named after ``name``."""
    observed_N = np.concatenate([question.flux for question in questions]).astype(np.float64)
    error_N = (flux_N - observed_N) / np.concatenate([question.flux_err for question in questions])
    return {
        f"{name}rmse_sigma": float(np.sqrt(np.mean(error_N**2))),
        f"{name}median_sigma": float(np.median(np.abs(error_N))),
    }
