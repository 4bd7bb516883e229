"""From the graph's outputs to what a reply states: calibrated probabilities, prediction sets, novelty and domain.

**Stated**, in the manifest:

- :class:`Novelty`: how to read the graph's output ``novelty``, the share of validation objects whose embedding lies
  nearer to what was trained on. It sees embeddings, not truth: what resembles a known class is not novel.
- :class:`PredictionSets`: which classes to name so that the true one is among them as often as is stated (split
  conformal prediction, fitted by ``training.score.confidence``). They are applied to the probabilities, after the
  graph. A set holds the most probable class and every class of which 1 - p does not exceed the threshold (the ``lac``
  score of Sadinle et al. 2019, which gives the smallest sets, with the score of the most probable class put to 0, so
  that no set is empty and a coverage below the accuracy costs nothing). The statement holds on average over light
  curves like the validation objects' views, not for each class, nor for objects of no known class.
- :class:`Domain`: where the model was measured, and whether a light curve lies within; the basis of routing
  (:mod:`service.registry`).

**Concluded** (:class:`Posterior`): the graph's probabilities are a posterior under the class shares that it was
calibrated for. Other shares (:mod:`models.taxonomy`) and what is known besides the light curve
(:class:`models.metadata.Evidence`) enter as factors (Saerens et al. 2002, Neural Computation 14, 21):

    p'(class) = p(class) * new share / assumed share * likelihood factors, normalised.

All of it is float64 and outside the graph, the same for training's tables, HTTP and the stream. A light curve whose
novelty is beyond the bundle's threshold is *unusual*: nothing is known about the coverage of a set for it, so none is
stated.

Legend: C classes.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import Context, Evidence
from nightjar_alerts.models.photometry import UNKNOWN, BandMap, magnitude_of
from nightjar_alerts.models.taxonomy import NAMED, UNIFORM, Taxonomy, class_shares, rates


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    split, objects : the split, and how many objects of it, that ``novelty`` is a share of.
    reference_objects : number of training objects to whose embeddings distances are measured.
    """

    method: Literal["mahalanobis", "fitted"] = "mahalanobis"
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
        detections, bands, novelty : of the light curve, as in :class:`SetThresholds`.
        coverage : at least this; the smallest stated one that reaches it is taken, every class where none does.
        """
        order_C = np.argsort(-probabilities_C, kind="stable")
        place = bisect_left(self.coverages, coverage or self.default)
        if place == len(self.coverages):
            return NamedSet(order_C, 1.0)
        largest = self._group(detections, bands, novelty).largest[place]
        size = max(1, int(np.count_nonzero(1.0 - probabilities_C <= largest)))
        return NamedSet(order_C[:size], self.coverages[place])

    def members_each(
        self, rows: Sequence[Sequence[float]], edges: Sequence[tuple[int, int, float]], coverage: float | None = None
    ) -> tuple[list[tuple[int, ...]], float]:
        """Return the classes of the set of each of several light curves, as :meth:`named` has them, and the coverage.

        Parameters
        ----------
        rows : probabilities of each, so few that numpy would take longer over them.
        edges : detections, bands and novelty of each.
        """
        place = bisect_left(self.coverages, coverage or self.default)
        if place == len(self.coverages):
            return [_most_probable_first(row, range(len(row))) for row in rows], 1.0
        members = []
        for row, reached in zip(rows, edges, strict=True):
            largest = self._group(*reached).largest[place]
            within = [index for index, value in enumerate(row) if 1.0 - value <= largest]
            members.append(_most_probable_first(row, within or [row.index(max(row))]))
        return members, self.coverages[place]

    def _group(self, detections: int, bands: int, novelty: float) -> SetThresholds:
        starts, by_bands = self._strata
        fewest, groups = by_bands[bisect_right(starts, detections) - 1]
        of_bands = groups[bisect_right(fewest, bands) - 1]
        return of_bands[bisect_right([group.novelty for group in of_bands], novelty) - 1]

    @cached_property
    def _strata(self) -> tuple[list[int], list[tuple[list[int], list[list[SetThresholds]]]]]:
        """Lower edges of detections and, for each, those of bands with the groups of each, ascending in novelty."""
        starts = sorted({group.detections for group in self.groups})
        by_bands = []
        for start in starts:
            first = [group for group in self.groups if group.detections == start]
            fewest = sorted({group.bands for group in first})
            by_bands.append((fewest, [[group for group in first if group.bands == bands] for bands in fewest]))
        return starts, by_bands


def _most_probable_first(row: Sequence[float], indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(indices, key=row.__getitem__, reverse=True))  # of equal ones the first, as a stable sort has it


class Domain(BaseModel):
    """The light curves on which a model's quality was measured.

    Attributes
    ----------
    bands : of the bundle that count for it.
    fewest_bands, fewest_points : with points, and points in those bands.
    faintest_njy, brightest_njy : of the brightest detection (of all points where none is detected), nJy; None is open.
    surveys : a light curve of another survey is outside; one that names no survey is not. Empty: any survey.
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
        band_of_filter = bands.chosen(self.bands, curve.survey)
        per_filter = zip(np.bincount(curve.band).tolist(), band_of_filter, strict=False)
        counts = [(band, count) for count, band in per_filter if count and band != UNKNOWN]
        points = sum(count for _, count in counts)
        if points < self.fewest_points:
            return f"measured on light curves of at least {self.fewest_points} points in {', '.join(self.bands)}"
        if len({band for band, _ in counts}) < self.fewest_bands:
            return f"measured on light curves in at least {self.fewest_bands} bands of {', '.join(self.bands)}"
        detected_N, flux_N = curve.detected, curve.flux
        if points < len(curve):
            within_N = np.array(band_of_filter)[curve.band] != UNKNOWN
            detected_N, flux_N = detected_N[within_N], flux_N[within_N]
        peak_N = np.abs(flux_N[detected_N] if np.count_nonzero(detected_N) else flux_N)
        return self._brightness(float(peak_N[peak_N.argmax()]))

    def _brightness(self, peak: float) -> str:
        if self.faintest_njy is not None and peak < self.faintest_njy:
            return f"the brightest point has {_flux_text(peak)}, measured from {_flux_text(self.faintest_njy)} on"
        if self.brightest_njy is not None and peak > self.brightest_njy:
            return f"the brightest point has {_flux_text(peak)}, measured up to {_flux_text(self.brightest_njy)}"
        return ""


