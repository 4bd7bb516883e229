"""From a flat list of measured points to one labelled object for every owner that kept any."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.dataset import LabelledObject
from training.simulate.cadence import Visits
from training.simulate.photometry import Floats


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
    """The candidates that kept a point, numbered from ``first_id``."""
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
