"""Calibration of a network, fitted to predictions of light curves as in the service.

Every object is used complete and in two random views as in training (missing bands, metadata, forced photometry), or in
up to eight if there are few objects. At least half of the views end at a detection with a log-uniform number, since a
broker sends a request at every detection. Complete light curves only would not calibrate alerts with two detections.

Legend: N rows (one for each view of each object), C classes, E embedding width.

**Temperature scaling** (Guo et al. 2017), by length where that helps. The temperature divides the logits of the
predicting head. It is constant or depends on the number n of observations, ln T = c0 + c1 ln n (+ c2 (ln n)^2), since
overconfidence may depend on the length. The choice is by five-fold cross-validated log loss on the validation split
over views as in the service (:func:`ask_as_served`), with folds by object: the simplest, unless a later one gains more
than the standard error of the gain over objects.

Notable:

- a temperature keeps the order of the classes. Vector scaling (a factor and an offset for each class) does not, and it
  was worse than one temperature: 0.011 in log loss, 1,500 objects;
- requiring twice the standard error left too many networks with one temperature: fine-tuned on ZTF supernovae, five
  folds of 600 validation objects each, all five got one, and at three detections an ECE of 0.056 on their test objects
  where the temperature by length they would have needed has 0.024;
- simulated classes are equally common, so the probabilities assume equally common classes; reweight them by your
  survey's rates;
- the ECE of a perfect network is not 0: with finitely many objects every bin deviates by chance.
  ``ece_by_chance`` is the expected deviation; an ECE near it is perfect.

Legend: N rows (views of objects), C classes, K coefficients.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn.functional import cross_entropy

from nightjar_alerts.models.bundle import LARGEST_TEMPERATURE, Calibration
from nightjar_alerts.models.lightcurve import Bool, Int64
from nightjar_alerts.models.networks.network import Output
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, draw_examples, view_examples
from nightjar_alerts.training.data.dataset import Dataset, split_indices
from nightjar_alerts.training.fit.loop import to_device
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.metrics import Float, ece, log_loss

DRAWS = (2, 8)  # minimum and maximum of random views of each object, in addition to the complete one
AT_DETECTION = 0.5  # least share of them that ends at a detection
LARGEST_SAMPLE = 10_000  # objects
SERVED_DRAW = 2**32 + 1  # a generator of its own: neither training pools nor validation draws


class ServedSample(NamedTuple):
    """Predictions of a network with the properties of their light curves.

    Attributes
    ----------
    logits_NC, embedding_NE : float32.
    label_N : class index. object_N : row of the dataset, the same for all views of an object.
    length_N, detections_N : observations that the network saw, and those of them that the survey calls detected.
    """

    logits_NC: NDArray[np.float32]
    embedding_NE: NDArray[np.float32]
    label_N: Int64
    object_N: Int64
    length_N: Int64
    detections_N: Int64


def ask_as_served(
    network: nn.Module, dataset: Dataset, recipe: Recipe, split: str, per_class: int | None = None
) -> ServedSample:
    """Return predictions of the objects of a split, or of a number of each class.

    Raises
    ------
    ValueError
        When the split has no object with observations.
    """
    rng = np.random.default_rng((recipe.seed, SERVED_DRAW))
    rows = _chosen(dataset, split_indices(dataset, recipe.data.fractions, recipe.data.turn)[split], per_class, rng)
    pairs = sorted(_views(dataset, rows, recipe, rng), key=lambda pair: len(pair[1].tokens))
    if not pairs:
        raise ValueError(f"no object of split {split!r} has observations")
    examples = [example for _, example in pairs]
    logits_NC, embedding_NE = _answers(network, examples, recipe.batch.size)
    return ServedSample(
        logits_NC,
        embedding_NE,
        label_N=_integers([example.label for example in examples]),
        object_N=_integers([row for row, _ in pairs]),
        length_N=_integers([len(example.tokens) for example in examples]),
        detections_N=_integers([int(np.count_nonzero(example.tokens.detected)) for example in examples]),
    )


def _chosen(dataset: Dataset, rows: Int64, per_class: int | None, rng: np.random.Generator) -> Int64:
    shuffled = rng.permutation(rows)[:LARGEST_SAMPLE]
    if per_class is None:
        return shuffled
    label = dataset.label[shuffled]
    return np.concatenate([shuffled[label == one][:per_class] for one in np.unique(label)])


def draws_of_each(objects: int) -> int:
    """Return the number of random views per object for a number of objects."""
    least, most = DRAWS
    return max(least, min(most, LARGEST_SAMPLE // max(objects, 1)))


def _views(dataset: Dataset, rows: Int64, recipe: Recipe, rng: np.random.Generator) -> Iterator[tuple[int, Example]]:
    least = max(AT_DETECTION, recipe.augmentation.at_detection)
    augmentation = recipe.augmentation.model_copy(update={"at_detection": least})
    for row in rows:
        repeated = np.repeat(row, draws_of_each(len(rows)))
        examples = draw_examples(dataset, repeated, recipe.data, augmentation, rng)
        examples += view_examples(dataset, repeated[:1], recipe.data, View())
        yield from ((int(row), example) for example in examples)


@torch.inference_mode()
def _answers(
    network: nn.Module, examples: list[Example], batch_size: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    network.eval()
    device = next(network.parameters()).device
    answers: list[tuple[NDArray[np.float32], ...]] = []
    for start in range(0, len(examples), batch_size):
        batch = to_device(collate(examples[start : start + batch_size]), device)
        output: Output = network(*batch.inputs_of(network))
        answers.append(tuple(value.float().cpu().numpy() for value in (output.logits_BC, output.embedding_BE)))
    logits, embeddings = zip(*answers, strict=True)
    return np.concatenate(logits), np.concatenate(embeddings)


def _integers(values: list[int]) -> Int64:
    return np.array(values, dtype=np.int64)


DEGREES = (0, 1, 2)
FOLDS = 5
SIGNIFICANT = 1.0  # standard errors
DETECTION_GROUPS = (0, 2, 3, 5, 10, 20)  # first number of detections of each group: 0 or 1, 2, 3 and 4, ...
_CHANCE_DRAWS = 20


class CalibrationFit(NamedTuple):
    """A chosen calibration and what it changed on the rows it was fitted to.

    ``candidates`` holds the cross-validated log loss of every degree, and its gain over the degree chosen before it
    with the standard error of that. ``before`` and ``after`` hold scores of all rows and by number of detections.
    """

    calibration: Calibration
    candidates: dict[str, dict[str, float]]
    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]
    objects: int
    rows: int

    def numbers(self) -> dict[str, Any]:
        """Everything but the calibration, for the manifest's metrics."""
        return {name: value for name, value in self._asdict().items() if name != "calibration"}


