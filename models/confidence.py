"""Belief in a bundle's answers, as its manifest states it; torch-free, for training and for serving.

- :class:`Calibration`: how logits became probabilities. What does it is inside the graph; here it is told.
- :class:`Novelty`: how to read the graph's output ``novelty``, the share of validation objects whose embedding lies
  nearer to what was trained on. It sees embeddings, not truth: what resembles a known class is not novel.
- :class:`Domain`: where the model was measured, and whether a light curve lies within; the basis of routing
  (:mod:`service.registry`).
- :class:`Ensemble`: the boosted trees that answer beside the network, and how much they count.
- :class:`PredictionSets`: which classes to name so that the true one is among them as often as is stated (split
  conformal prediction, fitted by ``training.score.confidence``). They are applied to the probabilities, after the
  graph.

Notable: a set holds the most probable class and every class of which 1 - p does not exceed the threshold (the ``lac``
score of Sadinle et al. 2019, which gives the smallest sets, with the score of the most probable class put to 0, so that
no set is empty and a coverage below the accuracy costs nothing). The statement holds on average over light curves like
the validation objects' views, not for each class, nor for objects of no known class.
"""

from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.lightcurve import LightCurve
from models.photometry import UNKNOWN, BandMap, magnitude_of

CalibrationMethod = Literal["none", "temperature", "temperature_by_length"]

LARGEST_TEMPERATURE = 20.0  # a temperature by length is held between its inverse and it, as it was when it was fitted


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Calibration(_Frozen):
    """Calibration of the probabilities: softmax(logits / temperature), inside the graph.

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


class Ensemble(_Frozen):
    """Boosted trees inside the graph: log p = w log p(trees) + (1 - w) log p(network) + a constant, before calibration.

    Attributes
    ----------
    trees, nodes, depth : how many trees, their nodes and leaves together, and comparisons down the deepest of them.
    coefficients : log odds of the trees' weight w: a constant, what every ln(n) adds with n the number of observations
        that the network sees, and what a known redshift adds.
    lengths : smallest and largest n of the fit; shorter and longer light curves get the weight of these.
    split : what the coefficients were fitted on; the trees were fitted on other objects.
    """

    trees: int = Field(ge=1)
    nodes: int = Field(ge=1)
    depth: int = Field(ge=1)
    coefficients: tuple[float, float, float]
    lengths: tuple[int, int]
    split: str

    def weights(self, length_B: NDArray[np.integer], has_redshift_B: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Weight of the trees for light curves of so many observations, float64 (B,)."""
        constant, per_length, redshift = self.coefficients
        log_length_B = np.log(np.clip(length_B, *self.lengths).astype(np.float64))
        odds_B = constant + per_length * log_length_B + redshift * has_redshift_B
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * odds_B))


class Novelty(_Frozen):
    """Reading of the graph's output ``novelty``: how it was made, and from where on it is an alarm.

    A light curve beyond the threshold is *unusual*: no prediction set is stated for it, since coverage was measured on
    objects like those that the network knows.

    Attributes
    ----------
    threshold : a light curve is unusual where ``novelty`` exceeds it.
    thresholds_by_detections : the threshold from so many detections on, where one does not serve all.
    false_alarm_rate : share of known objects that the threshold calls unusual.
    by_detections : the share measured at so many detections or more, up to the next.
    split, objects : what it is a share of; reference_objects : training objects whose embeddings it measures from.
    """

    method: Literal["mahalanobis", "neighbours", "fitted"] = "mahalanobis"
    threshold: float = Field(ge=0, le=1)
    thresholds_by_detections: dict[int, Annotated[float, Field(ge=0, le=1)]] = {}
    false_alarm_rate: float = Field(ge=0, le=1)
    by_detections: dict[int, float] = {}
    split: str
    objects: int = Field(ge=1)
    reference_objects: int = Field(ge=1)

    def unusual(self, novelty: float, detections: int) -> bool:
        """Tell whether a light curve of so many detections is beyond what the network knows."""
        reached = [start for start in self.thresholds_by_detections if start <= detections]
        return novelty > (self.thresholds_by_detections[max(reached)] if reached else self.threshold)


class SetThresholds(_Frozen):
    """Largest 1 - p within a set, one for each stated coverage, in one stratum of light curves.

    Attributes
    ----------
    detections, bands, novelty : lower edges of the stratum: observations that the network sees and the survey calls
        detected, bands with an observation, and the graph's ``novelty``.
    views : of validation objects that the thresholds were fitted to.
    """

    detections: int = Field(ge=0)
    bands: int = Field(default=0, ge=0)
    novelty: float = Field(default=0.0, ge=0, le=1)
    largest: tuple[float, ...]
    views: int = Field(ge=1, description="of validation objects that the thresholds were fitted to")

    @property
    def edges(self) -> tuple[int, int, float]:
        """Lower edges, the most important first."""
        return self.detections, self.bands, self.novelty


class NamedSet(NamedTuple):
    """Classes, the most probable first, and how often such a set holds the true one."""

    classes: NDArray[np.intp]
    coverage: float


