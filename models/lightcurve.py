"""The canonical light curve: the one place where observations become model input, in training and in serving.

Notable:

- time is MJD (TAI, days) in float64 until the first kept observation is subtracted, and float32 only after that: a raw
  MJD near 60,000 in float32 has a grain of 5.6 minutes;
- flux is difference flux in nJy (AB zero point 31.4) and may be negative; it is converted once, here, to the unit the
  network was trained in (FLUXCAL, zero point 27.5, is nJy * 10**(-0.4 * 3.9): forgetting it is a silent factor of 36);
- a batch is ragged (concatenated values and offsets); padding appears only in :meth:`RaggedBatch.padded`;
- the answer does not depend on the order of the input points, on padding, on batch mates or on a time shift.
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
"""Points in a band's own filter from which on points in other filters that stand for this band are left out."""


class LightCurveError(ValueError):
    """A light curve that breaks a rule of the record.

    ``pointer`` is a JSON pointer into the curve (``/flux/3``), ``reason`` a machine-readable code.
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
    survey : whose photometry it is (``ztf``), empty when unknown.
    duplicates : rows left out because a more precise one, or the same, has their time and band.
    unknown_filters : rows left out because nobody here knows their filter, by the name that the survey gives it.
    dropped : rows of a packet left out because of their values, by reason (``no_flux``, ``no_error``, ``no_time``,
        ``bad_sign``, ``withdrawn``, ``flagged``, ``upper_limit``).
    described_filters : band that stands for each filter that the sender described by its wavelength.
    warnings : what is probably wrong with the values (:mod:`models.checks`).
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

    def __len__(self) -> int:
        """Return the number of observations."""
        return len(self.mjd)

    def rows(self, chosen: Bool | Int64) -> "LightCurve":
        """Return the light curve of some of the observations, by a mask or by their indices."""
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
    ) -> "LightCurve":
        """Build a record from columns and check every rule. Of rows of one time and band the most precise is kept.

        Parameters
        ----------
        mjd, flux, flux_err, band, detected : columns of equal length, at least one point. ``band`` holds names of
            :data:`models.photometry.FILTERS`, or is an integer array of indices into
            :data:`models.photometry.BANDS`; without ``detected`` a point counts as detected when
            ``|flux| >= 5 flux_err``.
        flux_unit : unit of ``flux`` and ``flux_err``.

        Raises
        ------
        LightCurveError
            Naming the field and index of the first broken rule.
        """
        days, bands = np.asarray(mjd, dtype=np.float64), band_column(band)
        flux32, err32 = _flux_columns(flux, flux_err, flux_unit)
        flags = None if detected is None else np.asarray(detected, dtype=np.bool_)
        check_lengths(days, {"flux": flux32, "flux_err": err32, "band": bands, "detected": flags})
        rising = is_rising(days)
        _check_values(days, flux32, err32, rising)
        if flags is None:
            flags = np.abs(flux32) >= DETECTION_SNR * err32
        rows = None if rising else _without_repeats(days, flux32, err32, bands, flags)
        if rows is not None:
            days, flux32, err32, bands, flags = days[rows], flux32[rows], err32[rows], bands[rows], flags[rows]
        repeats = 0 if rows is None else int(np.sum(~rows))
        return cls(days, flux32, err32, bands, flags, dict(metadata or {}), object_id, survey, repeats)

    def with_warnings(self, check_total: bool = True) -> "LightCurve":
        """Return the record with the warnings of :func:`models.checks.photometry_warnings` in addition."""
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
    """Arguments of ``LightCurve.from_columns``, not yet checked."""

    mjd: ArrayLike
    flux: ArrayLike
    flux_err: ArrayLike
    band: Sequence[str] | NDArray[Any]
    detected: ArrayLike | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)
    object_id: str = ""
    flux_unit: FluxUnit = "nJy"
    survey: str = ""

    def light_curve(self) -> LightCurve:
        """Build the record; raises LightCurveError at the first broken rule."""
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
        )


@np.errstate(over="ignore")  # beyond float32 becomes inf, which the finite check then names
def _flux_columns(flux: ArrayLike, flux_err: ArrayLike, unit: FluxUnit) -> tuple[Float32, Float32]:
    """Convert flux and error, together where they are of one length: every step costs more than the numbers in it."""
    try:
        pair: Any = (flux, flux_err)  # two rows to numpy, which its type of arguments does not know
        flux32, err32 = flux_to_njy(pair, unit).astype(np.float32)
    except ValueError:  # two lengths, or no numbers, which are then named
        return flux_to_njy(flux, unit).astype(np.float32), flux_to_njy(flux_err, unit).astype(np.float32)
    return flux32, err32


def without_reference(
    flux: ArrayLike, band: Sequence[Any] | NDArray[Any], reference: Mapping[str, float] | None = None
) -> Float64:
    """Return total flux, shape (n,), less the reference flux of each band, or its median where there is none.

    The median stands in for the flux in a template. Columns of different length are returned as they are; the rules of
    the record name their error.
    """
    total = np.array(flux, dtype=np.float64)
    number_of_name: dict[int | str, int] = {}
    if isinstance(band, np.ndarray):
        bands = band
        number_of_name = {number: number for number in range(len(BANDS))}
    else:  # numbers: an array of texts would take the longest of them for every row
        bands = np.array([number_of_name.setdefault(NAMES.get(name, name), len(number_of_name)) for name in band])
    level_of_band = {number_of_name.get(NAMES.get(name, name)): level for name, level in (reference or {}).items()}
    if total.shape == bands.shape and total.ndim == 1:
        with np.errstate(invalid="ignore"):  # infinite less infinite is not finite either, which the rules then name
            for number in np.unique(bands):
                rows = bands == number
                level = level_of_band.get(int(number))
                total[rows] -= np.median(total[rows]) if level is None else level
    return total


def band_column(band: Sequence[str] | NDArray[Any]) -> Int64:
    """Return indices into :data:`models.photometry.FILTERS`; LightCurveError at the first value that is no band."""
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
    """Raise LightCurveError unless the columns are as long as ``mjd`` and hold at least one value."""
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


def is_rising(mjd: Float64) -> bool:
    """Return True when every time is later than the one before it, the usual case."""
    return holds_for_all(mjd[1:] > mjd[:-1])


def holds_for_all(condition: Bool) -> bool:
    """Return True when a condition holds everywhere; costs a fifth of numpy's own, which goes through Python."""
    return bool(np.count_nonzero(condition) == condition.size)