def softmax(logits_NC: Float, temperature: float | NDArray[np.float64] = 1.0) -> NDArray[np.float64]:
    """Probabilities, shape (N, C), of logits divided by one temperature or by one for each row, in float64."""
    scaled_NC = logits_NC.astype(np.float64) / np.broadcast_to(temperature, len(logits_NC))[:, None]
    probabilities_NC: NDArray[np.float64] = special.softmax(scaled_NC, axis=1)
    return probabilities_NC


def calibrated(logits_NC: Float, length_N: Int64, calibration: Calibration) -> NDArray[np.float64]:
    """Calibrated probabilities, shape (N, C), by number of observations: as in the graph, in float64."""
    return softmax(logits_NC, calibration.temperatures(length_N))


def fit_temperature(logits_NC: Float, label_N: Int64) -> float:
    """Temperature of the smallest log loss, by a bounded search (the loss is convex in 1 / temperature, so it has one).

    Raises
    ------
    ValueError
        Without objects, or with logits that are not finite.
    """
    if not len(label_N) or not np.isfinite(logits_NC).all():
        raise ValueError("a temperature needs at least one object, and finite logits")

    def loss(log_temperature: float) -> float:
        return log_loss(softmax(logits_NC, np.exp(log_temperature)), label_N)

    furthest = np.log(LARGEST_TEMPERATURE)
    minimum = minimize_scalar(loss, bounds=(-furthest, furthest), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(minimum.x))


