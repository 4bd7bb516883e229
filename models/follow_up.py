"""Purity and completeness of lists of objects for follow-up, stated by a bundle for each class.

A list has the objects whose probability of a class is at least a threshold and that are not unusual. Its purity is the
fraction of true members of the class, its completeness the fraction of all objects of the class that are in it. Both
depend on the mix of classes (purity) and on how long the object has been observed, so a bundle states them for class
shares (:mod:`models.taxonomy`) and for light curves that end a number of days after the first detection.
``training.score.follow_up`` measures them.
"""

import math
from collections.abc import Iterable
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.posterior import Frozen

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Estimate = tuple[Fraction, Fraction, Fraction]
"""Median, and 95 % interval."""
FEWEST = 30
"""Objects of a class for which purity is stated."""


class Horizon(Frozen):
    """Purity and completeness of one class for light curves of one duration.

    Attributes
    ----------
    days : from the first detection to the end of the light curves; None for complete ones.
    objects : number of measured objects of the class.
    purity, completeness : at each threshold of :class:`FollowUp`; empty for fewer than :data:`FEWEST` objects.
    """

    days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    objects: int = Field(ge=0)
    purity: tuple[Estimate, ...] = ()
    completeness: tuple[Estimate, ...] = ()


class Cut(NamedTuple):
    """Threshold of a list, with what it achieves on light curves of up to ``days``."""

    days: float | None
    threshold: float
    purity: Estimate
    completeness: Estimate


class FollowUp(Frozen):
    """Lists for follow-up under one mix of classes.

    Attributes
    ----------
    thresholds : of the probability under these class shares, ascending.
    classes : horizons by class, the shortest first, complete light curves last.
    measured_on : description of the objects.
    """

    thresholds: tuple[Fraction, ...] = Field(min_length=1)
    classes: dict[str, tuple[Horizon, ...]]
    measured_on: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError("thresholds must rise")
        for name, horizons in self.classes.items():
            days = [_length(one.days) for one in horizons]
            if days != sorted(set(days)) or days[-1:] != [math.inf]:
                raise ValueError(f"{name}: horizons must rise and end with null")
            for one in horizons:
                if {len(one.purity), len(one.completeness)} - {len(self.thresholds)} and (
                    one.purity or one.completeness
                ):
                    raise ValueError(f"{name}: purity and completeness need a value for each threshold")
        return self

    def horizon(self, name: str, days: float) -> Horizon:
        """Return the shortest horizon of a class that is not shorter than ``days``."""
        return next(one for one in self.classes[name] if days <= _length(one.days))

    def cut(self, horizon: Horizon, purity: float) -> Cut | None:
        """Return the lowest threshold from which on the purity is at least ``purity``, None if there is none."""
        step = first_step(horizon, purity)
        if step is None:
            return None
        return Cut(horizon.days, self.thresholds[step], horizon.purity[step], horizon.completeness[step])

    def purest(self, name: str) -> float | None:
        """Return the highest purity that is stated for a class, None if none is."""
        stated = [one[0] for horizon in self.classes[name] for one in horizon.purity]
        return max(stated, default=None)


def first_step(horizon: Horizon, purity: float) -> int | None:
    """Return the index of the lowest threshold from which on the purity is at least ``purity``, None without."""
    enough = [achieved[0] >= purity for achieved in horizon.purity]
    return next((index for index in range(len(enough)) if all(enough[index:])), None)


def _length(days: float | None) -> float:
    return math.inf if days is None else days


def days_since_detection(curve: LightCurve) -> float:
    """Return the days from the first detection to the last point; from the first point if nothing is detected."""
    first = curve.mjd[curve.detected] if curve.detected.any() else curve.mjd
    return float(curve.mjd.max() - first.min()) if len(curve) else 0.0


def expected_true(cuts: Iterable[Cut]) -> Estimate:
    """Return the expected number of true members among objects that passed these cuts, one for each object."""
    total = np.sum([cut.purity for cut in cuts], axis=0, initial=0.0)
    median, low, high = np.broadcast_to(total, 3).tolist()
    return median, low, high