def _check_values(mjd: Float64, flux: Float32, flux_err: Float32, rising: bool) -> None:
    # Most are sound, which takes half as many steps to see as to say what is wrong.
    within = mjd[0] > -MAX_ABS_MJD and mjd[-1] < MAX_ABS_MJD
    finite = holds_for_all(np.isfinite(flux)) and holds_for_all(np.isfinite(flux_err))
    if rising and within and finite and holds_for_all(flux_err > 0):
        return
    check_times(mjd)
    for name, column in (("flux", flux), ("flux_err", flux_err)):
        require(np.isfinite(column), name, "not_finite", f"{name} must be finite in single precision")
    require(flux_err > 0, "flux_err", "not_positive", "flux_err must be greater than zero")


def require(holds: NDArray[np.bool_], name: str, reason: str, message: str) -> None:
    """Raise LightCurveError at the first value of column ``name`` for which ``holds`` is False."""
    if not holds.all():
        raise LightCurveError(f"/{name}/{int(np.argmin(holds))}", reason, message)


def _without_repeats(mjd: Float64, flux: Float32, flux_err: Float32, band: Int64, detected: Bool) -> Bool | None:
    """Return the mask of the rows to keep, one for each time and band; None where no two rows share both.

    Of rows that share time and band the most precise is kept, whatever the order in which they were sent.
    """
    order = np.lexsort((flux, ~detected, flux_err, band, mjd))
    again = (np.diff(mjd[order]) == 0) & (np.diff(band[order]) == 0)
    if not again.any():
        return None
    rows = np.ones(len(mjd), dtype=np.bool_)
    rows[order[1:][again]] = False
    return rows


