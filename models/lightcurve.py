"""Light curves, and their conversion to model input for both training and serving.

Notable:

- time is MJD (TAI, days) in float64 until the first kept observation is subtracted, and float32 only after that: near
  MJD 60,000 the resolution of float32 is 5.6 minutes;
- flux is difference flux in nJy (AB zero point 31.4) and may be negative; this module converts it to the unit that the
  network was trained in (FLUXCAL, zero point 27.5, is nJy * 10**(-0.4 * 3.9), a factor of 36);
- a batch is ragged (concatenated values and offsets); only :meth:`RaggedBatch.padded` adds padding;
- predictions do not depend on the order of the observations, padding, the rest of the batch or a shift in time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightjar_alerts.models.checks import PhotometryWarning, photometry_warnings
from nightjar_alerts.models.filters import remedy_for
from nightjar_alerts.models.metadata import network_metadata
from nightjar_alerts.models.photometry import (
    BANDS,
    DETECTION_SNR,
    FILTERS,
    MAX_ABS_MJD,
    NAMES,
    UNKNOWN,
    BandMap,
    FluxUnit,
    flux_to_njy,
    njy_to,
)

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

NO_USABLE_POINTS = "no_usable_points"
ENOUGH_OWN_POINTS: Final = 5
"""Minimum number of points in a band's own filter for points in substitute filters of the band to be left out."""


