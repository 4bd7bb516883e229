"""Brightness of the rows of a table in nJy, from magnitudes, fluxes and upper limits, and why a row has none."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import (
    VEGA_AB_OFFSETS,
    Float64,
    njy_of_magnitude,
    njy_with_error,
)
from nightjar_alerts.tables.columns import Array, Bool, flags, is_text, numbers, object_column, texts
from nightjar_alerts.tables.decide.unit import ErrorScale
from nightjar_alerts.tables.layout import Layout
from nightjar_alerts.tables.options import TableOptions
from nightjar_alerts.tables.vocabulary import VEGA_BY_CUSTOM, njy_of_unit

FAINTEST_MAGNITUDE: Final = 35.0
LARGEST_ZERO_POINT: Final = 50.0
LARGEST_MAGNITUDE_ERROR: Final = 5.0
"""Larger values are sentinels such as 99 and 999, and so are magnitudes of 0 and less, such as -99."""
MAGNITUDE_PER_FRACTION: Final = 2.5 / np.log(10.0)
"""2.5 / ln 10: magnitude error per relative flux error."""
LIMIT_TEXTS: Final = frozenset({"limit", "upper limit", "upperlimit", "nondetection", "non-detection", "<", ">", "ul"})
NEGATIVE_TEXTS: Final = frozenset({"f", "false", "0", "-1", "-", "n", "negative", "-1.0"})

REASONS: Final = (
    "",
    "no time",
    "time is not readable",
    "no filter",
    "filter left out",
    "unknown filter",
    "Solar System object",
    "flagged by the survey",
    "quality is too low",
    "upper limit",
    "no brightness",
    "brightness is not readable",
    "negative magnitude",
    "magnitude is not plausible",
    "magnitude error is not plausible",
    "no error",
    "error is not positive",
)
"""Why a point is not used, by its code."""
CODES: Final = {reason: code for code, reason in enumerate(REASONS)}

Values = Callable[[str], Array | None]
"""Column of a role, None where the table has none."""


class Measured(NamedTuple):
    """Fluxes and errors in nJy, the rows that are upper limits, and the codes of :data:`REASONS`."""

    flux: Float64
    flux_err: Float64
    is_limit: Bool
    code: NDArray[np.int8]


def mark(code: NDArray[np.int8], bad: Bool, reason: str) -> None:
    """Give points a reason, unless they have one."""
    code[bad & (code == 0)] = CODES[reason]


def measure(
    values: Values,
    columns: Mapping[str, str],
    filters: NDArray[np.object_],
    layout: Layout,
    options: TableOptions,
) -> Measured:
    """Return the brightness of n rows.

    Parameters
    ----------
    columns : names of the columns by role.
    filters : shape (n,), names of :data:`models.photometry.FILTERS`, empty where unknown.
    """
    offset = _ab_offset(values("mag_system"), filters, layout.mag_system)
    flux, flux_err = np.full((2, len(filters)), np.nan)
    is_limit, code = np.zeros(len(filters), np.bool_), np.zeros(len(filters), np.int8)
    if (flagged := values("upper_limit")) is not None:
        is_limit = flags(flagged)
        if is_text(flagged):
            is_limit |= np.array([text.lower() in LIMIT_TEXTS for text in texts(flagged)], np.bool_)
    if (mags := values("mag")) is not None:
        mag_scale = layout.errors.get(columns.get("mag_err", ""), ErrorScale(1.0))
        if (detected := values("detected")) is not None and flagged is None and values("flux") is None:
            is_limit = ~flags(detected) & (texts(detected) != "")
        flux, flux_err, is_limit, code = _from_magnitudes(mags, values, is_limit, offset, mag_scale, layout, options)
    if (fluxes := values("flux")) is not None:
        scale = _scale(values, filters, offset, layout, options)
        measured, unreadable = numbers(fluxes)
        own = layout.errors.get(columns.get("flux_err", ""), ErrorScale())
        errors = _sigma(_errors(values, "flux_err", measured)[0], own.kind)
        # A measured flux is better than the magnitude, and than the limit, of the same row.
        present = np.isfinite(measured) & np.isfinite(errors) if mags is not None else np.True_
        with np.errstate(over="ignore"):  # which is not finite, and left out
            flux = np.where(present, measured * scale, flux)
            flux_err = np.where(present, errors * (scale if own.factor is None else own.factor), flux_err)
        if mags is not None:
            is_limit, code = is_limit & ~present, np.where(present, 0, code).astype(np.int8)
        else:
            mark(code, unreadable, "brightness is not readable")
    if (limits := values("limit")) is not None:
        limit = _without_marks(limits)[0]
        limit[~((limit > 0) & (limit < FAINTEST_MAGNITUDE))] = np.nan
        is_limit |= ~np.isfinite(flux) & np.isfinite(limit)
        flux = np.where(is_limit & ~np.isfinite(flux), njy_of_magnitude(limit + offset), flux)
    code[is_limit] = 0
    if options.upper_limits == "use":
        is_limit &= np.isfinite(flux)
        flux_err[is_limit] = np.abs(flux[is_limit]) / options.limit_sigma
        flux[is_limit] = 0.0
    else:
        mark(code, is_limit, "upper limit")
    mark(code, ~np.isfinite(flux), "no brightness")
    mark(code, ~np.isfinite(flux_err), "no error")
    mark(code, ~(flux_err > 0), "error is not positive")
    return Measured(flux, flux_err, is_limit, code)


def _from_magnitudes(
    column: Array,
    values: Values,
    is_limit: Bool,
    offset: Float64,
    error_scale: ErrorScale,
    layout: Layout,
    options: TableOptions,
) -> Measured:
    mag, unreadable, beyond = _without_marks(column)
    is_limit = is_limit | beyond
    code = np.zeros(len(mag), np.int8)
    if values("mag_err") is None and values("snr") is None and options.mag_err is not None:
        error, bad_error = np.full(len(mag), options.mag_err), np.zeros(len(mag), np.bool_)
    else:
        error, bad_error = _errors(values, "mag_err", np.full(len(mag), MAGNITUDE_PER_FRACTION))
        error = _sigma(error, error_scale.kind) * (error_scale.factor or 1.0)
        if options.mag_err is not None:
            error[~(error > 0)] = options.mag_err
    mark(code, unreadable | (bad_error & ~is_limit), "brightness is not readable")
    size = np.abs(mag) if layout.signed else mag
    implausible = (size <= 0) | (size > FAINTEST_MAGNITUDE)
    large_error = (error > LARGEST_MAGNITUDE_ERROR) & ~is_limit & (not layout.signed)
    if not layout.signed:
        mark(code, mag < 0, "negative magnitude")
    mark(code, implausible, "magnitude is not plausible")
    mark(code, large_error, "magnitude error is not plausible")
    flux, flux_err = njy_with_error(size + offset, error)
    if layout.signed:
        flux = np.copysign(flux, mag)
    if (sign := values("sign")) is not None:
        flux = np.where(_is_negative(sign), -flux, flux)
    elif (status := values("upper_limit")) is not None and is_text(status):  # of Lasair: positive, negative or limit
        flux = np.where([text.lower() == "negative" for text in texts(status)], -flux, flux)
    flux[implausible] = np.nan
    flux_err[large_error] = np.nan
    return Measured(flux, flux_err, is_limit, code)


def _without_marks(column: Array) -> tuple[Float64, Bool, Bool]:
    """Return numbers, which may be limits such as ``>20.5``: values, and masks of unreadable ones and of limits."""
    found, unreadable = numbers(column)
    beyond = unreadable.copy()
    stated = texts(column[unreadable])
    beyond[unreadable] = [text.startswith(("<", ">")) for text in stated]
    found[unreadable], unreadable[unreadable] = numbers(object_column([text.lstrip("<> ") for text in stated]))
    return found, unreadable, beyond


def _sigma(error: Float64, kind: str) -> Float64:
    """Return errors of a column of errors, variances or inverse variances; NaN for none."""
    if kind == "sigma":
        return error
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error > 0, 1.0 / np.sqrt(error) if kind == "ivar" else np.sqrt(error), np.nan)


def _errors(values: Values, role: str, size: Float64) -> tuple[Float64, Bool]:
    """Return the column of errors, or ``size`` over the signal-to-noise ratio; and the mask of unreadable ones."""
    if (errors := values(role)) is not None:
        return numbers(errors)
    ratio = values("snr")
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.full(len(size), np.nan) if ratio is None else np.abs(size / numbers(ratio)[0])
    return error, np.zeros(len(size), np.bool_)


def _ab_offset(systems: Array | None, filters: NDArray[np.object_], usual: str) -> Float64:
    """Return the AB offset of each row (m_AB = m + offset), in mag."""

    def offset(name: str, stated: str) -> float:
        for system in (stated.lower(), usual.lower()):
            if "vega" in system or system in ("johnson", "bessell", "landolt"):
                return VEGA_AB_OFFSETS.get(name, 0.0)
            if "ab" in system or system in ("sdss", "natural sdss"):
                return 0.0
        return VEGA_AB_OFFSETS.get(name, 0.0) if name in VEGA_BY_CUSTOM else 0.0

    if systems is None:
        offsets = {name: offset(name, "") for name in set(filters)}
        return np.fromiter(map(offsets.__getitem__, filters), np.float64, len(filters))
    return np.fromiter(map(offset, filters, texts(systems)), np.float64, len(filters))


def _scale(
    values: Values, filters: NDArray[np.object_], offset: Float64, layout: Layout, options: TableOptions
) -> Float64:
    """Return nJy of one unit of flux, for each row."""
    if (zero_points := values("zero_point")) is not None:
        zero_point = numbers(zero_points)[0]
        zero_point[(zero_point <= 0) | (zero_point > LARGEST_ZERO_POINT)] = np.nan
        is_stated = values("mag_system") is not None or options.mag_system
        return njy_of_magnitude(zero_point + offset if is_stated else zero_point)
    if (units := values("flux_unit")) is not None:
        stated = texts(units)
        known = {text: njy_of_unit(text) or np.nan for text in set(stated)}
        return np.array([known[text] for text in stated], np.float64)
    if layout.scale.by_filter:
        scale = np.array([layout.scale.by_filter.get(name, layout.scale.njy) for name in filters], np.float64)
        return scale if layout.scale.is_ab else np.asarray(scale * 10 ** (-0.4 * offset))
    return np.full(len(filters), layout.scale.njy)


def _is_negative(sign: Array) -> Bool:
    if is_text(sign):
        stated, unreadable = numbers(sign)
        if unreadable.any() or not (stated < 0).any():
            return np.array([text.lower() in NEGATIVE_TEXTS for text in texts(sign)], np.bool_)
        sign = stated
    values = np.nan_to_num(sign.astype(np.float64), nan=1.0)
    return np.asarray(values < 0 if (values < 0).any() else values == 0, np.bool_)
