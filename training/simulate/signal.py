"""What a difference image sees of something that shines all the time: its light minus that of the template.

Notable: templates are medians of a few visits taken before the survey, at unknown phases of the variation, so the zero
level of each band is its own and difference fluxes are as often negative as positive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

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