class LightCurveError(ValueError):
    """Invalid light curve.

    ``pointer`` is a JSON pointer into the light curve (``/flux/3``), ``reason`` a machine-readable code.
    """

    def __init__(self, pointer: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.pointer = pointer
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class LightCurve:
    """One object's observations, in any order.

    Attributes
    ----------
    mjd : shape (n,), days, TAI.
    flux, flux_err : shape (n,), difference flux and its standard error, nJy; errors are positive.
    band : shape (n,), index into :data:`models.photometry.FILTERS`.
    detected : shape (n,), True where the survey detected the source at that visit.
    metadata : named values; a missing value is an absent name.
    object_id : free text, empty when unknown.
    survey : survey that took the photometry (``ztf``), empty when unknown.
    duplicates : number of rows left out because an equal or more precise one has the same time and band.
    unknown_filters : number of rows left out because of an unknown filter, by the survey's name of the filter.
    dropped : rows of a packet left out because of their values, by reason (``no_flux``, ``no_error``, ``no_time``,
        ``bad_sign``, ``withdrawn``, ``flagged``, ``upper_limit``).
    described_filters : band used for each filter that the sender described by its wavelength.
    warnings : probable errors in the values (:mod:`models.checks`).
    ra, dec : position of the object, degrees, ICRS; both None if it is unknown. Networks do not see it.
    reference_flux : flux that was subtracted from total flux, nJy, by filter; empty for difference flux. Networks do
        not see it; pictures show the sum.
    """

    mjd: Float64
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool
    metadata: Mapping[str, float] = field(default_factory=dict)
    object_id: str = ""
    survey: str = ""
    duplicates: int = 0
    unknown_filters: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    described_filters: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[PhotometryWarning, ...] = ()
    ra: float | None = None
    dec: float | None = None
    reference_flux: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of observations."""
        return len(self.mjd)

    def total_flux(self) -> Float64 | None:
        """Return the total flux, nJy, from which the reference was subtracted; None for difference flux."""
        if not self.reference_flux:
            return None
        level_of_filter = np.array([self.reference_flux.get(name, np.nan) for name in FILTERS])
        total = self.flux + level_of_filter[self.band]
        return total if all_true(np.isfinite(total)) else None

    def rows(self, chosen: Bool | Int64) -> "LightCurve":
        """Return the light curve with only the selected observations; ``chosen`` is a mask or indices."""
        columns = ("mjd", "flux", "flux_err", "band", "detected")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    @classmethod
    def from_columns(
        cls,
        mjd: ArrayLike,
        flux: ArrayLike,
        flux_err: ArrayLike,
        band: Sequence[str] | NDArray[Any],
        detected: ArrayLike | None = None,
        metadata: Mapping[str, float] | None = None,
        object_id: str = "",
        flux_unit: FluxUnit = "nJy",
        survey: str = "",
        ra: float | None = None,
        dec: float | None = None,
        reference_flux: Mapping[str, float] | None = None,
    ) -> "LightCurve":
        """Build and validate a light curve. Of several rows with the same time and band, the most precise is kept.

        Parameters
        ----------
        mjd, flux, flux_err, band, detected : columns of equal length, at least one point. ``band`` holds names of
            :data:`models.photometry.FILTERS`, or is an integer array of indices into
            :data:`models.photometry.BANDS`; without ``detected`` a point counts as detected when
            ``|flux| >= 5 flux_err``.
        flux_unit : unit of ``flux`` and ``flux_err``.
        ra, dec : position, degrees, for which :func:`is_position` holds; or None for both.
        reference_flux : nJy, by filter, whatever the ``flux_unit``.

        Raises
        ------
        LightCurveError
            At the first invalid value, with its field and index.
        """
        days, bands = np.asarray(mjd, dtype=np.float64), band_column(band)
        flux32, err32 = _flux_columns(flux, flux_err, flux_unit)
        flags = None if detected is None else np.asarray(detected, dtype=np.bool_)
        check_lengths(days, {"flux": flux32, "flux_err": err32, "band": bands, "detected": flags})
        rising = is_increasing(days)
        _check_values(days, flux32, err32, rising)
        if flags is None:
            with np.errstate(over="ignore"):  # an error beyond a fifth of the largest number leaves no detection
                flags = np.abs(flux32) >= DETECTION_SNR * err32
        rows = None if rising else _unique_rows(days, flux32, err32, bands, flags)
        if rows is not None:
            days, flux32, err32, bands, flags = days[rows], flux32[rows], err32[rows], bands[rows], flags[rows]
        repeats = 0 if rows is None else int(np.sum(~rows))
        return cls(
            days,
            flux32,
            err32,
            bands,
            flags,
            dict(metadata or {}),
            object_id,
            survey,
            repeats,
            ra=ra,
            dec=dec,
            reference_flux=reference_flux or {},
        )

    def with_warnings(self, check_total: bool = True) -> "LightCurve":
        """Return the light curve with the warnings of :func:`models.checks.photometry_warnings` added."""
        found = photometry_warnings(
            self.mjd,
            self.flux,
            self.flux_err,
            self.survey,
            band=self.band,
            check_total=check_total,
            metadata=self.metadata,
        )
        return replace(self, warnings=(*self.warnings, *found)) if found else self


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Unvalidated arguments of ``LightCurve.from_columns``."""

    mjd: ArrayLike
    flux: ArrayLike
    flux_err: ArrayLike
    band: Sequence[str] | NDArray[Any]
    detected: ArrayLike | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)
    object_id: str = ""
    flux_unit: FluxUnit = "nJy"
    survey: str = ""
    ra: float | None = None
    dec: float | None = None
    reference_flux: Mapping[str, float] = field(default_factory=dict)

    def light_curve(self) -> LightCurve:
        """Build the light curve; raises LightCurveError at the first invalid value."""
        return LightCurve.from_columns(
            self.mjd,
            self.flux,
            self.flux_err,
            self.band,
            self.detected,
            self.metadata,
            self.object_id,
            self.flux_unit,
            self.survey,
            self.ra,
            self.dec,
            self.reference_flux,
        )


@np.errstate(over="ignore")  # values beyond float32 become inf, which the check for finite values reports
def _flux_columns(flux: ArrayLike, flux_err: ArrayLike, unit: FluxUnit) -> tuple[Float32, Float32]:
    """Convert flux and error to nJy, in one array if their lengths are equal, which needs fewer NumPy calls."""
    try:
        pair: Any = (flux, flux_err)  # Any: ArrayLike does not include tuples of ArrayLike
        flux32, err32 = flux_to_njy(pair, unit).astype(np.float32)
    except ValueError:  # different lengths, or not numbers: converting each alone reports which
        return flux_to_njy(flux, unit).astype(np.float32), flux_to_njy(flux_err, unit).astype(np.float32)
    return flux32, err32


