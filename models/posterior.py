"""The posterior of a light curve: what a graph answers, under other class shares and with evidence.

The graph's probabilities are a posterior under the class shares that it was calibrated for. Other shares and what is
known besides the light curve enter as factors (Saerens et al. 2002, Neural Computation 14, 21):

    p'(class) = p(class) * new share / assumed share * likelihood factors, normalised.

All of it is float64 and outside the graph, the same for training's tables, HTTP and the stream. A light curve whose
novelty is beyond the bundle's threshold is *unusual*: nothing is known about the coverage of a set for it, so none is
stated.

Class shares that a client may name in place of those a bundle was calibrated for, with where they come from.

Shares are of *objects* that a survey finds, not of alerts: an object sends many alerts or few, according to its class.
They are relative, and a class that a map leaves out has none.

Legend: C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.bundle import Manifest
from models.confidence import PredictionSets
from models.metadata import Evidence

UNIFORM: Final = "uniform"
LSST_ALERTS: Final = "lsst-alerts"
ZTF_BRIGHT: Final = "ztf-bright"


@dataclass(frozen=True, slots=True)
class Rates:
    """Relative class shares by class name, and their source."""

    shares: Mapping[str, float]
    source: str


_PLASTICC: Final = {
    "Ia": 1_659_831, "II": 1_000_150, "Ib/c": 175_094, "Iax": 63_664, "91bg": 40_193, "SLSN": 35_782, "TDE": 13_555,
    "CART": 9_680, "ILOT": 1_702, "PISN": 1_172, "KN": 133, "AGN": 101_424, "RR Lyrae": 197_155,
    "M-dwarf Flare": 93_494, "EB": 96_572, "uLens": 1_303 + 533,
}  # fmt: skip
# Chen et al. 2020 list 46,393 RR Lyrae (ab and c), 1,620 Cepheids (both types) and 16,709 Delta Scuti stars; the types
# that the Transient Name Server has for supernovae of ZTF are 132 IIb beside 415 Ib, Ic, Ic-BL and Ib/c.
_BESIDE_PLASTICC: Final = {
    "Cepheid": 197_155 * 1_620 / 46_393,
    "Delta Scuti": 197_155 * 16_709 / 46_393,
    "SN-like/Other": 175_094 * 132 / 415,
    "Dwarf Novae": 35_000,
}

_LSST_20: Final = Rates(
    {**_PLASTICC, **_BESIDE_PLASTICC},
    "objects of the PLAsTiCC test set, three simulated years of LSST (Kessler et al. 2019, PASP 131, 094501); Cepheids "
    "and Delta Scuti stars by their number beside RR Lyrae in ZTF (Chen et al. 2020, ApJS 249, 18), IIb "
    "(SN-like/Other) by theirs beside Ib/c among typed supernovae of ZTF, dwarf novae assumed to be 1 % of all",
)
_TYPED: Final = (
    "types on the Transient Name Server of 8,748 supernovae with alerts of ZTF, mostly brighter than 19 mag, which the "
    "Bright Transient Survey made complete to 18.5 mag (Perley et al. 2020, ApJ 904, 35)"
)
_ZTF_20: Final = Rates(
    {"Ia": 5_991 + 193 + 50 + 13, "II": 1_230 + 110 + 234, "Ib/c": 415, "SN-like/Other": 132, "91bg": 51, "Iax": 25,
     "SLSN": 109 + 68, "TDE": 8_748 * 30 / 4_000},
    f"{_TYPED}; tidal disruption events by the 30 beside almost 4,000 supernovae of its first phase (Hammerstein et "
    "al. 2023, ApJ 942, 9); active galaxies and variable stars, which that survey leaves out, have no share",
)  # fmt: skip
_ZTF_6: Final = Rates(
    {"Ia": 5_991 + 193 + 50 + 13 + 51, "II": 1_230 + 110 + 132, "Ibc": 415, "IIn": 234, "SLSN-I": 109, "SLSN-II": 68},
    _TYPED,
)

NAMED: Final[Mapping[str, tuple[Rates, ...]]] = {LSST_ALERTS: (_LSST_20,), ZTF_BRIGHT: (_ZTF_20, _ZTF_6)}


def rates(name: str, classes: Sequence[str]) -> Rates | None:
    """Return the shares of that name for a set of classes, None where there are none."""
    if name == UNIFORM:
        return Rates(dict.fromkeys(classes, 1.0), "equal shares")
    known = set(classes)
    return next((found for found in NAMED.get(name, ()) if found.shares.keys() <= known), None)


def class_shares(name: str, classes: Sequence[str]) -> dict[str, float] | None:
    """Return the class shares of that name, summing to 1 over all ``classes``, None where there are none."""
    found = rates(name, classes)
    if found is None:
        return None
    total = sum(found.shares.values())
    return {label: found.shares.get(label, 0.0) / total for label in classes}


SMALLEST: float = float(np.finfo(np.float32).tiny)
"""Stand-in for a probability that the graph rounded to zero, where factors are applied."""


class PriorError(ValueError):
    """Class shares that cannot be used; ``pointer`` leads to the fault within them (``/Ia``), empty for all of them."""

    def __init__(self, pointer: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.pointer, self.reason = pointer, reason


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Class shares asked for.

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


@dataclass(frozen=True, slots=True, eq=False)
class Conclusion:
    """Conclusion about one light curve.

    Attributes
    ----------
    probabilities : shape (C,), float64, sums to 1.
    prior : name of the class shares.
    unusual : whether the novelty is beyond the threshold; None where the model does not tell novelty.
    classes : of the prediction set, the most probable first; None where none is stated.
    coverage : that the set was made for.
    measured_on : what coverage was measured on.
    evidence : what else was known of the object and used, for people.
    """

    probabilities: NDArray[np.float64]
    prior: str
    unusual: bool | None = None
    classes: tuple[int, ...] | None = None
    coverage: float | None = None
    measured_on: str = ""
    evidence: tuple[str, ...] = ()


class Posterior:
    """Concludes in the name of one classifier."""

    def __init__(self, manifest: Manifest) -> None:
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

    def prior(self, asked: str | Mapping[str, float] | None) -> Prior:
        """Return the class shares of a name or a map of class to weight; those of the calibration without either.

        Raises
        ------
        PriorError
            For a name that this model does not have, an unknown class, or weights that are negative, not finite or
            all zero.
        """
        if asked is None:
            return self.default
        return self.named(asked) if isinstance(asked, str) else self._weighted(asked)

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

    def conclude(
        self,
        probabilities_C: NDArray[np.floating],
        *,
        detections: int = 0,
        bands: int = 0,
        novelty: float | None = None,
        known: Mapping[str, float] | None = None,
        prior: Prior | None = None,
        coverage: float | None = None,
    ) -> Conclusion:
        """Conclude on one light curve.

        Parameters
        ----------
        probabilities_C : of the graph.
        detections, bands : that the network saw.
        novelty : of the graph.
        known : metadata of the light curve, by name.
        prior : class shares, by :meth:`prior`; those of the calibration by default.
        coverage : that the set shall have; the model's own by default.
        """
        prior = prior or self.default
        factors = self._evidence.factors(known) if known else None
        p_C, told = probabilities_C.astype(np.float64), factors.told if factors else ()
        if prior is not self.default or factors is not None:
            p_C, told = self._reweighted(p_C, prior, factors.log_C if factors else None, told)
        p_C /= p_C.sum()
        rule = self._manifest.novelty
        unusual = None if rule is None or novelty is None else rule.unusual(novelty, detections)
        if prior.sets is None or unusual:
            return Conclusion(p_C, prior.name, unusual, evidence=told)
        named = prior.sets.named(p_C, detections, coverage, bands=bands, novelty=novelty or 0.0)
        classes = tuple(named.classes.tolist())
        return Conclusion(p_C, prior.name, unusual, classes, named.coverage, prior.measured_on, told)

    def _reweighted(
        self, p_C: NDArray[np.float64], prior: Prior, log_C: NDArray[np.float64] | None, told: tuple[str, ...]
    ) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Apply shares and factors; factors that contradict the shares altogether are left out, and that is told."""
        with np.errstate(divide="ignore"):
            total_C = np.log(np.maximum(p_C, SMALLEST)) + np.log(prior.share_C) - np.log(self._assumed_C)
        if log_C is not None:
            if math.isinf(float(np.max(total_C + log_C))):
                told = ("what is known of the object contradicts every class of the prior, and is left out",)
            else:
                total_C = total_C + log_C
        return np.exp(total_C - total_C.max()), told


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
        if not number or not math.isfinite(weight) or weight < 0:
            raise PriorError(_pointer(name), "not_a_weight", "a weight must be a number, finite and not negative")
    weight_C = np.array([float(weights.get(name, 0.0)) for name in classes])
    if not weight_C.any():
        raise PriorError("", "no_weight", "at least one class needs a weight above zero")
    scaled_C = weight_C / weight_C.max()  # sums of huge weights may overflow
    return np.asarray(scaled_C / scaled_C.sum())


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _unmeasured(name: str) -> str:
    return f"not measured for the prior {name!r}: thresholds are those of the model's own class shares"