class PredictionSets(_Frozen):
    """Thresholds by stated coverage and, where one threshold would not hold, by stratum.

    Attributes
    ----------
    floor : no threshold is smaller, so that every class of probability ``1 - floor`` or more is in every set.
    measured_on : the light curves that the coverage was measured on, for people.
    groups : the strata, ascending by their edges; the last one whose edges are all reached applies.
    """

    method: Literal["lac"] = "lac"
    coverages: tuple[float, ...] = Field(min_length=1)
    default: float
    floor: float = Field(default=0.0, ge=0, le=1)
    measured_on: str = ""
    groups: tuple[SetThresholds, ...] = Field(min_length=1)
    split: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if list(self.coverages) != sorted(set(self.coverages)) or self.default not in self.coverages:
            raise ValueError("coverages must ascend and hold the default")
        edges = [group.edges for group in self.groups]
        if edges != sorted(set(edges)):
            raise ValueError("groups must ascend in detections, bands and novelty")
        if edges[0] != (0, 0, 0.0) or any(
            missing not in edges
            for detections, bands, _ in edges
            for missing in ((detections, 0, 0), (detections, bands, 0))
        ):
            raise ValueError("groups must begin at 0: detections, the bands of each, and the novelty of each of those")
        if any(len(group.largest) != len(self.coverages) for group in self.groups):
            raise ValueError("every group needs a threshold for every coverage")
        if any(largest < self.floor for group in self.groups for largest in group.largest):
            raise ValueError("no threshold may be below the floor")
        return self

    def named(
        self,
        probabilities_C: NDArray[np.floating],
        detections: int,
        coverage: float | None = None,
        *,
        bands: int = 0,
        novelty: float = 0.0,
    ) -> NamedSet:
        """Name the set of one light curve.

        Parameters
        ----------
        detections, bands, novelty : of the light curve, as :class:`SetThresholds` tells them.
        coverage : at least this; the smallest stated one that reaches it is taken, every class where none does.
        """
        order_C = np.argsort(-probabilities_C, kind="stable")
        reached = [place for place, stated in enumerate(self.coverages) if stated >= (coverage or self.default)]
        if not reached:
            return NamedSet(order_C, 1.0)
        group = self._group(detections, bands, novelty)
        size = max(1, int(np.count_nonzero(1.0 - probabilities_C <= group.largest[reached[0]])))
        return NamedSet(order_C[:size], self.coverages[reached[0]])

    def _group(self, detections: int, bands: int, novelty: float) -> SetThresholds:
        start = max(group.detections for group in self.groups if group.detections <= detections)
        first = [group for group in self.groups if group.detections == start]
        fewest = max(group.bands for group in first if group.bands <= bands)
        return [group for group in first if group.bands == fewest and group.novelty <= novelty][-1]


class Domain(BaseModel):
    """The light curves on which a model's quality was measured.

    Attributes
    ----------
    bands : of the bundle that count for it.
    fewest_bands, fewest_points : with points, and points in those bands.
    faintest_njy, brightest_njy : of the brightest detection (of all points where none is detected), nJy; None is open.
    surveys : a light curve that names another is outside; one that names none is not judged by it. Empty: any.
    measured_on : for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bands: tuple[str, ...] = Field(min_length=1)
    fewest_bands: int = Field(default=1, ge=1)
    fewest_points: int = Field(default=1, ge=1)
    faintest_njy: float | None = Field(default=None, gt=0)
    brightest_njy: float | None = Field(default=None, gt=0)
    surveys: tuple[str, ...] = ()
    measured_on: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.faintest_njy and self.brightest_njy and self.faintest_njy >= self.brightest_njy:
            raise ValueError("faintest_njy must be below brightest_njy")
        return self

    def outside(self, curve: LightCurve, bands: BandMap) -> str:
        """Say in words why a light curve lies outside; empty where it lies within.

        Parameters
        ----------
        bands : of the model.
        """
        if self.surveys and curve.survey and curve.survey not in self.surveys:
            return f"measured on {', '.join(self.surveys)}, not on {curve.survey}"
        counted = [bands.indices[bands.bands.index(name)] for name in self.bands]
        band_N = bands.table(curve.survey)[curve.band]
        points_B = np.bincount(band_N - UNKNOWN, minlength=max(counted) - UNKNOWN + 1)  # UNKNOWN is the least of all
        is_counted_B = np.zeros(len(points_B), dtype=np.bool_)
        is_counted_B[np.array(counted) - UNKNOWN] = True
        if points_B[is_counted_B].sum() < self.fewest_points:
            return f"measured on light curves of at least {self.fewest_points} points in {', '.join(self.bands)}"
        if np.count_nonzero(points_B[is_counted_B]) < self.fewest_bands:
            return f"measured on light curves in at least {self.fewest_bands} bands of {', '.join(self.bands)}"
        within_N = is_counted_B[band_N - UNKNOWN]
        found_N = within_N & curve.detected
        bright_N = found_N if found_N.any() else within_N
        return self._brightness(float(np.abs(curve.flux[bright_N]).max()))

    def _brightness(self, peak: float) -> str:
        if self.faintest_njy is not None and peak < self.faintest_njy:
            return f"the brightest point has {_told(peak)}, measured from {_told(self.faintest_njy)} on"
        if self.brightest_njy is not None and peak > self.brightest_njy:
            return f"the brightest point has {_told(peak)}, measured up to {_told(self.brightest_njy)}"
        return ""


def _told(flux_njy: float) -> str:
    return f"{flux_njy:.3g} nJy ({magnitude_of(flux_njy):.1f} mag)" if flux_njy > 0 else "0 nJy"