def is_position(ra: ArrayLike, dec: ArrayLike) -> Bool:
    """Return whether right ascension (0 to 360) and declination (-90 to 90) in degrees are valid, elementwise."""
    ra, dec = np.asarray(ra, np.float64), np.asarray(dec, np.float64)
    return np.asarray((ra >= 0) & (ra <= 360) & (np.abs(dec) <= 90))


def without_reference(
    flux: ArrayLike, band: Sequence[Any] | NDArray[Any], reference: Mapping[str, float] | None = None
) -> tuple[Float64, dict[str, float]]:
    """Subtract from total flux, shape (n,), the reference flux of each band, or its median flux if there is none.

    Columns of different length are returned unchanged; building the light curve then reports the error.

    Returns
    -------
    The difference flux, and the flux that was subtracted by the name of the band.
    """
    total = np.array(flux, dtype=np.float64)
    number_of_name: dict[int | str, int] = {}
    if isinstance(band, np.ndarray):
        bands = band
        number_of_name = {number: number for number in range(len(BANDS))}
    else:  # numbers, because an array of strings would allocate the length of the longest for every row
        bands = np.array([number_of_name.setdefault(NAMES.get(name, name), len(number_of_name)) for name in band])
    level_of_band = {number_of_name.get(NAMES.get(name, name)): level for name, level in (reference or {}).items()}
    used: dict[int, float] = {}
    if total.shape == bands.shape and total.ndim == 1:
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which the check for finite values reports
            for number in np.unique(bands):
                rows = bands == number
                level = level_of_band.get(int(number))
                used[int(number)] = float(np.median(total[rows])) if level is None else level
                total[rows] -= used[int(number)]
    names = {number: FILTERS[name] if isinstance(name, int) else name for name, number in number_of_name.items()}
    return total, {names[number]: level for number, level in used.items() if number in names}


def band_column(band: Sequence[str] | NDArray[Any]) -> Int64:
    """Return indices into :data:`models.photometry.FILTERS`; raises LightCurveError at the first unknown band."""
    if isinstance(band, np.ndarray) and band.dtype.kind in "iu":
        require((band >= 0) & (band < len(BANDS)), "band", "unknown_band", "band index out of range")
        return band.astype(np.int64)
    try:
        return np.array(list(map(NAMES.__getitem__, band)), dtype=np.int64)
    except (KeyError, TypeError):
        position, name = next(
            (i, name) for i, name in enumerate(band) if not isinstance(name, str) or name not in NAMES
        )
        message = f"unknown band {str(name)[:20]!r}; {remedy_for(name)}"
        raise LightCurveError(f"/band/{position}", "unknown_band", message) from None


def check_lengths(mjd: Float64, columns: Mapping[str, NDArray[Any] | None]) -> None:
    """Raise LightCurveError if a column differs in length from ``mjd``, or ``mjd`` is empty."""
    for name, column in columns.items():
        if column is not None and column.shape != mjd.shape:
            message = f"{name} has {column.size} values where mjd has {mjd.size}"
            raise LightCurveError(f"/{name}", "length_mismatch", message)
    if mjd.ndim != 1 or mjd.size == 0:
        raise LightCurveError("/mjd", "empty", "at least one observation is needed")


def check_times(mjd: Float64) -> None:
    """Raise LightCurveError at the first time that is not finite or cannot be an MJD."""
    require(np.isfinite(mjd), "mjd", "not_finite", "mjd must be finite")
    require(np.abs(mjd) < MAX_ABS_MJD, "mjd", "time_out_of_range", "not an MJD (a Julian date? subtract 2400000.5)")


def is_increasing(mjd: Float64) -> bool:
    """Return True if the times are strictly increasing, as they usually are."""
    return all_true(mjd[1:] > mjd[:-1])


def all_true(condition: Bool) -> bool:
    """Return True if every element is True. Five times as fast as ``condition.all()``, which goes through Python."""
    return bool(np.count_nonzero(condition) == condition.size)