class Limits(BaseModel):
    """Length of history that a network was trained on; longer ones are cut to it by :func:`featurise`."""

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
    truncated : whether observations were left out to respect the limits.
    points_per_band : number of kept observations in each of the network's bands, by its integer.
    origin_mjd : MJD of the first kept observation, where ``time`` is zero.
    other_filters : observations left out because of their filter, by filter: it stands for no band of the network, or
        for one with enough points in its own filter.
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
    """Turn a record into model input: sort, window, cut, convert the unit, subtract the time origin in float64.

    The one rule for long histories: observations earlier than ``pre_trigger_days`` before the trigger (the first
    detection) are left out, then each band keeps its newest ``max_points_per_band`` observations, or those nearest to
    the brightest detection (``kept``), and the trigger takes the last of those places when it would have been cut.

    Parameters
    ----------
    columns : metadata columns of the network, in order.
    bands : bands the network knows, and what stands in for them; names alone stand for themselves. Observations in
        other filters do not exist for it: they neither trigger nor count as cut, and are counted by filter. A band
        with :data:`ENOUGH_OWN_POINTS` in its own filter needs no other, and colours differ between two filters.

    Raises
    ------
    LightCurveError
        ``no_usable_points``, when every observation is in a filter that the network does not know.
    """
    network_bands = bands if isinstance(bands, BandMap) else _named(tuple(bands))
    band_N = _network_band(curve, network_bands)
    others, usable = dict(curve.unknown_filters), len(curve)
    rows: slice | Int64 | None = _last_rows(curve, band_N, limits)
    if rows is None:
        order = np.lexsort((curve.flux_err, curve.flux, band_N, curve.mjd))
        is_other_N = band_N < 0
        if is_other_N.any():
            order, others = order[band_N[order] >= 0], others | _others(curve.band[is_other_N])
        if order.size == 0:
            message = f"no observation in a band that this network knows: {', '.join(network_bands.bands)}"
            raise LightCurveError("/band", NO_USABLE_POINTS, message)
        usable, rows = len(order), order[_keep(curve, band_N, order, limits)]
    # Copies: what is noted of a run outlives its request, and a view would keep every point that was left out.
    mjd, band, detected = curve.mjd[rows], band_N[rows].copy(), curve.detected[rows].copy()
    return Tokens(
        time=(mjd - mjd[0]).astype(np.float32),
        flux=njy_to(curve.flux[rows], flux_unit).astype(np.float32),
        flux_err=njy_to(curve.flux_err[rows], flux_unit).astype(np.float32),
        band=band,
        detected=detected,
        metadata=network_metadata(curve.metadata, columns) if curve.metadata else _no_metadata(len(columns)).copy(),
        truncated=len(mjd) < usable,
        points_per_band=tuple(np.bincount(band, minlength=len(network_bands.labels)).tolist()),
        origin_mjd=float(mjd[0]),
        other_filters=others,
    )


def _network_band(curve: LightCurve, bands: BandMap) -> Int64:
    """Return the band integer of every observation, :data:`UNKNOWN` where its filter is not used."""
    band_N = bands.table(curve.survey)[curve.band]
    is_substitute_N = bands.substitutes(curve.survey)[curve.band]
    if np.count_nonzero(is_substitute_N) in (0, len(curve)):
        return band_N
    own_G = np.bincount(band_N[~is_substitute_N & (band_N >= 0)], minlength=len(bands.labels))
    return np.where(is_substitute_N & (own_G[band_N] >= ENOUGH_OWN_POINTS), UNKNOWN, band_N)


@lru_cache(maxsize=64)
def _named(bands: tuple[str, ...]) -> BandMap:
    return BandMap(bands)


@lru_cache(maxsize=64)
def _no_metadata(columns: int) -> Float32:
    """Return the row of an object of which nothing is known, to be copied."""
    return np.full(columns, np.nan, np.float32)


def _last_rows(curve: LightCurve, band_N: Int64, limits: Limits) -> slice | None:
    """Return the rows kept where those from some time on are: rising times, known bands and no more than fit.

    Says of most light curves, at a third of the cost, what sorting and :func:`_keep` say of all; None of the others.
    """
    if not len(curve) or np.count_nonzero(band_N < 0) or not is_rising(curve.mjd):
        return None
    first, trigger = 0, int(curve.detected.argmax())
    if limits.pre_trigger_days is not None and curve.detected[trigger]:
        first = int(curve.mjd.searchsorted(curve.mjd[trigger] - limits.pre_trigger_days))
    points = len(curve) - first
    if points > limits.max_points_per_band:
        points = max(np.bincount(band_N[first:]).tolist())  # of the band with most
    return slice(first, None) if points <= limits.max_points_per_band else None


def _others(filters: Int64) -> dict[str, int]:
    """Count observations by the name of their filter."""
    counts = np.bincount(filters, minlength=len(FILTERS))
    return {FILTERS[index]: int(counts[index]) for index in np.flatnonzero(counts)}


def _keep(curve: LightCurve, band_N: Int64, order: Int64, limits: Limits) -> Bool:
    """Mask of the observations kept, over those of ``order``, which are sorted by time: shape (n,)."""
    mjd, band, detected = curve.mjd[order], band_N[order], curve.detected[order]
    trigger = int(np.argmax(detected)) if detected.any() else None
    keep = np.ones(len(mjd), dtype=np.bool_)
    if trigger is not None and limits.pre_trigger_days is not None:
        keep &= mjd >= mjd[trigger] - limits.pre_trigger_days
    if np.count_nonzero(keep) <= limits.max_points_per_band:
        return keep
    centre = mjd[-1]
    if trigger is not None and limits.kept == "around_maximum":
        surely = (curve.flux[order] - curve.flux_err[order])[detected]
        centre = mjd[detected][int(np.argmax(surely))]
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
        """Graph inputs, padded at the end with zeros to ``length`` (default: the longest sequence).

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
