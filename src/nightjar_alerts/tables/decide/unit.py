"""Unit of fluxes and of their errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, get_args

import numpy as np

from nightjar_alerts.models.checks import DEEPEST, SHALLOWEST
from nightjar_alerts.models.photometry import NJY_PER_UNIT, NJY_ZERO_POINT, SourceUnit, njy_of_magnitude
from nightjar_alerts.tables.columns import texts
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Decision, Roles
from nightjar_alerts.tables.vocabulary import (
    COUNTS,
    COUNTS_UNIT,
    MILLIMAGNITUDES,
    OTHER_UNIT,
    last_part,
    plain,
    unit_of,
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
    has_flux : whether the column of fluxes is read. has_unit_column : whether a column states the unit of each row.
    """

    njy: float = 1.0
    by_filter: Mapping[str, float] = field(default_factory=dict)
    has_flux: bool = True
    has_unit_column: bool = False


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
    if has_unit_column and all(map(unit_of, evidence.distinct(roles.columns["flux_unit"]))):
        return Decision(Scale(has_unit_column=True))
    named = evidence.unit(flux) or evidence.unit(roles.columns.get("flux_err", ""))
    if unit := named or roles.survey.unit:
        depths = depths_by_unit(evidence, roles)
        if not named and depths and not SHALLOWEST <= depths[unit] <= DEEPEST:
            _ask_unit(evidence, flux, depths)
        text = f"fluxes in {flux!r} are in {unit}"
        guesses = () if flux.lower() == "fluxcal" else (Guess("flux_unit", unit, text),)
        return Decision(Scale(NJY_PER_UNIT[unit]), guesses)
    mag = roles.reference_mag
    if mag and (zero_points := _zero_points(evidence, roles, filters, flux, mag)):
        # The magnitudes may be Vega's; the correction by filter is applied to fluxes and magnitudes alike.
        scales = {name: float(njy_of_magnitude(zero_point)) for name, zero_point in zero_points.items()}
        listed = ", ".join(f"{name} {zero_point:.3f}".strip() for name, zero_point in zero_points.items())
        text = f"the zero point of {flux!r} follows from {mag!r}: {listed}"
        return Decision(Scale(float(np.median(list(scales.values()))), scales), (Guess("zero_point", "", text),))
    if "mag" in roles.columns and "mag_err" in roles.columns:
        text = f"column {flux!r} is not used, because its unit is not known"
        return Decision(Scale(has_flux=False), (Guess("columns.flux", "", text),))
    stated = evidence.units.get(flux, "")
    if OTHER_UNIT.search(stated) and not COUNTS_UNIT.search(stated):
        raise _unsupported(flux, stated)
    return _unit_by_depth(evidence, roles, flux)


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
    for name in np.unique(bands[good]):
        rows = good & (bands == name)
        zero_points = mags[rows] + 2.5 * np.log10(values[rows])
        if len(zero_points) < 3:
            continue
        found[str(name)] = float(np.median(zero_points))
        if np.median(np.abs(zero_points - found[str(name)])) > 0.05:
            return {}
    return found


def _unit_by_depth(evidence: Evidence, roles: Roles, flux: str) -> Decision[Scale]:
    """Decide by the depth that the errors mean in each unit."""
    if plain(last_part(flux)) in COUNTS or COUNTS_UNIT.search(evidence.units.get(flux, "")):
        raise TableQuestion(f"Which AB zero point do the counts in {flux!r} have, in mag?", "zero_point")
    depths = depths_by_unit(evidence, roles)
    if not depths:
        text = f"fluxes in {flux!r} are in nJy, the default"
    elif USUAL_DEPTH[0] <= depths["nJy"] <= USUAL_DEPTH[1]:
        text = f"fluxes in {flux!r} are in nJy: their errors fit a depth of {depths['nJy']:.1f} mag"
    elif set(_possible(depths)) == {"nJy"}:
        text = f"fluxes in {flux!r} are in nJy: no other unit fits their errors"
    else:
        _ask_unit(evidence, flux, depths)
    return Decision(Scale(), (Guess("flux_unit", "nJy", text),))


def _ask_unit(evidence: Evidence, flux: str, depths: Mapping[str, float]) -> NoReturn:
    choices = [
        Choice(unit, f"a depth of {depth:.1f} mag at 5 sigma") for unit, depth in (_possible(depths) or depths).items()
    ]
    if evidence.looks_like_magnitudes(flux):
        choices.append(Choice("mag", "they are AB magnitudes"))
    raise TableQuestion(f"In which unit are the fluxes in {flux!r}?", "flux_unit", choices)


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
) -> Decision[dict[str, float]]:
    """Decide nJy, or mag, of one unit of each column of errors that has a unit of its own. Raises TableError."""
    scales, guesses = dict[str, float](), list[Guess]()
    flux_errors = roles.all("flux_err") if not options.flux_unit and options.zero_point is None else []
    for name in flux_errors:
        stated = evidence.units.get(name, "")
        if unit := evidence.unit(name):
            scales[name] = NJY_PER_UNIT[unit]
            if NJY_PER_UNIT[unit] != scale.njy:
                guesses.append(Guess("", "", f"errors in {name!r} are in {unit}"))
        elif OTHER_UNIT.search(stated):
            raise _unsupported(name, stated)
    for name in roles.all("mag_err"):
        stated = evidence.units.get(name, "")
        if MILLIMAGNITUDES.search(f"{name} {stated}"):
            scales[name] = 1e-3
            guesses.append(Guess("", "", f"errors in {name!r} are in mmag"))
        elif OTHER_UNIT.search(stated):
            raise _unsupported(name, stated)
    return Decision(scales, tuple(guesses))