def _flux_text(flux_njy: float) -> str:
    return f"{flux_njy:.3g} nJy ({magnitude_of(flux_njy):.1f} mag)" if flux_njy > 0 else "0 nJy"


SMALLEST: float = float(np.finfo(np.float32).tiny)
"""Stand-in for a probability that the graph rounded to zero, where factors are applied."""


class PriorError(ValueError):
    """Class shares that cannot be used; ``pointer`` leads to the fault within them (``/Ia``), empty for all of them."""

    def __init__(self, pointer: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.pointer, self.reason = pointer, reason


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Class shares that a result assumes.

    Attributes
    ----------
    name : as replies call it.
    share_C : sums to 1.
    sets : the prediction sets that hold under them.
    measured_on : what the coverage of the sets was measured on, for people.
    """

    name: str
    share_C: NDArray[np.float64]
    sets: PredictionSets | None
    measured_on: str


class CurveSummary(NamedTuple):
    """Facts of a light curve that its posterior depends on.

    Attributes
    ----------
    detections, bands : that the network saw.
    novelty : of the graph.
    metadata : of the light curve, by name.
    """

    detections: int = 0
    bands: int = 0
    novelty: float | None = None
    metadata: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorResult:
    """Calibrated result of one light curve: probabilities under a prior, and the prediction set.

    Attributes
    ----------
    values : probability of each class; they sum to 1.
    prior : name of the class shares.
    unusual : whether the novelty is beyond the threshold; None where the model has no novelty score.
    classes : of the prediction set, the most probable first; None where none is stated.
    coverage : that the set was made for.
    measured_on : what coverage was measured on.
    evidence : other facts about the object that were used, for people.
    """

    values: Sequence[float]
    prior: str
    unusual: bool | None = None
    classes: tuple[int, ...] | None = None
    coverage: float | None = None
    measured_on: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each class, shape (C,)."""
        return np.array(self.values)


class SharesStated(Protocol):
    """Class shares that a client may name, as far as :class:`Posterior` needs them."""

    @property
    def shares(self) -> Mapping[str, float] | None:
        """Weights by class; None for those of that name in :mod:`models.taxonomy`."""

    @property
    def measured_on(self) -> str:
        """Light curves that the coverage under them was measured on, for people."""

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Thresholds fitted under them; None for the bundle's own."""


class Named(Protocol):
    """A thing with a name."""

    @property
    def name(self) -> str:
        """Return the name."""


class Stated(Protocol):
    """Statements of a classifier's manifest that a posterior needs; :class:`models.bundle.Manifest` makes them."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def classes(self) -> Taxonomy:
        """Classes, in the order of the probabilities."""

    @property
    def assumed_shares(self) -> Mapping[str, float]:
        """Class shares that the answers assume, summing to 1."""

    @property
    def assumed_context(self) -> Context:
        """Evidence that the network has had already."""

    @property
    def novelty(self) -> Novelty | None:
        """Rule of the novelty; None where the model does not tell it."""

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Thresholds of sets; None where none are stated."""

    @property
    def prior(self) -> Named | None:
        """Name of the class shares that the answers assume; None where they have none."""

    @property
    def priors(self) -> Mapping[str, SharesStated]:
        """Others that a client may name."""


class Posterior:
    """Posterior of one classifier: prior, evidence, novelty and prediction sets applied to the outputs of the graph."""

    def __init__(self, manifest: Stated) -> None:
        self._manifest = manifest
        self._classes = manifest.classes.names
        assumed = manifest.assumed_shares
        self._assumed_C = np.array([assumed[name] for name in self._classes])
        self._evidence = Evidence(self._classes, manifest.assumed_context)
        sets = manifest.prediction_sets
        name = manifest.prior.name if manifest.prior else ""
        self.default = Prior(name, self._assumed_C, sets, sets.measured_on if sets else "")
        self.named = lru_cache(maxsize=16)(self._named)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of class shares that this model has."""
        offered = {*self._manifest.priors, *(name for name in _NAMES if rates(name, self._classes))}
        return tuple(sorted(offered | ({self.default.name} if self.default.name else set())))

    def prior(self, shares: str | Mapping[str, float] | None) -> Prior:
        """Return the class shares of a name or a map of class to weight; those of the calibration without either.

        Raises
        ------
        PriorError
            For a name that this model does not have, an unknown class, or weights that are negative, not finite or
            all zero.
        """
        if shares is None:
            return self.default
        return self.named(shares) if isinstance(shares, str) else self._weighted(shares)

    def _named(self, name: str) -> Prior:
        if name == self.default.name:
            return self.default
        measured = self._manifest.priors.get(name)
        shares = measured.shares if measured is not None and measured.shares else None
        shares = shares or class_shares(name, self._classes)
        if shares is None:
            raise PriorError(
                "", "unknown_prior", f"{self._manifest.name} has no prior {name[:40]!r}, but {self._offer}"
            )
        share_C = normalised(shares, self._classes)
        if measured is None and np.allclose(share_C, self._assumed_C, rtol=1e-9):
            return replace(self.default, name=name)
        if measured is None:
            return Prior(name, share_C, self._manifest.prediction_sets, _unmeasured(name))
        sets = measured.prediction_sets or self._manifest.prediction_sets
        return Prior(name, share_C, sets, measured.measured_on)

    def _weighted(self, weights: Mapping[str, float]) -> Prior:
        return Prior(
            "given", normalised(weights, self._classes), self._manifest.prediction_sets, _unmeasured("given weights")
        )

    @property
    def _offer(self) -> str:
        return ", ".join(self.names)

    def apply_prior(
        self,
        probabilities_C: NDArray[np.floating],
        *,
        detections: int = 0,
        bands: int = 0,
        novelty: float | None = None,
        metadata: Mapping[str, float] | None = None,
        prior: Prior | None = None,
        coverage: float | None = None,
    ) -> PosteriorResult:
        """Return the result of one light curve under a prior.

        Parameters
        ----------
        probabilities_C : of the graph.
        detections, bands : that the network saw.
        novelty : of the graph.
        metadata : of the light curve, by name.
        prior : class shares, by :meth:`prior`; those of the calibration by default.
        coverage : that the set shall have; the model's own by default.
        """
        summary = CurveSummary(detections, bands, novelty, metadata or {})
        return self.apply_prior_to_each([probabilities_C.tolist()], [summary], prior, coverage)[0]

    def apply_prior_to_each(
        self,
        rows: Sequence[Sequence[float]],
        summaries: Sequence[CurveSummary],
        prior: Prior | None = None,
        coverage: float | None = None,
    ) -> list[PosteriorResult]:
        """Return the result of each light curve, as :meth:`apply_prior` of one.

        Parameters
        ----------
        rows : probabilities of the graph, as plain numbers: of so few, numpy would take longer to be asked than to
            answer, above all where a run of a network has just left the processor's caches cold.
        """
        prior = prior or self.default
        weighed = [self._weighed(row, one, prior) for row, one in zip(rows, summaries, strict=True)]
        values = [_normalised(row) for row, _ in weighed]
        rule = self._manifest.novelty
        unusual = [
            None if rule is None or one.novelty is None else rule.unusual(one.novelty, one.detections)
            for one in summaries
        ]
        if prior.sets is None:
            columns = zip(values, unusual, weighed, strict=True)
            return [
                PosteriorResult(row, prior.name, strange, evidence=evidence) for row, strange, (_, evidence) in columns
            ]
        edges = [(one.detections, one.bands, one.novelty or 0.0) for one in summaries]
        members, reached = prior.sets.members_each(values, edges, coverage)
        return [
            PosteriorResult(row, prior.name, strange, evidence=evidence)
            if strange
            else PosteriorResult(row, prior.name, strange, classes, reached, prior.measured_on, evidence)
            for row, strange, classes, (_, evidence) in zip(values, unusual, members, weighed, strict=True)
        ]

    def _weighed(
        self, row: Sequence[float], summary: CurveSummary, prior: Prior
    ) -> tuple[Sequence[float], tuple[str, ...]]:
        """Weight the graph's probabilities by the metadata and the prior; return them and the evidence used."""
        factors = self._evidence.factors(summary.metadata) if summary.metadata else None
        if factors is not None:
            return self._reweighted(row, prior, factors.log_C, factors.texts)
        return (row, ()) if prior is self.default else self._reweighted(row, prior, None, ())

    def _reweighted(
        self, row: Sequence[float], prior: Prior, log_C: NDArray[np.float64] | None, evidence: tuple[str, ...]
    ) -> tuple[list[float], tuple[str, ...]]:
        """Apply shares and factors. Factors that contradict all shares are ignored, and ``evidence`` states it."""
        with np.errstate(divide="ignore"):
            total_C = np.log(np.maximum(row, SMALLEST)) + np.log(prior.share_C) - np.log(self._assumed_C)
        if log_C is not None:
            if math.isinf(float(np.max(total_C + log_C))):
                evidence = ("what is known of the object contradicts every class of the prior, and is left out",)
            else:
                total_C = total_C + log_C
        weight: list[float] = np.exp(total_C - total_C.max()).tolist()
        return weight, evidence


def _normalised(row: Sequence[float]) -> list[float]:
    total = math.fsum(row) or 1.0  # of a network that rules out every class
    return [value / total for value in row]


_NAMES = (UNIFORM, *NAMED)


def normalised(weights: Mapping[str, float], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Return weights as shares of ``classes``, shape (C,), summing to 1; a class that is left out has none.

    Raises
    ------
    PriorError
        For an unknown class, and weights that are negative, not finite or all zero.
    """
    for name, weight in weights.items():
        if name not in classes:
            raise PriorError(_pointer(name), "unknown_class", f"no class {name[:60]!r}; they are {', '.join(classes)}")
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= sys.float_info.max:  # an integer may be larger than any float
            raise PriorError(_pointer(name), "not_a_weight", "a weight must be a number, finite and not negative")
    weight_C = np.array([float(weights.get(name, 0.0)) for name in classes])
    if not weight_C.any():
        raise PriorError("", "no_weight", "at least one class needs a weight above zero")
    scaled_C = weight_C / weight_C.max()  # sums of huge weights may overflow
    return np.asarray(scaled_C / scaled_C.sum())


def _pointer(name: str) -> str:
    return "/" + name[:60].replace("~", "~0").replace("/", "~1")


def _unmeasured(name: str) -> str:
    return f"not measured for the prior {name!r}: thresholds are those of the model's own class shares"
