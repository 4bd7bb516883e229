"""Rows of one object in different bands, as ZTF's data releases have them.

A row has the observations of an object in one filter, under an id of its own. :func:`joined_rows` finds the rows that
belong together by position, with the rows of the partition's margin: filter after filter, a row joins the *anchor* that
is nearest to it if no other row of its filter is nearer to that anchor, and becomes an anchor itself if there is none
within the radius. Each object is classified in the partition that has its anchor.

Whether a row is an anchor depends on rows up to 2 radii from it for each filter before its own. Both partitions at a
border therefore find the same objects if the margin is wider than :func:`least_margin`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.tables import TableError
from nightjar_alerts.tables.columns import numbers, texts

FILTERS = 3
"""Number of filters of ZTF."""


def least_margin(radius: float) -> float:
    """Return the width of the margin that a radius needs, in its unit."""
    return 2 * FILTERS * radius


@dataclass(frozen=True)
class Joined:
    """Rows of a partition and its margin.

    Attributes
    ----------
    own : number of rows of the partition, which come first.
    anchors : index of the anchor of each row; -1 for a row whose anchor is in the margin, or which has no position.
    ids, kept : of each row.
    """

    own: int
    anchors: NDArray[np.int64]
    ids: Sequence[str]
    kept: Sequence[tuple[Any, ...]]
    rows_of: Mapping[int, Sequence[int]]

    def members(self, anchor: int) -> list[str]:
        """Return the ids of the rows of an object."""
        return [self.ids[row] for row in self.rows_of.get(anchor, [anchor])]


def joined_rows(own: Iterable[Mapping[str, Any]], margin: Iterable[Mapping[str, Any]], radius: float) -> Joined:
    """Return which rows belong together.

    Parameters
    ----------
    own, margin : batches of ids, positions (degrees), filters and kept columns.
    radius : arcseconds.
    """
    batches = list(own)
    count = sum(len(batch["ids"]) for batch in batches)
    batches += margin
    ids = [name for batch in batches for name in batch["ids"]]
    kept = [values for batch in batches for values in batch["kept"]]
    places, bands = _places(batches), np.concatenate([texts(batch["band"]) for batch in batches]).astype(str)
    if len(found := np.unique(bands)) > FILTERS:
        raise TableError(f"--join-bands joins up to {FILTERS} filters; the table has {', '.join(found[:8])}")
    anchors = _anchors(places, bands, radius)
    anchors[(anchors >= count) | ~np.isfinite(places).all(axis=1)] = -1
    alone = (anchors == -1) & (np.arange(len(anchors)) < count) & ~np.isfinite(places).all(axis=1)
    anchors[alone] = np.flatnonzero(alone)  # a row without a position is an object of its own
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(anchors >= 0).tolist():
        rows_of.setdefault(int(anchors[row]), []).append(row)
    return Joined(count, anchors, ids, kept, rows_of)


def _places(batches: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the positions of rows on the unit sphere, shape (n, 3)."""
    ra, dec = (np.radians(np.concatenate([numbers(batch[name])[0] for batch in batches])) for name in ("ra", "dec"))
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=1)


def _anchors(places: NDArray[np.float64], bands: NDArray[Any], radius: float) -> NDArray[np.int64]:
    """Return the index of each row's anchor."""
    from scipy.spatial import cKDTree

    chord = 2.0 * np.sin(np.radians(radius / 3600.0) / 2.0)
    anchors = np.arange(len(places))
    has_place = np.isfinite(places).all(axis=1)
    known = np.zeros(0, np.int64)
    for band in np.unique(bands):
        rows = np.flatnonzero((bands == band) & has_place)
        if len(known) and len(rows):
            distance, nearest = cKDTree(places[known]).query(places[rows], distance_upper_bound=chord)
            _, back = cKDTree(places[rows]).query(places[known], distance_upper_bound=chord)
            near = np.isfinite(distance)
            mutual = np.zeros(len(rows), np.bool_)
            mutual[near] = back[nearest[near]] == np.flatnonzero(near)
            anchors[rows[mutual]] = known[nearest[mutual]]
            rows = rows[~mutual]
        known = np.concatenate([known, rows])
    return anchors
