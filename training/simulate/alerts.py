"""Alert by alert: what of an object's history had reached a broker when each of its detections was announced.

An alert holds its own detection and everything before it. Notable: forced photometry is measured a day later, so the
alerts of an object's first day hold detections only.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from training.data.dataset import LabelledObject
from training.simulate.packets import FORCED_DELAY_DAYS
from training.simulate.photometry import Floats, Ints


def alerts(source: LabelledObject) -> Iterator[LabelledObject]:
    """The object as each of its alerts shows it, one per detection, in order."""
    for point in np.flatnonzero(source.detected):
        yield alert(source, int(point))


def alert(source: LabelledObject, point: int) -> LabelledObject:
    """The object as the alert of its detection at ``point`` shows it.

    Raises ValueError when nothing was detected there.
    """
    rows = alert_rows(source.mjd, source.detected, point)
    return replace(
        source,
        mjd=source.mjd[rows],
        flux=source.flux[rows],
        flux_err=source.flux_err[rows],
        band=source.band[rows],
        detected=source.detected[rows],
    )


def alert_rows(mjd: Floats, detected: NDArray[np.bool_], point: int) -> Ints:
    """Rows of one object's time-sorted points that the alert of its detection at ``point`` holds.

    Raises ValueError when nothing was detected there.
    """
    if not detected[point]:
        raise ValueError(f"there is no detection at point {point}, hence no alert")
    rows = np.arange(point + 1)
    first_day = mjd[point] - mjd[int(detected.argmax())] < FORCED_DELAY_DAYS
    return rows[detected[rows]] if first_day else rows
