"""Filters of surveys, bands of networks, and the map between the two.

A light curve holds the filter that each point was taken through, as its place in :data:`FILTERS`. A network knows a few
bands, each by an integer; its bundle says which (``bands``, ``band_indices``) and which filters stand in for them
(``band_groups``, by ``survey:filter`` or ``filter``). A filter that stands for no band of a network does not exist for
it: its points are left out, and counted.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

BANDS: Final = ("u", "g", "r", "i", "z", "Y")
"""Bands of LSST, in the order in which the networks trained on them number them."""

FILTERS: Final = (*BANDS, "c", "o", "G", "BP", "RP", "U", "B", "V", "R", "I", "w", "C")
"""Every filter by name: LSST and its like, ATLAS (c, o), Gaia (G, BP, RP), Johnson and Cousins (U, B, V, R, I),
Pan-STARRS' wide one (w), no filter at all (C)."""

NAMES: Final[Mapping[str, int]] = {**{name: place for place, name in enumerate(FILTERS)}, "y": FILTERS.index("Y")}
"""Place in :data:`FILTERS` of every name; ``y`` and ``Y`` are the same filter."""

UNKNOWN: Final = -1

Int64 = NDArray[np.int64]


def filter_index(name: str) -> int:
    """Place of a filter in :data:`FILTERS`. Raises ValueError when unknown."""
    try:
        return NAMES[name]
    except KeyError:
        raise ValueError(f"unknown band {name!r}; known bands are {', '.join(FILTERS)}") from None


class BandMap:
    """Map from the filters of light curves to the band integers of a network.

    Parameters
    ----------
    bands : names of the network's bands.
    indices : integer of each; by default the place among :data:`BANDS` if all are of those, else that in ``bands``.
    groups : ``survey:filter`` or ``filter`` to the band that it stands for; the survey's own entry counts first, and a
        filter without an entry stands for the band of its name.

    Attributes
    ----------
    labels : name of the band of every integer, empty where no band has it.

    Raises
    ------
    ValueError
        When bands are no filters, bands or indices repeat, their numbers differ, or a group leads to no band or starts
        at no filter.
    """

    def __init__(
        self, bands: Sequence[str], indices: Sequence[int] | None = None, groups: Mapping[str, str] | None = None
    ) -> None:
        self.bands = tuple(bands)
        self.groups = {_canonical(name): band for name, band in (groups or {}).items()}
        self._surveys = {name.partition(":")[0] for name in self.groups if ":" in name}
        self.indices = tuple(_usual_indices(self.bands) if indices is None else indices)
        self._check()
        usual = indices is None and set(self.bands) <= set(BANDS)
        self.labels = BANDS if usual else _labels(self.bands, self.indices)
        self._tables: dict[str, Int64] = {}

    def _check(self) -> None:
        if not self.bands or len(set(self.bands)) < len(self.bands) or not set(self.bands) <= set(FILTERS):
            raise ValueError(f"bands must be different ones of {', '.join(FILTERS)}")
        if len(self.indices) != len(self.bands) or len(set(self.indices)) < len(self.indices) or min(self.indices) < 0:
            raise ValueError("every band needs an index of its own, 0 or more")
        if strangers := sorted(set(self.groups.values()) - set(self.bands)):
            raise ValueError(f"band_groups: {strangers[0]!r} is none of the bands")

    def table(self, survey: str = "") -> Int64:
        """Integer of the network's band for each of :data:`FILTERS`, :data:`UNKNOWN` where there is none."""
        known = survey if survey in self._surveys else ""  # clients choose the name: one table for all others
        if known not in self._tables:
            self._tables[known] = np.array([self._index(known, name) for name in FILTERS], dtype=np.int64)
        return self._tables[known]

    def _index(self, survey: str, name: str) -> int:
        band = self.groups.get(f"{survey}:{name}", self.groups.get(name, name))
        return self.indices[self.bands.index(band)] if band in self.bands else UNKNOWN


def _canonical(name: str) -> str:
    survey, colon, filter_name = name.rpartition(":")
    if filter_name not in NAMES:
        raise ValueError(f"band_groups: {name!r} names no known filter; they are {', '.join(FILTERS)}")
    return f"{survey}{colon}{FILTERS[NAMES[filter_name]]}"


def _usual_indices(bands: Sequence[str]) -> tuple[int, ...]:
    if set(bands) <= set(BANDS):
        return tuple(BANDS.index(name) for name in bands)
    return tuple(range(len(bands)))


def _labels(bands: Sequence[str], indices: Sequence[int]) -> tuple[str, ...]:
    named = dict(zip(indices, bands, strict=True))
    return tuple(named.get(index, "") for index in range(max(indices) + 1))
