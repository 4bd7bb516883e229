"""Calibration of a network, fitted to predictions of light curves as in the service.

Every object is used complete and in two random views as in training (missing bands, metadata, forced photometry), or in
up to eight if there are few objects. At least half of the views end at a detection with a log-uniform number, since a
broker sends a request at every detection. A calibration on complete light curves would not hold for alerts with two
detections.

Legend: N rows (one for each view of each object), C classes, E embedding width.

**Temperature scaling** (Guo et al. 2017), optionally by length. The temperature divides the logits of the predicting
head. It is constant or depends on the number n of observations, ln T = c0 + c1 ln n (+ c2 (ln n)^2), since
overconfidence may depend on the length. The choice is by five-fold cross-validated log loss on the validation split
over views as in the service (:func:`predict_as_served`), with folds by object: the simplest form, unless the gain of
another is larger than its standard error over objects.

Notable:

- a temperature keeps the order of the classes. Vector scaling (a factor and an offset for each class) does not, and its
  log loss was larger by 0.011 with 1,500 objects;
- a threshold of twice the standard error is too strict: for five folds of 600 ZTF supernovae it always chose a constant
  temperature, with an ECE at three detections of 0.056 on the test objects instead of 0.024 with a temperature by
  length;
- simulated classes are equally common, so the probabilities assume equally common classes; reweight them by your
  survey's rates;
- the ECE of perfectly calibrated probabilities is not 0, since every bin of finitely many objects deviates by chance;
  ``ece_by_chance`` is the expected deviation.

Legend: N rows (views of objects), C classes, K coefficients.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn.functional import cross_entropy

from nightjar_alerts.models.bundle import LARGEST_TEMPERATURE, Calibration
from nightjar_alerts.models.lightcurve import Bool, Int64
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, draw_examples, draw_weighted, view_examples
from nightjar_alerts.training.data.dataset import split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.loop import to_device
from nightjar_alerts.training.metrics import Float, ece, log_loss, softmax
from nightjar_alerts.training.recipes.schema import Recipe

DRAWS = (2, 8)  # minimum and maximum of random views of each object, in addition to the complete one
AT_DETECTION = 0.5  # minimum share of them that ends at a detection
LARGEST_SAMPLE = 10_000  # objects
SERVED_DRAW = 2**32 + 1  # random stream


class ServedSample(NamedTuple):
    """Predictions of a network with the properties of their light curves.

    Attributes
    ----------
    logits_NC, embedding_NE : float32.
    label_N : class index. object_N : row of the dataset, the same for all views of an object.
    length_N, detections_N : number of observations of the network's input, and of detections among them.
    """

    logits_NC: NDArray[np.float32]
    embedding_NE: NDArray[np.float32]
    label_N: Int64
    object_N: Int64
    length_N: Int64
    detections_N: Int64


def predict_as_served(
    network: nn.Module, dataset: Sample, recipe: Recipe, split: str, per_class: int | None = None
) -> ServedSample:
    """Return predictions for views of the objects of a split, or of at most ``per_class`` objects of each class.

    Raises
    ------
    ValueError
        If the split has no object with observations.
    """
    rng = np.random.default_rng((recipe.seed, SERVED_DRAW))
    rows = _sample(
        dataset, split_indices(dataset, recipe.data.fractions, recipe.data.turn)[split], per_class, recipe, rng
    )
    pairs = sorted(views_as_served(dataset, rows, recipe, rng), key=lambda pair: len(pair[1].tokens))
    if not pairs:
        raise ValueError(f"no object of split {split!r} has observations")
    examples = [example for _, example in pairs]
    logits_NC, embedding_NE = _outputs(network, examples, recipe.batch.size)
    return ServedSample(
        logits_NC,
        embedding_NE,
        label_N=_integers([example.label for example in examples]),
        object_N=_integers([row for row, _ in pairs]),
        length_N=_integers([len(example.tokens) for example in examples]),
        detections_N=_integers([int(np.count_nonzero(example.tokens.detected)) for example in examples]),
    )


def _sample(dataset: Sample, rows: Int64, per_class: int | None, recipe: Recipe, rng: np.random.Generator) -> Int64:
    """Return objects in random order: every one once, or, if the dataset has weights, drawn by weight."""
    if dataset.weight is None:
        shuffled = rng.permutation(rows)[:LARGEST_SAMPLE]
    else:
        shuffled = draw_weighted(dataset, rows, min(len(rows), LARGEST_SAMPLE), recipe, rng)
    if per_class is None:
        return shuffled
    label_N = dataset.label[shuffled]
    return np.concatenate([shuffled[label_N == label][:per_class] for label in np.unique(label_N)])


def draws_per_object(objects: int) -> int:
    """Return the number of random views per object for a number of objects."""
    minimum, maximum = DRAWS
    return max(minimum, min(maximum, LARGEST_SAMPLE // max(objects, 1)))


def views_as_served(
    dataset: Sample, rows: Int64, recipe: Recipe, rng: np.random.Generator
) -> Iterator[tuple[int, Example]]:
    """Yield the row and the views of each object: complete, and as in training and in the service."""
    at_detection = max(AT_DETECTION, recipe.augmentation.at_detection)
    augmentation = recipe.augmentation.model_copy(update={"at_detection": at_detection})
    for row in rows:
        repeated = np.repeat(row, draws_per_object(len(rows)))
        examples = draw_examples(dataset, repeated, recipe.data, augmentation, rng)
        examples += view_examples(dataset, repeated[:1], recipe.data, View())
        yield from ((int(row), example) for example in examples)


@torch.inference_mode()
def _outputs(
    network: nn.Module, examples: list[Example], batch_size: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    network.eval()
    device = next(network.parameters()).device
    outputs: list[tuple[NDArray[np.float32], ...]] = []
    for start in range(0, len(examples), batch_size):
        batch = to_device(collate(examples[start : start + batch_size]), device)
        output: NetworkOutput = network(*batch.inputs_of(network))
        outputs.append(tuple(value.float().cpu().numpy() for value in (output.logits_BC, output.embedding_BE)))
    logits, embeddings = zip(*outputs, strict=True)
    return np.concatenate(logits), np.concatenate(embeddings)


def _integers(values: list[int]) -> Int64:
    return np.array(values, dtype=np.int64)


DEGREES = (0, 1, 2)
FOLDS = 5
SIGNIFICANT = 1.0  # standard errors
DETECTION_GROUPS = (0, 2, 3, 5, 10, 20)  # first number of detections of each group: 0 or 1, 2, 3 and 4, ...
_CHANCE_DRAWS = 20


class CalibrationFit(NamedTuple):
    """A calibration, and its scores before and after on the rows that it was fitted to.

    ``candidates`` are the cross-validated log loss of every degree, and its gain over the previously chosen degree with
    the standard error. ``before`` and ``after`` are scores of all rows and by number of detections.
    """

    calibration: Calibration
    candidates: dict[str, dict[str, float]]
    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]
    objects: int
    rows: int

    def numbers(self) -> dict[str, Any]:
        """Return everything but the calibration, for the manifest's metrics."""
        return {name: value for name, value in self._asdict().items() if name != "calibration"}


