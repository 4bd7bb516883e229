"""Unit of fluxes and of their errors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, NoReturn, get_args

import numpy as np

from nightjar_alerts.models.checks import DEEPEST, SHALLOWEST
from nightjar_alerts.models.photometry import NJY_PER_UNIT, NJY_ZERO_POINT, SourceUnit, njy_of_magnitude
from nightjar_alerts.tables.columns import texts
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Decision, Roles, find, free
from nightjar_alerts.tables.vocabulary import (
    COUNTS,
    COUNTS_UNIT,
    INVERSE_VARIANCE,
    MILLIMAGNITUDES,
    OTHER_UNIT,
    VARIANCE,
    last_part,
    njy_of_unit,
    plain,
)

USUAL_DEPTH: Final = (14.0, 25.5)
"""AB magnitude at 5 sigma of a flux without a unit that is taken for nJy, the default of the service."""
POSSIBLE_DEPTH: Final = (12.0, 28.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Scale of fluxes.

    Attributes
    ----------
    njy : nJy of one unit of flux; of a filter in ``by_filter`` that one instead.
    is_ab : whether ``by_filter`` is on the AB system rather than on that of the magnitudes.
    has_flux : whether the column of fluxes is read. has_unit_column : whether a column states the unit of each row.
    """

    njy: float = 1.0
    by_filter: Mapping[str, float] = field(default_factory=dict)
    is_ab: bool = False
    has_flux: bool = True
    has_unit_column: bool = False


class ErrorScale(NamedTuple):
    """What a column of errors holds, and nJy, or mag, of one unit of the error; None if it has the unit of the flux."""

    factor: float | None = None
    kind: Literal["sigma", "variance", "ivar"] = "sigma"


_ZERO_POINT: Final = re.compile(r"zero_?(point|pt)(mag(nitude)?|ab)?$")
MIN_ROWS: Final = 3
"""Number of rows of one filter in which magnitudes must show the same zero point."""
MAX_DIFFERENCE: Final = 0.05
"""Largest difference in mag between the zero points that a unit and a column state."""


