"""Posterior probabilities, prediction sets, novelty and domain, computed from the outputs of the graph.

Parts of the manifest:

- :class:`Novelty`: interpretation of the graph's output ``novelty``, the fraction of validation objects whose embedding
  is nearer to the training data. It uses embeddings only: an unknown type that resembles a known class is not novel.
- :class:`PredictionSets`: thresholds of prediction sets with a stated coverage (split conformal prediction, fitted by
  ``training.confidence.sets``), applied to the probabilities. A set contains the most probable class and all classes
  with 1 - p up to the threshold (the ``lac`` score of Sadinle et al. 2019, which gives the smallest sets, with the
  score of the most probable class set to 0, so that no set is empty). The coverage holds on average over light curves
  like those of the validation objects, not for each class, nor for objects of unknown classes.
- :class:`Domain`: light curves on which the model was measured; used for routing (:mod:`routing`).

:class:`Posterior` applies them. The graph's probabilities are a posterior under the class shares of the calibration.
Other shares (:mod:`models.taxonomy`) and other evidence about the object (:class:`models.metadata.Evidence`) are
applied as factors (Saerens et al. 2002, Neural Computation 14, 21):

    p'(class) = p(class) * new share / assumed share * likelihood factors, normalised.

This is computed in float64 outside the graph. A light curve whose novelty exceeds the bundle's threshold is *unusual*:
the coverage is unknown for it, so it gets no prediction set.

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


class Frozen(BaseModel):
    """Part of a manifest: cannot be changed, and has no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Novelty(Frozen):
    """Method and thresholds of the graph's output ``novelty``.

    A light curve beyond the threshold is *unusual* and gets no prediction set, because coverage was measured on objects
    of the known classes.

    Attributes
    ----------
    threshold : a light curve is unusual if ``novelty`` exceeds it.
    thresholds_by_detections : thresholds by minimum number of detections, which take precedence.
    false_alarm_rate : fraction of known objects that are called unusual.
    by_detections : measured fraction by minimum number of detections, up to the next one.
    split, objects : split, and number of its objects, of which ``novelty`` is a fraction.
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
        """Return whether a light curve with this novelty and number of detections is unusual."""
        reached = [start for start in self.thresholds_by_detections if start <= detections]
        return novelty > (self.thresholds_by_detections[max(reached)] if reached else self.threshold)


class SetThresholds(Frozen):
    """Thresholds of one stratum of light curves: largest 1 - p within a set, for each stated coverage.

    Attributes
    ----------
    detections, bands, novelty : lower edges of the stratum: number of detections that the network sees, number of bands
        with an observation, and the graph's ``novelty``.
    views : number of light curves of validation objects that the thresholds were fitted to.
    """

    detections: int = Field(ge=0)
    bands: int = Field(default=0, ge=0)
    novelty: float = Field(default=0.0, ge=0, le=1)
    largest: tuple[float, ...]
    views: int = Field(ge=1, description="of validation objects that the thresholds were fitted to")

    @property
    def edges(self) -> tuple[int, int, float]:
        """Lower edges of detections, bands and novelty, by which strata are sorted."""
        return self.detections, self.bands, self.novelty


class NamedSet(NamedTuple):
    """Indices of the classes of a set, the most probable first, and its coverage."""

    classes: NDArray[np.intp]
    coverage: float


class PredictionSets(Frozen):
    """Thresholds of prediction sets by stated coverage and stratum of light curves.

    Attributes
    ----------
    floor : minimum threshold; every class with a probability of at least ``1 - floor`` is in every set.
    measured_on : description of the light curves that the coverage was measured on.
    groups : strata, in ascending order of their edges; the last one whose edges are all reached applies.
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
        """Return the prediction set of one light curve.

        Parameters
        ----------
        detections, bands, novelty : of the light curve, as in :class:`SetThresholds`.
        coverage : minimum coverage; the smallest stated one that reaches it is used. If none does, the set has all
            classes.
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
        """Return the class indices of the sets of several light curves, as :meth:`named` does, and the coverage.

        Parameters
        ----------
        rows : probabilities of each, as lists, because NumPy is slower for so few numbers.
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
        """Lower edges of detections and, for each, lower edges of bands with their strata in ascending novelty."""
        starts = sorted({group.detections for group in self.groups})
        by_bands = []
        for start in starts:
            first = [group for group in self.groups if group.detections == start]
            fewest = sorted({group.bands for group in first})
            by_bands.append((fewest, [[group for group in first if group.bands == bands] for bands in fewest]))
        return starts, by_bands


def _most_probable_first(row: Sequence[float], indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(indices, key=row.__getitem__, reverse=True))  # stable: ties keep their order


class Domain(BaseModel):
    """Domain of a model: the light curves on which its quality was measured.

    Attributes
    ----------
    bands : bands of the bundle that count.
    fewest_bands, fewest_points : minimum number of those bands with points, and of points in them.
    faintest_njy, brightest_njy : range of the brightest detection (or the brightest point without detections), nJy;
        None for no limit.
    surveys : light curves of other surveys are outside, but not those without a survey; empty for any survey.
    measured_on : description for people.
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
        """Return why a light curve is outside the domain; empty if it is inside.

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
"""Replacement for probabilities that the graph rounded to zero, before factors are applied."""


