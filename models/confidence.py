"""What a bundle's manifest says about how far its answers can be believed; torch-free, for training and for serving.

- :class:`Calibration`: how logits became probabilities. What does it is inside the graph; here it is told.
- :class:`Novelty`: how to read the graph's output ``novelty``, the share of validation objects whose embedding lies
  nearer to what was trained on. It sees embeddings, not truth: what resembles a known class is not novel.
- :class:`PredictionSets`: which classes to name so that the true one is among them as often as is stated (split
  conformal prediction, fitted by ``training.score.sets``). They are applied to the probabilities, outside the graph.

Notable: a set holds the most probable class and every class of which 1 - p does not exceed the threshold (the ``lac``
score of Sadinle et al. 2019, which gives the smallest sets, with the score of the most probable class put to 0, so that
no set is empty and a coverage below the accuracy costs nothing). The statement holds on average over light curves like
the validation objects' views, not for each class, nor for objects of no known class.
"""

from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

CalibrationMethod = Literal["none", "temperature", "temperature_by_length"]

LARGEST_TEMPERATURE = 20.0  # a temperature by length is held between its inverse and it, as it was when it was fitted


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Calibration(_Frozen):
    """How the probabilities were calibrated: softmax(logits / temperature), inside the graph.

    Attributes
    ----------
    temperature : of every light curve or, ``temperature_by_length``, the best that a single one could have been.
    coefficients : of ``temperature_by_length``: temperature = exp(sum over k of coefficients[k] * ln(n)**k) with n the
        number of observations that the network sees, held between the inverse of :data:`LARGEST_TEMPERATURE` and it.
    lengths : smallest and largest n of the fit; shorter and longer light curves get the temperature of these.
    ece, split : expected calibration error after the fit, and the split it was fitted and measured on.
    """

    method: CalibrationMethod
    temperature: float = Field(gt=0)
    coefficients: tuple[float, ...] = ()
    lengths: tuple[int, int] | None = None
    ece: float | None = None
    split: str | None = None

    @model_validator(mode="after")
    def _fits_the_method(self) -> Self:
        by_length = self.method == "temperature_by_length"
        if bool(self.coefficients) != by_length or (self.lengths is not None) != by_length:
            raise ValueError("a temperature by length has coefficients and lengths, another calibration neither")
        return self

    def temperatures(self, length_B: NDArray[np.integer]) -> NDArray[np.float64]:
        """Temperature of light curves of so many observations, float64 (B,)."""
        if self.lengths is None:
            return np.full(len(length_B), self.temperature)
        log_length_B = np.log(np.clip(length_B, *self.lengths).astype(np.float64))
        log_temperature_B = np.polynomial.polynomial.polyval(log_length_B, self.coefficients)
        return np.asarray(np.exp(np.clip(log_temperature_B, -np.log(LARGEST_TEMPERATURE), np.log(LARGEST_TEMPERATURE))))


class Novelty(_Frozen):
    """How the graph's output ``novelty`` was made, and from where on it is an alarm.

    Attributes
    ----------
    threshold : a light curve is unusual where ``novelty`` exceeds it.
    false_alarm_rate : share of known objects that do.
    by_detections : the share measured at so many detections or more, up to the next.
    split, objects : what it is a share of; reference_objects : training objects whose embeddings it measures from.
    """

    method: Literal["mahalanobis"] = "mahalanobis"
    threshold: float = Field(ge=0, le=1)
    false_alarm_rate: float = Field(ge=0, le=1)
    by_detections: dict[int, float] = {}
    split: str
    objects: int = Field(ge=1)
    reference_objects: int = Field(ge=1)


class SetThresholds(_Frozen):
    """Largest 1 - p within a set, one for each stated coverage, from ``detections`` detections on."""

    detections: int = Field(ge=0)
    largest: tuple[float, ...]
    views: int = Field(ge=1, description="of validation objects that the thresholds were fitted to")


class NamedSet(NamedTuple):
    """Classes, the most probable first, and how often such a set holds the true one."""

    classes: NDArray[np.intp]
    coverage: float


class PredictionSets(_Frozen):
    """Thresholds by stated coverage and, where one threshold would not hold, by number of detections."""

    method: Literal["lac"] = "lac"
    coverages: tuple[float, ...] = Field(min_length=1)
    default: float
    groups: tuple[SetThresholds, ...] = Field(min_length=1)
    split: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        starts = [group.detections for group in self.groups]
        if list(self.coverages) != sorted(set(self.coverages)) or self.default not in self.coverages:
            raise ValueError("coverages must ascend and hold the default")
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError("groups must ascend in detections, from 0 on")
        if any(len(group.largest) != len(self.coverages) for group in self.groups):
            raise ValueError("every group needs a threshold for every coverage")
        return self

    def named(self, probabilities_C: NDArray[np.floating], detections: int, coverage: float | None = None) -> NamedSet:
        """The set of one light curve.

        Parameters
        ----------
        detections : observations that the network saw and the survey calls detected.
        coverage : at least this; the smallest stated one that reaches it is taken, every class where none does.
        """
        order_C = np.argsort(-probabilities_C, kind="stable")
        reached = [place for place, stated in enumerate(self.coverages) if stated >= (coverage or self.default)]
        if not reached:
            return NamedSet(order_C, 1.0)
        group = [group for group in self.groups if group.detections <= detections][-1]
        size = max(1, int(np.count_nonzero(1.0 - probabilities_C <= group.largest[reached[0]])))
        return NamedSet(order_C[:size], self.coverages[reached[0]])
