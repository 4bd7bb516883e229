"""Measures of a set of light curves, simulated or real: a few numbers per object, whole or alert by alert.

Alert by alert: what of an object's history had reached a broker when each of its detections was announced.

An alert holds its own detection and everything before it. Notable: forced photometry is measured a day later, so the
alerts of an object's first day hold detections only.

What a set of light curves looks like in a few numbers per object, for a simulated set or a real one.

Notable: colours are medians over nights on which both bands are seen at S/N 5 or better, so that neither cadence nor
the time of maximum enters; the brightest detection may be a dimming, whose size then counts. Everything is computed
over flat arrays of points, without a loop over objects.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.bands import BANDS
from training.data.dataset import Dataset, LabelledObject, read_dataset
from training.simulate.packets import FORCED_DELAY_DAYS
from training.simulate.photometry import Floats, Ints, njy_to_magnitude


def alerts(source: LabelledObject) -> Iterator[LabelledObject]:
    """Yield the object as each of its alerts shows it, one per detection, in order."""
    for point in np.flatnonzero(source.detected):
        yield alert(source, int(point))


def alert(source: LabelledObject, point: int) -> LabelledObject:
    """Return the object as the alert of its detection at ``point`` shows it.

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


COLOUR_SNR = 5.0
NIGHT_STARTS = 0.5  # fraction of the MJD at which a Chilean night has not begun
MINIMUM_DETECTIONS = 2
REDSHIFT_REACH = 0.02  # over 1 + z