class PriorError(ValueError):
    """Invalid class shares; ``pointer`` is a JSON pointer to the invalid one (``/Ia``), or empty."""

    def __init__(self, pointer: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.pointer, self.reason = pointer, reason


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Class shares that a result assumes.

    Attributes
    ----------
    name : name in responses.
    share_C : sums to 1.
    sets : prediction sets to use with these shares.
    measured_on : description of the light curves that the coverage of the sets was measured on.
    """

    name: str
    share_C: NDArray[np.float64]
    sets: PredictionSets | None
    measured_on: str


class CurveSummary(NamedTuple):
    """Properties of a light curve that its posterior depends on.

    Attributes
    ----------
    detections, bands : number of detections, and of bands with observations, in the network's input.
    novelty : output of the graph.
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
    unusual : whether the novelty exceeds the threshold; None if the model has no novelty score.
    classes : class indices of the prediction set, the most probable first; None if there is none.
    coverage : coverage of the set.
    measured_on : description of the light curves that the coverage was measured on.
    evidence : descriptions of the other evidence about the object that was used.
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


class NamedShares(Protocol):
    """Class shares that a client may select by name; the attributes that :class:`Posterior` uses."""

    @property
    def shares(self) -> Mapping[str, float] | None:
        """Weights by class; None for those with the same name in :mod:`models.taxonomy`."""

    @property
    def measured_on(self) -> str:
        """Description of the light curves that the coverage under them was measured on."""

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Thresholds fitted under them; None for the bundle's own."""


class HasName(Protocol):
    """Object with a name."""

    @property
    def name(self) -> str:
        """Name of the object."""


class ClassifierManifest(Protocol):
    """Attributes of :class:`models.bundle.Manifest` that a posterior needs."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def classes(self) -> Taxonomy:
        """Classes, in the order of the probabilities."""

    @property
    def assumed_shares(self) -> Mapping[str, float]:
        """Class shares that the probabilities assume, summing to 1."""

    @property
    def assumed_context(self) -> Context:
        """Evidence that the network has already learned to use."""

    @property
    def novelty(self) -> Novelty | None:
        """Thresholds of the novelty; None if the model has no novelty score."""

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Thresholds of prediction sets; None if there are none."""

    @property
    def prior(self) -> HasName | None:
        """Class shares that the probabilities assume; None if they are not named."""

    @property
    def priors(self) -> Mapping[str, NamedShares]:
        """Other class shares that a client may select, by name."""


class Posterior:
    """Posterior of one classifier: prior, evidence, novelty and prediction sets applied to the outputs of the graph."""

    def __init__(self, manifest: ClassifierManifest) -> None:
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
        """Names of the class shares that this model supports."""
        offered = {*self._manifest.priors, *(name for name in _NAMES if rates(name, self._classes))}
        return tuple(sorted(offered | ({self.default.name} if self.default.name else set())))

    def prior(self, shares: str | Mapping[str, float] | None) -> Prior:
        """Return the class shares for a name or for weights by class; None gives those of the calibration.

        Raises
        ------
        PriorError
            For an unknown name or class, or weights that are negative, not finite or all zero.
        """
        if shares is None:
            return self.default
        return self.named(shares) if isinstance(shares, str) else self._from_weights(shares)

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

    def _from_weights(self, weights: Mapping[str, float]) -> Prior:
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
        probabilities_C : output of the graph.
        detections, bands, novelty, metadata : as in :class:`CurveSummary`.
        prior : class shares from :meth:`prior`; by default those of the calibration.
        coverage : requested coverage of the set; by default the model's.
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
        """Return the result of each light curve, as :meth:`apply_prior` does for one.

        Parameters
        ----------
        rows : probabilities of the graph, as lists, because NumPy is slower for so few numbers.
        """
        prior = prior or self.default
        reweighted = [self._apply_evidence_and_prior(row, one, prior) for row, one in zip(rows, summaries, strict=True)]
        values = [_normalised(row) for row, _ in reweighted]
        rule = self._manifest.novelty
        unusual = [
            None if rule is None or one.novelty is None else rule.unusual(one.novelty, one.detections)
            for one in summaries
        ]
        if prior.sets is None:
            columns = zip(values, unusual, reweighted, strict=True)
            return [
                PosteriorResult(row, prior.name, is_unusual, evidence=evidence)
                for row, is_unusual, (_, evidence) in columns
            ]
        edges = [(one.detections, one.bands, one.novelty or 0.0) for one in summaries]
        members, reached = prior.sets.members_each(values, edges, coverage)
        return [
            PosteriorResult(row, prior.name, is_unusual, evidence=evidence)
            if is_unusual
            else PosteriorResult(row, prior.name, is_unusual, classes, reached, prior.measured_on, evidence)
            for row, is_unusual, classes, (_, evidence) in zip(values, unusual, members, reweighted, strict=True)
        ]

    def _apply_evidence_and_prior(
        self, row: Sequence[float], summary: CurveSummary, prior: Prior
    ) -> tuple[Sequence[float], tuple[str, ...]]:
        """Reweight the graph's probabilities by the metadata and the prior; also return the evidence used."""
        factors = self._evidence.factors(summary.metadata) if summary.metadata else None
        if factors is not None:
            return self._reweighted(row, prior, factors.log_C, factors.texts)
        return (row, ()) if prior is self.default else self._reweighted(row, prior, None, ())

    def _reweighted(
        self, row: Sequence[float], prior: Prior, log_C: NDArray[np.float64] | None, evidence: tuple[str, ...]
    ) -> tuple[list[float], tuple[str, ...]]:
        """Apply shares and factors. Ignore factors that exclude all classes; ``evidence`` states this."""
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
    total = math.fsum(row) or 1.0  # 0 if a network excludes every class
    return [value / total for value in row]


_NAMES = (UNIFORM, *NAMED)


def normalised(weights: Mapping[str, float], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Return weights as shares of ``classes``, shape (C,), summing to 1; missing classes get 0.

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
