"""Queries of forecasts: times and bands of the predicted fluxes.

Notable:

- a query's time counts from the first kept observation of the history, subtracted in float64, as the history's own
  times do; it may lie after the history, between its observations or before them (then it is negative);
- queries reach the network sorted by time, then band, so that a prediction cannot depend on the order of the queries;
  :func:`query_order` restores it;
- padding appears only in :func:`pad_queries`; the network's mask keeps it out of every other query's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nightjar_alerts.models.lightcurve import (
    Float32,
    Float64,
    Int64,
    LightCurveError,
    Tokens,
    band_column,
    check_lengths,
    check_times,
    require,
)
from nightjar_alerts.models.photometry import BANDS, BandMap

MAX_QUERIES = 256  # forty nights in six bands; a decoder's attention among queries grows with their square


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Times and bands of the forecasts that are wanted for one light curve.

    Attributes
    ----------
    time : shape (q,), days since the history's first kept observation.
    band : shape (q,), the network's integer of each band.
    """

    time: Float32
    band: Int64

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.time)


def check_queries(
    mjd: ArrayLike,
    band: Sequence[str] | NDArray[Any],
    bands: BandMap | Sequence[str] = BANDS,
    limit: int = MAX_QUERIES,
) -> tuple[Float64, Int64]:
    """Return times and filters of queries that keep every rule, in the order given.

    Parameters
    ----------
    mjd : shape (q,), days, TAI; any time, also before or within the history.
    band : shape (q,), names, or an integer array of indices.
    bands : bands that the network can forecast, and filters mapped to them.
    limit : most queries allowed.

    Raises
    ------
    LightCurveError
        Naming the field and index of the first broken rule, as ``/mjd/3`` or ``/band/3``.
    """
    days, indices = np.asarray(mjd, dtype=np.float64), band_column(band)
    check_lengths(days, {"band": indices})
    if len(days) > limit:
        raise LightCurveError("/mjd", "too_many_queries", f"at most {limit} times per query")
    check_times(days)
    network_bands = _map(bands)
    require(
        network_bands.table()[indices] >= 0,
        "band",
        "unsupported_band",
        f"this network forecasts {', '.join(network_bands.bands)} only",
    )
    return days, indices


def query_order(mjd: Float64, band: Int64) -> NDArray[np.intp]:
    """Return indices that sort queries as the network gets them: ``answers_asked[order] = answers`` undoes it."""
    return np.lexsort((band, mjd))


def make_queries(
    tokens: Tokens,
    mjd: ArrayLike,
    band: Sequence[str] | NDArray[Any],
    bands: BandMap | Sequence[str] = BANDS,
    limit: int = MAX_QUERIES,
) -> Queries:
    """Sort the queries of one history by time and band; parameters and errors as of :func:`check_queries`."""
    days, filters = check_queries(mjd, band, bands, limit)
    order = query_order(days, filters)
    return Queries((days[order] - tokens.origin_mjd).astype(np.float32), _map(bands).table()[filters[order]])


def _map(bands: BandMap | Sequence[str]) -> BandMap:
    return bands if isinstance(bands, BandMap) else BandMap(bands)


def pad_queries(batch: Sequence[Queries]) -> dict[str, NDArray[Any]]:
    """Graph inputs of several histories' queries, padded at the end with zeros to the longest of them.

    Returns
    -------
    ``query_time`` float32, ``query_band`` int64 and ``query_mask`` bool, all [batch, queries]; the mask is True for a
    query.
    """
    lengths = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
    mask = np.arange(lengths.max()) < lengths[:, None]
    time, band = np.zeros(mask.shape, dtype=np.float32), np.zeros(mask.shape, dtype=np.int64)
    time[mask] = np.concatenate([queries.time for queries in batch])
    band[mask] = np.concatenate([queries.band for queries in batch])
    return {"query_time": time, "query_band": band, "query_mask": mask}