def _check_values(mjd: Float64, flux: Float32, flux_err: Float32, rising: bool) -> None:
    # Most light curves are valid, and finding that takes half as many steps as locating an error.
    within = mjd[0] > -MAX_ABS_MJD and mjd[-1] < MAX_ABS_MJD
    finite = all_true(np.isfinite(flux)) and all_true(np.isfinite(flux_err))
    if rising and within and finite and all_true(flux_err > 0):
        return
    check_times(mjd)
    for name, column in (("flux", flux), ("flux_err", flux_err)):
        require(np.isfinite(column), name, "not_finite", f"{name} must be finite in single precision")
    require(flux_err > 0, "flux_err", "not_positive", "flux_err must be greater than zero")


def require(holds: NDArray[np.bool_], name: str, reason: str, message: str) -> None:
    """Raise LightCurveError at the first value of column ``name`` for which ``holds`` is False."""
    if not holds.all():
        raise LightCurveError(f"/{name}/{int(np.argmin(holds))}", reason, message)


def _unique_rows(mjd: Float64, flux: Float32, flux_err: Float32, band: Int64, detected: Bool) -> Bool | None:
    """Return the mask of the rows to keep, one for each time and band; None if there are no duplicates.

    Of rows with the same time and band the most precise is kept, independent of the input order.
    """
    order = np.lexsort((flux, ~detected, flux_err, band, mjd))
    again = (np.diff(mjd[order]) == 0) & (np.diff(band[order]) == 0)
    if not again.any():
        return None
    rows = np.ones(len(mjd), dtype=np.bool_)
    rows[order[1:][again]] = False
    return rows


class Limits(BaseModel):
    """Length of history that a network was trained on; :func:`featurise` truncates longer light curves to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_points_per_band: int = Field(default=65, ge=1)
    pre_trigger_days: float | None = Field(default=30.0, ge=0)
    kept: Literal["newest", "around_maximum"] = Field(
        default="newest", description="of a band with more points; around the object's brightest detection in any band"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """One light curve as the network sees it, sorted by time.

    Attributes
    ----------
    time : shape (l,), days since the first kept observation.
    flux, flux_err : shape (l,), in the network's flux unit.
    band : shape (l,), the network's integer of each band.
    metadata : shape (columns,), NaN where missing.
    truncated : whether observations were left out because of the limits.
    points_per_band : number of kept observations in each of the network's bands, indexed by the band's integer.
    origin_mjd : MJD of the first kept observation, where ``time`` is zero.
    other_filters : number of observations left out because of their filter, by filter: the network has no band for it,
        or the band has enough points in its own filter.
    """

    time: Float32
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool
    metadata: Float32
    truncated: bool
    points_per_band: tuple[int, ...]
    origin_mjd: float
    other_filters: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of kept observations."""
        return len(self.time)