@dataclass(frozen=True, eq=False)
class Sample:
    """Light curves as flat points: ``offsets`` i64[N+1], columns of points [P], and per object class and redshift."""

    offsets: Ints
    mjd: Floats
    flux: Floats
    flux_err: Floats
    band: Ints
    detected: NDArray[np.bool_]
    class_name: NDArray[np.str_]
    redshift: Floats

    def __len__(self) -> int:
        return len(self.class_name)

    @property
    def owner(self) -> Ints:
        """Object number of each point, i64[P]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def read_sample(path: Path, rename: dict[str, str] | None = None) -> Sample:
    """Read the labelled objects of a file with two detections or more; ``rename`` gives classes other names."""
    data = read_dataset(path)
    redshift = pq.read_table(path, columns=["redshift"]).column("redshift").to_numpy()
    names = np.array([(rename or {}).get(name, name) for name in (*data.classes, "")])[data.label]
    detections = np.add.reduceat(data.detected, data.offsets[:-1], dtype=np.int64)
    return _chosen(data, np.flatnonzero((detections >= MINIMUM_DETECTIONS) & (names != "")), names, redshift)


def cut_at_alerts(sample: Sample, rng: np.random.Generator) -> Sample:
    """Show the set as a random dump of alerts does: as many objects per class, each at one alert, all alike.

    Objects with many alerts are drawn more often, and histories end where the alert does. Objects of which the alert
    holds one detection are dropped again.
    """
    owner, rows, order = sample.owner, [], []
    for name in np.unique(sample.class_name):
        points = np.flatnonzero(sample.detected & (sample.class_name[owner] == name))
        for point in rng.choice(points, int((sample.class_name == name).sum())):
            start = sample.offsets[owner[point]]
            kept = start + alert_rows(sample.mjd[start:], sample.detected[start:], int(point - start))
            if sample.detected[kept].sum() >= MINIMUM_DETECTIONS:
                rows.append(kept)
                order.append(owner[point])
    return _gather(sample, rows, np.array(order, dtype=np.int64))


def at_redshifts_of(sample: Sample, reference: Sample) -> Sample:
    """Return the set with the redshift distribution of another one, class by class.

    Every object of ``reference`` with a known redshift is answered by the object of ``sample`` that is nearest in
    redshift, which may happen to one object several times, or by none within `REDSHIFT_REACH`. Classes without
    redshifts, those of the Galaxy, stay whole.
    """
    chosen = []
    for name in np.unique(sample.class_name):
        mine = np.flatnonzero(sample.class_name == name)
        mine = mine[np.argsort(sample.redshift[mine], kind="stable")]
        theirs = reference.redshift[(reference.class_name == name) & (reference.redshift > 0.0)]
        if len(theirs) and sample.redshift[mine[0]] > 0.0:
            middles = 0.5 * (sample.redshift[mine][1:] + sample.redshift[mine][:-1])
            nearest = mine[np.searchsorted(middles, theirs)]
            mine = nearest[np.abs(sample.redshift[nearest] - theirs) < REDSHIFT_REACH * (1.0 + theirs)]
        chosen.append(mine)
    return take(sample, np.concatenate(chosen))


def take(sample: Sample, objects: Ints) -> Sample:
    """Return the set of the given objects, in their order, with repetitions."""
    rows = [np.arange(sample.offsets[index], sample.offsets[index + 1]) for index in objects]
    return _gather(sample, rows, objects)


def measure(sample: Sample) -> dict[str, Floats]:
    """Numbers of each object, f64[N], NaN where there is none.

    ``peak`` AB magnitude of the brightest detection, ``duration`` days from the first to the last one, ``points`` and
    ``detections``, ``points_u`` ... ``points_Y``, ``colour_ug`` ... ``colour_zY`` and ``redshift`` (of galaxies).
    """
    n, owner = len(sample), sample.owner
    brightest, first, last = np.zeros(n), np.full(n, np.inf), np.full(n, -np.inf)
    seen = owner[sample.detected]
    np.maximum.at(brightest, seen, np.abs(sample.flux[sample.detected]))
    np.minimum.at(first, seen, sample.mjd[sample.detected])
    np.maximum.at(last, seen, sample.mjd[sample.detected])
    values: dict[str, Floats] = {
        "peak": njy_to_magnitude(brightest),
        "duration": last - first,
        "points": np.diff(sample.offsets).astype(np.float64),
        "detections": np.bincount(seen, minlength=n).astype(np.float64),
        "redshift": np.where(sample.redshift > 0.0, sample.redshift, np.nan),
    }
    for index, band in enumerate(BANDS):
        values[f"points_{band}"] = np.bincount(owner[sample.band == index], minlength=n).astype(np.float64)
    return values | _colours(sample, owner)


def _colours(sample: Sample, owner: Ints) -> dict[str, Floats]:
    night = np.floor(sample.mjd - NIGHT_STARTS).astype(np.int64)
    key = owner * 100_000 + night
    bright = sample.flux > COLOUR_SNR * sample.flux_err
    nightly = []
    for index in range(len(BANDS)):
        rows = np.flatnonzero(bright & (sample.band == index))
        keys, where = np.unique(key[rows], return_inverse=True)
        nightly.append((keys, np.bincount(where, weights=sample.flux[rows]) / np.maximum(np.bincount(where), 1)))
    colours = {}
    for index, pair in enumerate(pairwise(BANDS)):
        (left, left_flux), (right, right_flux) = nightly[index : index + 2]
        common, i, j = np.intersect1d(left, right, assume_unique=True, return_indices=True)
        colour = -2.5 * np.log10(left_flux[i] / right_flux[j])
        colours["colour_" + "".join(pair)] = _median_by(common // 100_000, colour, len(sample))
    return colours


def _median_by(owner: Ints, value: Floats, n: int) -> Floats:
    """Lower median of the values of each owner, f64[n], NaN without any."""
    order = np.lexsort((value, owner))
    count = np.bincount(owner, minlength=n)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    result = np.full(n, np.nan)
    some = count > 0
    result[some] = value[order][start[some] + (count[some] - 1) // 2]
    return result


def _chosen(data: Dataset, objects: Ints, names: NDArray[np.str_], redshift: Floats) -> Sample:
    everything = Sample(
        offsets=data.offsets,
        mjd=data.mjd,
        flux=data.flux.astype(np.float64),
        flux_err=data.flux_err.astype(np.float64),
        band=data.band.astype(np.int64),
        detected=data.detected,
        class_name=names,
        redshift=redshift,
    )
    return take(everything, objects)


def _gather(sample: Sample, rows: list[Ints], objects: Ints) -> Sample:
    """Return the set of the given points of the given objects."""
    points = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    return Sample(
        offsets=np.cumsum([0, *map(len, rows)]),
        mjd=sample.mjd[points],
        flux=sample.flux[points],
        flux_err=sample.flux_err[points],
        band=sample.band[points],
        detected=sample.detected[points],
        class_name=sample.class_name[objects],
        redshift=sample.redshift[objects],
    )


def common_classes(simulated: Sample, reference: Sample) -> list[str]:
    """Classes that both sets have; raises ValueError when there are none."""
    names = sorted(set(simulated.class_name.tolist()) & set(reference.class_name.tolist()))
    if not names:
        theirs = ", ".join(sorted(set(reference.class_name.tolist())))
        raise ValueError(f"no class in common; the real set has {theirs}: say which are which by --rename")
    return names