def find_zero_point(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find a column of zero points of the flux, unless the options or the survey's documentation state its unit.

    Raises TableQuestion if a column and the stated unit contradict each other.
    """
    survey, pool = roles.survey, (*roles.points, *evidence.header)
    if options.flux_unit or options.zero_point is not None or "zero_point" in options.columns:
        return roles
    is_documented = survey.unit or survey.zero_point is not None or survey.zero_points
    if is_documented and "zero_point" not in survey.roles:
        return roles
    found = find(evidence, roles, options, "zero_point", pool, evidence.looks_like_zero_point)
    if "zero_point" not in found.columns and "zero_point" not in survey.roles:
        named = [name for name in free(roles, pool) if _ZERO_POINT.search(plain(last_part(name)))]
        named = [name for name in named if evidence.looks_like_zero_point(name)]
        found = roles.taking(evidence, options, "zero_point", named[0]) if len(named) == 1 else roles
    flux = roles.all("flux")[0]
    unit = evidence.unit(flux)
    if "zero_point" not in found.columns or "zero_point" in survey.roles or unit is None:
        return found
    column = found.columns["zero_point"]
    stated, expected = float(np.median(evidence.finite(column))), NJY_ZERO_POINT - 2.5 * np.log10(NJY_PER_UNIT[unit])
    if abs(stated - expected) < MAX_DIFFERENCE:
        return found
    if "zeropoint" not in plain(column) and "zp" not in plain(column):
        return roles
    raise TableQuestion(
        f"The fluxes in {flux!r} have the unit {unit} (zero point {expected:.2f}), but {column!r} states {stated:.2f}.",
        "flux_unit",
        [Choice(unit, f"the unit counts, and {column!r} is not the zero point of these fluxes")],
    )


def decide_unit(
    evidence: Evidence, roles: Roles, filters: Mapping[str, str | None], options: TableOptions
) -> Decision[Scale]:
    """Decide the unit of the fluxes. Raises TableQuestion, and TableError for a unit that is not supported."""
    has_unit_column = "flux_unit" in roles.columns
    if "zero_point" in roles.columns or not (fluxes := roles.all("flux")):
        return Decision(Scale(has_unit_column=has_unit_column))
    flux = fluxes[0]
    if options.zero_point is not None:
        return Decision(Scale(float(njy_of_magnitude(options.zero_point)), has_unit_column=has_unit_column))
    if options.flux_unit:
        njy = 1.0 if options.flux_unit == "mag" else NJY_PER_UNIT[options.flux_unit]
        return Decision(Scale(njy, has_unit_column=has_unit_column))
    if has_unit_column and all(map(njy_of_unit, evidence.distinct(roles.columns["flux_unit"]))):
        return Decision(Scale(has_unit_column=True))
    named = evidence.unit(flux) or evidence.unit(roles.columns.get("flux_err", ""))
    if unit := named or roles.survey.unit:
        depths = depths_by_unit(evidence, roles)
        deepest = POSSIBLE_DEPTH[1] if roles.survey.survey == "lsst" else DEEPEST
        if not named and depths and not SHALLOWEST <= depths[unit] <= deepest:
            _ask_unit(evidence, flux, depths)
        text = f"fluxes in {flux!r} are in {unit}"
        guesses = () if flux.lower() == "fluxcal" else (Guess("flux_unit", unit, text),)
        return Decision(Scale(NJY_PER_UNIT[unit]), guesses)
    if (zero_point := evidence.zero_point(flux)) is not None:
        text = f"fluxes in {flux!r} are in maggies or nanomaggies"
        return _by_zero_point(zero_point, text)
    if (zero_point := roles.survey.zero_point) is not None:
        return _by_zero_point(zero_point, f"fluxes in {flux!r} are those of {roles.survey.name}")
    mag = roles.reference_mag
    if mag and (zero_points := _zero_points(evidence, roles, filters, flux, mag)):
        # The magnitudes may be Vega's; the correction by filter is applied to fluxes and magnitudes alike.
        scales = {name: float(njy_of_magnitude(zero_point)) for name, zero_point in zero_points.items()}
        listed = ", ".join(f"{name} {zero_point:.3f}".strip() for name, zero_point in zero_points.items())
        text = f"the zero point of {flux!r} follows from {mag!r}: {listed}"
        # Fluxes in a filter without magnitudes have no unit.
        return Decision(Scale(scales.get("", float("nan")), scales), (Guess("zero_point", "", text),))
    if known := roles.survey.zero_points:
        scales = {name: float(njy_of_magnitude(zero_point)) for name, zero_point in known.items()}
        listed = ", ".join(f"{name} {zero_point:.3f}" for name, zero_point in known.items())
        text = f"fluxes in {flux!r} have the AB zero points of {roles.survey.name}: {listed}"
        return Decision(Scale(by_filter=scales, is_ab=True), (Guess("zero_point", "", text),))
    if "mag" in roles.columns and "mag_err" in roles.columns:
        text = f"column {flux!r} is not used, because its unit is not known"
        return Decision(Scale(has_flux=False), (Guess("columns.flux", "", text),))
    stated = evidence.units.get(flux, "")
    if OTHER_UNIT.search(stated) and not COUNTS_UNIT.search(stated):
        raise _unsupported(flux, stated)
    return _unit_by_depth(evidence, roles, flux)


def _by_zero_point(zero_point: float, text: str) -> Decision[Scale]:
    guess = Guess("zero_point", f"{zero_point:g}", f"{text}: the AB zero point is {zero_point:g}")
    return Decision(Scale(float(njy_of_magnitude(zero_point))), (guess,))


def _zero_points(
    evidence: Evidence, roles: Roles, filters: Mapping[str, str | None], flux: str, mag: str
) -> dict[str, float]:
    """Return the zero point of fluxes by filter, if magnitudes in the same rows show the same one in all rows."""
    values, mags = evidence.numbers(flux), evidence.numbers(mag)
    if len(values) != len(mags):
        return {}
    bands = np.full(len(values), "", np.object_)
    column = roles.columns.get("band")
    if column is not None and evidence.is_list(column) == roles.nested:
        bands[:] = [filters.get(text) or "" for text in texts(evidence.values(column))]
    good = (values > 0) & (mags > 3) & (mags < 32)
    found: dict[str, float] = {}
    most = 0
    for name in np.unique(bands[good]):
        rows = good & (bands == name)
        zero_points = mags[rows] + 2.5 * np.log10(values[rows])
        found[str(name)] = float(np.median(zero_points))
        most = max(most, len(zero_points))
        if np.median(np.abs(zero_points - found[str(name)])) > 0.05:
            return {}
    return found if most >= MIN_ROWS else {}


def _unit_by_depth(evidence: Evidence, roles: Roles, flux: str) -> Decision[Scale]:
    """Decide by the depth that the errors mean in each unit."""
    if plain(last_part(flux)) in COUNTS or COUNTS_UNIT.search(evidence.units.get(flux, "")):
        raise TableQuestion(f"Which AB zero point do the counts in {flux!r} have, in mag?", "zero_point")
    depths = depths_by_unit(evidence, roles)
    if not depths:
        text = f"assumed: fluxes in {flux!r} are in nJy, the default"
    elif USUAL_DEPTH[0] <= depths["nJy"] <= USUAL_DEPTH[1]:
        text = f"assumed: fluxes in {flux!r} are in nJy: their errors fit a depth of {depths['nJy']:.1f} mag"
    elif set(_possible(depths)) == {"nJy"}:
        text = f"assumed: fluxes in {flux!r} are in nJy: no other unit fits their errors"
    else:
        _ask_unit(evidence, flux, depths)
    return Decision(Scale(), (Guess("flux_unit", "nJy", text),))


def _ask_unit(evidence: Evidence, flux: str, depths: Mapping[str, float]) -> NoReturn:
    choices = [
        Choice(unit, f"a depth of {depth:.1f} mag at 5 sigma") for unit, depth in (_possible(depths) or depths).items()
    ]
    if evidence.looks_like_magnitudes(flux):
        choices.append(Choice("mag", "they are AB magnitudes"))
    question = f"In which unit are the fluxes in {flux!r}? For counts or nanomaggies (22.5) set zero_point instead."
    raise TableQuestion(question, "flux_unit", choices)


def depths_by_unit(evidence: Evidence, roles: Roles) -> dict[str, float]:
    """Return the 5 sigma depth (AB mag) of the median error in each unit, empty without errors."""
    columns = roles.all("flux_err")
    errors = np.abs(evidence.finite(columns[0])) if columns else np.zeros(0)
    errors = errors[errors > 0]
    if not errors.size:
        return {}
    middle = float(np.median(errors))
    return {unit: NJY_ZERO_POINT - 2.5 * np.log10(5 * middle * scale) for unit, scale in NJY_PER_UNIT.items()}


def _possible(depths: Mapping[str, float]) -> dict[str, float]:
    return {unit: depth for unit, depth in depths.items() if POSSIBLE_DEPTH[0] <= depth <= POSSIBLE_DEPTH[1]}


def _unsupported(name: str, unit: str) -> TableError:
    known = ", ".join(get_args(SourceUnit))
    return TableError(
        f"the unit {unit!r} of column {name!r} is not supported: convert it to one of {known}, or to magnitudes"
    )


def decide_error_units(
    evidence: Evidence, roles: Roles, scale: Scale, options: TableOptions
) -> Decision[dict[str, ErrorScale]]:
    """Decide what each column of errors holds that is not in the unit of its flux or magnitude. Raises TableError."""
    scales, guesses = dict[str, ErrorScale](), list[Guess]()
    is_given = bool(options.flux_unit) or options.zero_point is not None
    for name in roles.all("flux_err"):
        stated = evidence.units.get(name, "")
        if (kind := _kind_of_error(name)) != "sigma":
            scales[name] = ErrorScale(None, kind)
            meaning = "inverse variances" if kind == "ivar" else "variances"
            guesses.append(Guess("", "", f"values in {name!r} are {meaning} of the flux"))
        elif is_given:
            continue
        elif unit := evidence.unit(name):
            scales[name] = ErrorScale(NJY_PER_UNIT[unit])
            if NJY_PER_UNIT[unit] != scale.njy or "zero_point" in roles.columns:
                guesses.append(Guess("", "", f"errors in {name!r} are in {unit}"))
        elif evidence.zero_point(name) is not None or not OTHER_UNIT.search(stated):
            continue
        elif stated in {evidence.units.get(flux, "") for flux in roles.all("flux")}:
            continue  # the flux was given a scale, whatever the unit
        elif not COUNTS_UNIT.search(stated) or not _may_be_counts(evidence, roles):
            raise _unsupported(name, stated)
    for name in roles.all("mag"):
        if MILLIMAGNITUDES.search(f"{name} {evidence.units.get(name, '')}"):
            raise TableError(
                f"the magnitudes in column {name!r} are in mmag, which is not supported: write them in mag"
            )
    for name in roles.all("mag_err"):
        stated = evidence.units.get(name, "")
        if (kind := _kind_of_error(name)) != "sigma":
            scales[name] = ErrorScale(None, kind)
        elif MILLIMAGNITUDES.search(f"{name} {stated}"):
            scales[name] = ErrorScale(1e-3)
            guesses.append(Guess("", "", f"errors in {name!r} are in mmag"))
        elif OTHER_UNIT.search(stated):
            raise _unsupported(name, stated)
    return Decision(scales, tuple(guesses))


def _kind_of_error(name: str) -> Literal["sigma", "variance", "ivar"]:
    field_name = last_part(name)
    if INVERSE_VARIANCE.search(field_name):
        return "ivar"
    return "variance" if VARIANCE.search(field_name) else "sigma"


def _may_be_counts(evidence: Evidence, roles: Roles) -> bool:
    """Return whether the unit of the flux is counts, or not stated."""
    return all(
        COUNTS_UNIT.search(unit) or not unit for unit in (evidence.units.get(name, "") for name in roles.all("flux"))
    )