def calibrated(logits_NC: Float, length_N: Int64, calibration: Calibration) -> NDArray[np.float64]:
    """Return the calibrated probabilities (N, C) by number of observations, as in the graph but in float64."""
    return softmax(logits_NC, calibration.temperatures(length_N))


def fit_temperature(logits_NC: Float, label_N: Int64, weight_N: Float | None = None) -> float:
    """Return the temperature of the smallest log loss by a bounded search; the loss is convex in 1 / temperature.

    Parameters
    ----------
    weight_N : weight of each light curve; None: equal weights.

    Raises
    ------
    ValueError
        If there are no objects, or a logit is not finite.
    """
    if not len(label_N) or not np.isfinite(logits_NC).all():
        raise ValueError("a temperature needs at least one object, and finite logits")

    def loss(log_temperature: float) -> float:
        p_NC = softmax(logits_NC, np.exp(log_temperature))
        if weight_N is None:
            return log_loss(p_NC, label_N)
        return -float(np.average(np.log(np.maximum(p_NC[np.arange(len(p_NC)), label_N], 1e-7)), weights=weight_N))

    limit = np.log(LARGEST_TEMPERATURE)
    minimum = minimize_scalar(loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(minimum.x))


def fit_by_length(logits_NC: Float, label_N: Int64, length_N: Int64, degree: int) -> Calibration:
    """Fit the temperature of the smallest log loss as a polynomial in ln(length); degree 0 is one temperature."""
    temperature = fit_temperature(logits_NC, label_N)
    if degree == 0:
        return Calibration(method="temperature", temperature=temperature)
    coefficient_K = torch.zeros(degree + 1, dtype=torch.float64)
    coefficient_K[0] = np.log(temperature)
    coefficient_K.requires_grad_()
    powers_NK = torch.from_numpy(np.vander(np.log(length_N), degree + 1, increasing=True))
    logits, label = torch.from_numpy(logits_NC.astype(np.float64)), torch.from_numpy(label_N)
    optimizer = torch.optim.LBFGS([coefficient_K], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        log_temperature_N = (powers_NK @ coefficient_K).clamp(-np.log(LARGEST_TEMPERATURE), np.log(LARGEST_TEMPERATURE))
        value = cross_entropy(logits / log_temperature_N.exp()[:, None], label)
        value.backward()
        return value

    optimizer.step(loss)
    return Calibration(
        method="temperature_by_length",
        temperature=temperature,
        coefficients=tuple(coefficient_K.tolist()),
        lengths=(int(length_N.min()), int(length_N.max())),
    )


def fit_calibration(sample: ServedSample) -> CalibrationFit:
    """Choose and fit a calibration on a validation sample. Raises the errors of :func:`fit_temperature`."""
    degree, candidates = _choose_degree(sample)
    fitted = fit_by_length(sample.logits_NC, sample.label_N, sample.length_N, degree)
    before_NC = softmax(sample.logits_NC)
    after_NC = calibrated(sample.logits_NC, sample.length_N, fitted)
    after = scores_by_detections(after_NC, sample.label_N, sample.detections_N)
    return CalibrationFit(
        calibration=fitted.model_copy(update={"ece": after["all"]["ece"], "split": "validation"}),
        candidates=candidates,
        before=scores_by_detections(before_NC, sample.label_N, sample.detections_N),
        after=after,
        objects=len(np.unique(sample.object_N)),
        rows=len(sample.label_N),
    )


def calibrate(network: nn.Module, dataset: Sample, recipe: Recipe) -> CalibrationFit:
    """Calibrate a network on the validation split, over views as in the service."""
    return fit_calibration(predict_as_served(network, dataset, recipe, "validation"))


def _choose_degree(sample: ServedSample) -> tuple[int, dict[str, dict[str, float]]]:
    """Return the simplest degree without a significantly better one, and the cross-validated log loss of each."""
    losses = {degree: _left_out_losses(sample, degree) for degree in _possible_degrees(sample)}
    _, object_N = np.unique(sample.object_N, return_inverse=True)
    rows_per_object = np.bincount(object_N)
    chosen, comparison = 0, {}
    for degree, loss_N in losses.items():
        gain_B = np.bincount(object_N, losses[chosen] - loss_N) / rows_per_object
        gain, error = float(gain_B.mean()), float(gain_B.std() / np.sqrt(len(gain_B)))
        comparison[f"degree {degree}"] = {"log_loss": float(loss_N.mean()), "gain": gain, "gain_error": error}
        if gain > SIGNIFICANT * error:
            chosen = degree
    return chosen, comparison


def _possible_degrees(sample: ServedSample) -> Sequence[int]:
    """Return the degrees for which the sample has enough objects and lengths in every fold."""
    enough = len(np.unique(sample.object_N)) >= 10 * FOLDS
    return [degree for degree in DEGREES if degree == 0 or (enough and len(np.unique(sample.length_N)) > degree + 1)]


def _left_out_losses(sample: ServedSample, degree: int) -> NDArray[np.float64]:
    """Return the log loss of every row with the calibration of the other folds; in-sample for a single object."""
    _, object_N = np.unique(sample.object_N, return_inverse=True)
    fold_N = np.random.default_rng(0).permutation(object_N.max() + 1)[object_N] % FOLDS
    loss_N = np.zeros(len(object_N))
    for fold in range(FOLDS):
        out_N: Bool = fold_N == fold
        fitted_N: Bool = ~out_N if (~out_N).any() else out_N
        fit = fit_by_length(sample.logits_NC[fitted_N], sample.label_N[fitted_N], sample.length_N[fitted_N], degree)
        p_NC = calibrated(sample.logits_NC[out_N], sample.length_N[out_N], fit)
        loss_N[out_N] = -np.log(np.maximum(p_NC[np.arange(len(p_NC)), sample.label_N[out_N]], 1e-7))
    return loss_N


def scores_by_detections(p_NC: Float, label_N: Int64, detections_N: Int64) -> dict[str, dict[str, float]]:
    """Return rows, log loss, ECE and ECE by chance, for ``all`` and for ranges of the number of detections."""
    by_group = {"all": _scores(p_NC, label_N)}
    group_N = np.searchsorted(DETECTION_GROUPS, detections_N, side="right") - 1
    for group, start in enumerate(DETECTION_GROUPS):
        if (group_N == group).any():
            by_group[str(start)] = _scores(p_NC[group_N == group], label_N[group_N == group])
    return by_group


def _scores(p_NC: Float, label_N: Int64) -> dict[str, float]:
    return {
        "rows": float(len(label_N)),
        "log_loss": log_loss(p_NC, label_N),
        "ece": ece(p_NC, label_N),
        "ece_by_chance": ece_by_chance(p_NC),
    }


def ece_by_chance(p_NC: Float) -> float:
    """Return the mean ECE of perfectly calibrated probabilities, over random draws of the labels."""
    rng = np.random.default_rng(0)
    confidence_N = p_NC.max(1)
    pairs_N2 = np.stack([confidence_N, np.zeros_like(confidence_N)], axis=1)  # column 0: correct; column 1: wrong
    draws = [ece(pairs_N2, (rng.random(len(pairs_N2)) >= confidence_N).astype(np.int64)) for _ in range(_CHANCE_DRAWS)]
    return float(np.mean(draws))