def featurise(
    curve: LightCurve,
    limits: Limits,
    flux_unit: FluxUnit,
    columns: Sequence[str],
    bands: BandMap | Sequence[str] = BANDS,
) -> Tokens:
    """Turn a light curve into model input: sort, truncate, convert the unit, subtract the time origin in float64.

    Observations earlier than ``pre_trigger_days`` before the trigger (the first detection) are left out. Then each band
    keeps its newest ``max_points_per_band`` observations, or those nearest to the brightest detection (``kept``); the
    trigger is always kept, in place of the last of them if necessary.

    Parameters
    ----------
    columns : metadata columns of the network, in order.
    bands : bands of the network and the filters used as substitutes for them; a sequence of names has no substitutes.
        Observations in other filters are ignored: they neither trigger nor count as truncated, and are counted by
        filter. With :data:`ENOUGH_OWN_POINTS` points in a band's own filter, its substitutes are ignored too, because
        colours differ between filters.

    Raises
    ------
    LightCurveError
        ``no_usable_points``, if every observation is in a filter that the network does not know.
    """
    network_bands = bands if isinstance(bands, BandMap) else _band_map(tuple(bands))
    band_N = _network_band(curve, network_bands)
    others, usable = dict(curve.unknown_filters), len(curve)
    rows: slice | Int64 | None = _contiguous_rows(curve, band_N, limits)
    if rows is None:
        order = np.lexsort((curve.flux_err, curve.flux, band_N, curve.mjd))
        is_other_N = band_N < 0
        if is_other_N.any():
            order, others = order[band_N[order] >= 0], others | _count_by_filter(curve.band[is_other_N])
        if order.size == 0:
            raise LightCurveError("/band", NO_USABLE_POINTS, no_band_message(curve, network_bands))
        usable, rows = len(order), order[_kept_mask(curve, band_N, order, limits)]
    # Copies: tokens outlive their request, and a view would keep every point that was left out in memory.
    mjd, band, detected = curve.mjd[rows], band_N[rows].copy(), curve.detected[rows].copy()
    return Tokens(
        time=(mjd - mjd[0]).astype(np.float32),
        flux=njy_to(curve.flux[rows], flux_unit).astype(np.float32),
        flux_err=njy_to(curve.flux_err[rows], flux_unit).astype(np.float32),
        band=band,
        detected=detected,
        metadata=network_metadata(curve.metadata, columns)
        if curve.metadata
        else _missing_metadata(len(columns)).copy(),
        truncated=len(mjd) < usable,
        points_per_band=tuple(np.bincount(band, minlength=len(network_bands.labels)).tolist()),
        origin_mjd=float(mjd[0]),
        other_filters=others,
    )


def _network_band(curve: LightCurve, bands: BandMap) -> Int64:
    """Return the network's band integer of every observation, :data:`UNKNOWN` if its filter is not used."""
    band_N = bands.table(curve.survey)[curve.band]
    is_substitute_N = bands.substitutes(curve.survey)[curve.band]
    if np.count_nonzero(is_substitute_N) in (0, len(curve)):
        return band_N
    own_G = np.bincount(band_N[~is_substitute_N & (band_N >= 0)], minlength=len(bands.labels))
    return np.where(is_substitute_N & (own_G[band_N] >= ENOUGH_OWN_POINTS), UNKNOWN, band_N)


@lru_cache(maxsize=64)
def _band_map(bands: tuple[str, ...]) -> BandMap:
    return BandMap(bands)


@lru_cache(maxsize=64)
def _missing_metadata(columns: int) -> Float32:
    """Return a cached metadata row without values; callers copy it."""
    return np.full(columns, np.nan, np.float32)


def _contiguous_rows(curve: LightCurve, band_N: Int64, limits: Limits) -> slice | None:
    """Return the kept rows if they are the newest ones: increasing times, known bands and no band over the limit.

    Covers most light curves at a third of the cost of sorting and :func:`_kept_mask`; None for all others.
    """
    if not len(curve) or np.count_nonzero(band_N < 0) or not is_increasing(curve.mjd):
        return None
    first, trigger = 0, int(curve.detected.argmax())
    if limits.pre_trigger_days is not None and curve.detected[trigger]:
        first = int(curve.mjd.searchsorted(curve.mjd[trigger] - limits.pre_trigger_days))
    points = len(curve) - first
    if points > limits.max_points_per_band:
        points = max(np.bincount(band_N[first:]).tolist())  # of the band with the most points
    return slice(first, None) if points <= limits.max_points_per_band else None


def _count_by_filter(filters: Int64) -> dict[str, int]:
    """Count observations by filter name."""
    counts = np.bincount(filters, minlength=len(FILTERS))
    return {FILTERS[index]: int(counts[index]) for index in np.flatnonzero(counts)}


def no_band_message(curve: LightCurve, bands: BandMap) -> str:
    """Return the error text for a light curve without points in a network's bands: its filters, and the remedy."""
    counts = {**curve.unknown_filters, **_count_by_filter(curve.band)}
    listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
    return (
        f"no observation is in a band of the network ({', '.join(bands.bands)}); not used, as no band stands for them: "
        f"{listed}. Send other bands, or give these filters other names and describe them by wavelength in filters"
    )


