"""What a difference image sees of something that shines all the time: its light minus that of the template.

Notable: templates are medians of a few visits taken before the survey, at unknown phases of the variation, so the zero
level of each band is its own and difference fluxes are as often negative as positive.

From a flat list of measured points to one labelled object for every owner that kept any.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from training.data.dataset import LabelledObject
from training.simulate.cadence import SURVEY_START, Visits
from training.simulate.photometry import Floats, Ints

TEMPLATE_VISITS = 7
TEMPLATE_SPAN = 365.0  # days before the survey

# (mjd f64[P], owner i64[P], band i64[P]) -> total flux f64[P] in nJy
TotalFlux: TypeAlias = Callable[[Floats, Ints, Ints], Floats]


@dataclass(frozen=True, eq=False)
class Signal:
    """True light of every visit: ``difference`` and ``steady`` (template) flux f64[P] nJy; ``redshift`` f64[n]."""

    difference: Floats
    steady: Floats
    redshift: Floats


def subtract_template(rng: np.random.Generator, visits: Visits, total: TotalFlux) -> Signal:
    """Difference flux of a source inside the Galaxy whose total flux is ``total``."""
    shape = (visits.n, 6, TEMPLATE_VISITS)
    epoch = SURVEY_START - rng.uniform(0.0, TEMPLATE_SPAN, shape)
    own, band, _ = np.broadcast_arrays(*np.ogrid[: shape[0], : shape[1], : shape[2]])
    template = total(epoch.ravel(), own.ravel(), band.ravel()).reshape(shape)
    steady = np.median(template, axis=2)[visits.owner, visits.band]
    now = total(visits.mjd, visits.owner, visits.band)
    return Signal(difference=now - steady, steady=steady, redshift=np.zeros(visits.n))


@dataclass(frozen=True, eq=False)
class Measured:
    """Points of ``visits.n`` candidates of one class: ``flux``, ``error`` f64[P] nJy, ``detected``, ``kept`` bool[P].

    ``trigger`` f64[n] MJD of the first detection, ``metadata`` f32[n, 64], ``redshift`` f64[n].
    """

    visits: Visits
    flux: Floats
    error: Floats
    detected: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    trigger: Floats
    metadata: NDArray[np.float32]
    redshift: Floats


def objects(name: str, first_id: int, points: Measured) -> list[LabelledObject]:
    """Return the candidates that kept a point, numbered from ``first_id``."""
    visits, rows_kept = points.visits, np.flatnonzero(points.kept)
    edges = np.searchsorted(visits.owner[rows_kept], np.arange(visits.n + 1))
    found: list[LabelledObject] = []
    for index in np.flatnonzero(np.diff(edges)):
        rows = rows_kept[edges[index] : edges[index + 1]]
        found.append(
            LabelledObject(
                object_id=str(first_id + len(found)),
                class_name=name,
                mjd=visits.mjd[rows],
                flux=points.flux[rows].astype(np.float32),
                flux_err=points.error[rows].astype(np.float32),
                band=visits.band[rows].astype(np.int8),
                detected=points.detected[rows],
                trigger_mjd=float(points.trigger[index]),
                metadata=points.metadata[index],
                redshift=float(points.redshift[index]),
            )
        )
    return found
