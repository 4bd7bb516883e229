"""Conversion of the fluxes and magnitudes of a decoded light curve to difference fluxes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from nightjar_alerts.core.errors import pointer
from nightjar_alerts.core.request import LightCurveIn
from nightjar_alerts.models.filters import remedy_for
from nightjar_alerts.models.lightcurve import LightCurveError, require, without_reference
from nightjar_alerts.models.photometry import BANDS, FILTERS, NAMES, VEGA_AB_OFFSETS, Float64, njy_to, njy_with_error

Array = NDArray[Any]

MAGNITUDES: Final = (-5.0, 40.0)
"""Range of valid magnitudes; values outside mark missing measurements, such as 99."""
AB_ZERO_POINT_JY: Final = 3631.0


def to_fluxes(sent: LightCurveIn, columns: Mapping[str, Any]) -> tuple[Array, Array, dict[str, float]]:
    """Return the flux and its error of every point, in the flux unit of the light curve; NaN for an upper limit.

    The third value is the flux that was subtracted from total flux, in the same unit, by the name of the filter.

    Parameters
    ----------
    columns : columns of the light curve by name: arrays, a list of band names, or None for a missing column.

    Raises
    ------
    LightCurveError
        If a point does not have exactly one of flux and magnitude, or a value is invalid.
    """
    if columns["mag"] is None:
        flux, flux_err = columns["flux"], columns["flux_err"]
    else:
        flux, flux_err = _from_magnitudes(sent, columns)
    if sent.reference_flux is not UNSET and sent.flux_kind != "total":
        raise LightCurveError("/reference_flux", "not_applicable", "needs flux_kind total")
    if sent.flux_kind != "total":
        return flux, flux_err, {}
    used, band = columns["upper_limit"], columns["band"]
    if used is None or not used.any():
        difference, levels = without_reference(flux, band, _references(sent))
        return difference, flux_err, levels
    rows = np.flatnonzero(~used)  # upper limits do not count for medians
    total = np.array(flux, np.float64)
    total[rows], levels = without_reference(total[rows], _take(band, rows), _references(sent))
    return total, flux_err, levels


def check_errors(name: str, column: Any) -> None:
    """Reject an error that is zero or negative, also of a point that is not used. Raises LightCurveError.

    Parameters
    ----------
    column : standard errors, NaN where a point has none; or None.
    """
    if column is not None:
        require(np.isnan(column) | (column > 0), name, "not_positive", f"{name} must be greater than zero")


def _take(band: Sequence[str] | Array, rows: NDArray[np.intp]) -> Any:
    return band[rows] if isinstance(band, np.ndarray) else [band[row] for row in rows.tolist()]


def _references(sent: LightCurveIn) -> dict[str, float]:
    if sent.reference_flux is UNSET:
        return {}
    for name, value in sent.reference_flux.items():
        where = "/reference_flux" + pointer([name])
        if name not in NAMES and (sent.filters is UNSET or name not in sent.filters):
            raise LightCurveError(where, "unknown_band", f"unknown band; {remedy_for(name)}")
        if not abs(value) < 1e308:
            raise LightCurveError(where, "not_finite", "must be finite")
    return {name: float(value) for name, value in sent.reference_flux.items()}


def _from_magnitudes(sent: LightCurveIn, columns: Mapping[str, Any]) -> tuple[Float64, Float64]:
    count = len(columns["mjd"])
    for name in ("flux", "flux_err", "mag", "mag_err", "band", "upper_limit"):
        column = columns[name]
        if column is not None and len(column) != count:
            message = f"{name} has {len(column)} values where mjd has {count}"
            raise LightCurveError(f"/{name}", "length_mismatch", message)
    none = np.full(count, np.nan)
    given = {name: none if columns[name] is None else columns[name] for name in ("flux", "flux_err", "mag", "mag_err")}
    mag, flux = np.asarray(given["mag"], np.float64), np.asarray(given["flux"], np.float64)
    has_mag, has_flux = ~np.isnan(mag), ~np.isnan(flux)
    require(~(has_mag & has_flux), "mag", "ambiguous", "a point has either a flux or a magnitude, not both")
    name = "mag" if columns["flux"] is None else "flux"
    limit = np.zeros(count, np.bool_) if columns["upper_limit"] is None else columns["upper_limit"]
    detail = "every point needs a flux or a magnitude, except upper limits"
    require(has_mag | has_flux | limit, name, "missing", detail)
    measured = has_mag & ~limit
    inside = (mag > MAGNITUDES[0]) & (mag < MAGNITUDES[1])
    require(~has_mag | inside, "mag", "out_of_range", "not a magnitude; leave out points without a measurement")
    error = np.asarray(given["mag_err"], np.float64)
    if columns["mag_err"] is None and measured.any():
        raise LightCurveError("/mag_err", "missing", "required field")
    require(~(measured & np.isnan(error)), "mag_err", "missing", "every magnitude needs an error, except upper limits")
    check_errors("mag_err", error)
    require(~measured | np.isfinite(error), "mag_err", "not_finite", "mag_err must be finite")
    flux_err = np.asarray(given["flux_err"], np.float64)
    check_errors("flux_err", flux_err)
    require(~(has_flux & ~limit & np.isnan(flux_err)), "flux_err", "missing", "every flux needs an error")
    offset = 0.0 if sent.mag_system == "AB" else _vega_offsets(sent, columns["band"], has_mag)
    from_mag, from_err = (njy_to(values, sent.flux_unit) for values in njy_with_error(mag + offset, error))
    return np.where(has_mag, from_mag, flux), np.where(has_mag, from_err, flux_err)


def _vega_offsets(sent: LightCurveIn, band: Sequence[str] | Array, has_mag: NDArray[np.bool_]) -> Float64:
    """Return the offset from Vega to AB magnitudes of each point; unknown bands are rejected later."""
    names: Sequence[str] = (
        [BANDS[index] if 0 <= index < len(BANDS) else "" for index in band.tolist()]
        if isinstance(band, np.ndarray)
        else band
    )
    offsets: dict[str, float] = {}
    for name in {name for name, used in zip(names, has_mag, strict=True) if used}:
        if name in NAMES:
            known = FILTERS[NAMES[name]]
            if known not in VEGA_AB_OFFSETS:
                message = f"no Vega zero point is known for filter {name}: describe the filter under another name in "
                raise LightCurveError("/mag_system", "no_zero_point", message + "filters, with vega_zero_point_jy")
            offsets[name] = VEGA_AB_OFFSETS[known]
        elif sent.filters is not UNSET and name in sent.filters:
            zero_point = sent.filters[name].vega_zero_point_jy
            if zero_point is UNSET:
                where = "/filters" + pointer([name, "vega_zero_point_jy"])
                raise LightCurveError(where, "missing", "needed to convert Vega magnitudes in this filter")
            offsets[name] = -2.5 * float(np.log10(zero_point / AB_ZERO_POINT_JY))
    return np.array([offsets.get(name, 0.0) for name in names], np.float64)