def _kept_mask(curve: LightCurve, band_N: Int64, order: Int64, limits: Limits) -> Bool:
    """Return the mask of the kept observations, shape (n,), in the order of ``order``, which sorts them by time."""
    mjd, band, detected = curve.mjd[order], band_N[order], curve.detected[order]
    trigger = int(np.argmax(detected)) if detected.any() else None
    keep = np.ones(len(mjd), dtype=np.bool_)
    if trigger is not None and limits.pre_trigger_days is not None:
        keep &= mjd >= mjd[trigger] - limits.pre_trigger_days
    if np.count_nonzero(keep) <= limits.max_points_per_band:
        return keep
    centre = mjd[-1]
    if trigger is not None and limits.kept == "around_maximum":
        lower_bound = (curve.flux[order] - curve.flux_err[order])[detected]
        centre = mjd[detected][int(np.argmax(lower_bound))]
    for index in np.unique(band):
        newest_first = np.flatnonzero(keep & (band == index))[::-1]
        nearest = newest_first[np.argsort(np.abs(mjd[newest_first] - centre), kind="stable")]
        keep[nearest[limits.max_points_per_band :]] = False
        if trigger in nearest[limits.max_points_per_band :]:
            keep[nearest[limits.max_points_per_band - 1]] = False
            keep[trigger] = True
    return keep


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBatch:
    """Several token sequences, concatenated.

    Attributes
    ----------
    offsets : shape (batch + 1,); sequence b is ``[offsets[b]:offsets[b + 1]]`` of every column.
    time, flux, flux_err, band, detected : shape (offsets[-1],).
    metadata : shape (batch, columns).
    """

    offsets: Int64
    time: Float32
    flux: Float32
    flux_err: Float32
    band: Int64
    detected: Bool
    metadata: Float32

    @classmethod
    def collate(cls, sequences: Sequence[Tokens]) -> "RaggedBatch":
        """Concatenate token sequences; raises ValueError for an empty batch."""
        if len(sequences) == 1:
            (only,) = sequences
            ends = np.array([0, len(only)])
            return cls(ends, only.time, only.flux, only.flux_err, only.band, only.detected, only.metadata[None])
        lengths = np.fromiter((len(tokens) for tokens in sequences), dtype=np.int64, count=len(sequences))
        return cls(
            offsets=np.concatenate(([0], np.cumsum(lengths))),
            time=np.concatenate([tokens.time for tokens in sequences]),
            flux=np.concatenate([tokens.flux for tokens in sequences]),
            flux_err=np.concatenate([tokens.flux_err for tokens in sequences]),
            band=np.concatenate([tokens.band for tokens in sequences]),
            detected=np.concatenate([tokens.detected for tokens in sequences]),
            metadata=np.stack([tokens.metadata for tokens in sequences]),
        )

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.offsets) - 1

    def padded(self, length: int | None = None) -> dict[str, NDArray[Any]]:
        """Return the graph inputs, padded at the end with zeros to ``length`` (default: the longest sequence).

        Returns
        -------
        ``flux``, ``flux_err``, ``time`` float32 [batch, length]; ``band`` int64 [batch, length]; ``mask`` bool
        [batch, length], True for a real observation; ``metadata`` float32 [batch, columns].

        Raises
        ------
        ValueError
            When ``length`` is shorter than the longest sequence.
        """
        if length is None and len(self) == 1:  # nothing to pad
            return {
                "mask": np.ones((1, len(self.time)), dtype=np.bool_),
                "metadata": self.metadata,
                "flux": self.flux[None],
                "flux_err": self.flux_err[None],
                "time": self.time[None],
                "band": self.band[None],
            }
        lengths = np.diff(self.offsets)
        width = int(lengths.max()) if length is None else length
        if width < lengths.max():
            raise ValueError(f"cannot pad sequences of {int(lengths.max())} points to {width}")
        mask = np.arange(width) < lengths[:, None]
        inputs: dict[str, NDArray[Any]] = {"mask": mask, "metadata": self.metadata}
        for name in ("flux", "flux_err", "time", "band"):
            column = getattr(self, name)
            inputs[name] = np.zeros(mask.shape, dtype=column.dtype)
            inputs[name][mask] = column
        return inputs