def fit_by_length(logits_NC: Float, label_N: Int64, length_N: Int64, degree: int) -> Calibration:
    """Temperature of the smallest log loss as a polynomial in ln(length); degree 0 is one temperature."""
    temperature = fit_temperature(logits_NC, label_N)
    if degree == 0:
        return Calibration(method="temperature", temperature=temperature)
    coefficient_K = torch.zeros(degree + 1, dtype=torch.float64)
    coefficient_K[0] = np.log(temperature)
    coefficient_K.requires_grad_()
    powers_NK = torch.from_numpy(np.vander(np.log(length_N), degree + 1, increasing=True))
    logits, label = torch.from_numpy(logits_NC.astype(np.float64)), torch.from_numpy(label_N)
    optimiser = torch.optim.LBFGS([coefficient_K], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        log_temperature_N = (powers_NK @ coefficient_K).clamp(-np.log(LARGEST_TEMPERATURE), np.log(LARGEST_TEMPERATURE))
        value = cross_entropy(logits / log_temperature_N.exp()[:, None], label)
        value.backward()
        return value

    optimiser.step(loss)
    return Calibration(
        method="temperature_by_length",
        temperature=temperature,
        coefficients=tuple(coefficient_K.tolist()),
        lengths=(int(length_N.min()), int(length_N.max())),
    )


def fit_calibration(sample: ServedSample) -> CalibrationFit:
    """Choose and fit a calibration of a validation sample; raises as :func:`fit_temperature` does."""
    degree, candidates = _choose(sample)
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


def calibrate(network: nn.Module, dataset: Dataset, recipe: Recipe) -> CalibrationFit:
    """Calibrate a network on the validation split, over views as served."""
    return fit_calibration(ask_as_served(network, dataset, recipe, "validation"))


def _choose(sample: ServedSample) -> tuple[int, dict[str, dict[str, float]]]:
    """Return the simplest degree that no other beats, and the cross-validated log loss of each that can be tried."""
    losses = {degree: _left_out_losses(sample, degree) for degree in _possible(sample)}
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


def _possible(sample: ServedSample) -> Sequence[int]:
    """Return the degrees that the sample supports: every fold needs objects and different lengths."""
    enough = len(np.unique(sample.object_N)) >= 10 * FOLDS
    return [degree for degree in DEGREES if degree == 0 or (enough and len(np.unique(sample.length_N)) > degree + 1)]


def _left_out_losses(sample: ServedSample, degree: int) -> NDArray[np.float64]:
    """Log loss of every row under the calibration fitted to the folds without its object; in-sample without folds."""
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
    """Rows, log loss, ECE and the ECE of chance: of ``all``, and from each number of detections up to the next."""
    by_group = {"all": _scores(p_NC, label_N)}
    group_N = np.searchsorted(DETECTION_GROUPS, detections_N, side="right") - 1
    for place, start in enumerate(DETECTION_GROUPS):
        if (group_N == place).any():
            by_group[str(start)] = _scores(p_NC[group_N == place], label_N[group_N == place])
    return by_group


def _scores(p_NC: Float, label_N: Int64) -> dict[str, float]:
    return {
        "rows": float(len(label_N)),
        "log_loss": log_loss(p_NC, label_N),
        "ece": ece(p_NC, label_N),
        "ece_by_chance": ece_by_chance(p_NC),
    }


def ece_by_chance(p_NC: Float) -> float:
    """Mean ECE that these probabilities would have if they were exactly right, over draws of the labels."""
    rng = np.random.default_rng(0)
    confidence_N = p_NC.max(1)
    pairs_N2 = np.stack([confidence_N, np.zeros_like(confidence_N)], axis=1)  # right: the first; wrong: the second
    draws = [ece(pairs_N2, (rng.random(len(pairs_N2)) >= confidence_N).astype(np.int64)) for _ in range(_CHANCE_DRAWS)]
    return float(np.mean(draws))
