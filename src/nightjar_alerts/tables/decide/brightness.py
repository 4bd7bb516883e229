"""Which columns hold the brightness and its errors, in which magnitude system, and what negative magnitudes mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from nightjar_alerts.models.photometry import NJY_PER_UNIT
from nightjar_alerts.tables.columns import flags
from nightjar_alerts.tables.decide.bands import ONE_NUMBER
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Decision, Roles, candidates, find, free, question
from nightjar_alerts.tables.vocabulary import (
    SURE_MAGNITUDES,
    VEGA_BY_CUSTOM,
    error_rank,
    names_magnitudes,
    plain,
    unit_of,
)

MAGNITUDE_SLOPE: Final = 2.0
"""Power of the value with which errors grow: more than 3 for magnitudes, 1 or less for fluxes."""
LARGEST_ERROR: Final = 9.0
MAX_CANDIDATES: Final = 32
"""Columns that may be the brightness, the most likely first, whose errors are looked for among all columns."""
_SYSTEM_TEXTS: Final = {"AB": "AB", "Vega": "Vega", "mixed": "Vega in U B V R I G BP RP and unfiltered, AB in others"}


def find_brightness(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the columns of magnitudes, fluxes and their errors. Raises TableQuestion."""
    mags, fluxes = _mags_and_fluxes(evidence, roles, options)
    pairs: dict[str, tuple[str, str]] = {}
    for kind, names in (("mag", mags), ("flux", fluxes)):
        used = [name for pair in pairs.values() for name in pair]
        bare = not any(error for _, error in pairs.values())  # otherwise a column `err` is that of the magnitudes
        for name in names[:MAX_CANDIDATES]:
            error = _error_of(evidence, roles, options, kind, name, used, bare=bare)
            if kind not in pairs or error:
                pairs[kind] = name, error
            if error:
                break
    if not pairs:
        raise question(evidence, "Which column holds the brightness?", "columns.mag")
    roles = replace(roles, reference_mag=pairs["mag"][0] if "mag" in pairs else "")
    # Fluxes keep what magnitudes lose (negative values), but only with a known unit. Both are read where they have
    # errors, so that one can fill the gaps of the other.
    roles, complete = _with_errors(evidence, roles, options, pairs)
    for kind, (name, error) in complete.items():
        if kind == "mag" and error and not _are_surely_magnitudes(evidence, roles, options, name, error):
            choices = [Choice("mag", "magnitudes"), *(Choice(unit, "fluxes") for unit in NJY_PER_UNIT)]
            text = f"Are the values of {name!r} magnitudes, or fluxes? Their errors fit both."
            raise TableQuestion(text, "flux_unit", choices)
        roles = roles.taking(evidence, options, kind, name)
        if error:
            roles = roles.taking(evidence, options, f"{kind}_err", error)
    if "flux" in pairs and "flux" not in roles.columns and options.columns.get("flux") is None:
        text = f"column {pairs['flux'][0]!r} is not used, because it has no errors"
        roles = roles.guess("columns.flux", "", text)
    return roles


def _mags_and_fluxes(evidence: Evidence, roles: Roles, options: TableOptions) -> tuple[list[str], list[str]]:
    """Return the columns that may be magnitudes, and those that may be fluxes, the most likely first."""
    chosen = options.columns
    if chosen.get("mag") or chosen.get("flux"):
        mags, fluxes = ([name] if (name := chosen.get(kind)) else [] for kind in ("mag", "flux"))
    else:
        mags = [] if "mag" in chosen else candidates(evidence, roles, "mag", test=evidence.may_hold_magnitudes)
        mags = [name for name in mags if not unit_of(evidence.units.get(name, ""))]
        fluxes = [] if "flux" in chosen else candidates(evidence, roles, "flux", test=evidence.is_numeric)
    if not fluxes and not mags:
        mags = [name for name in free(roles, test=evidence.looks_like_magnitudes) if evidence.has_unit_magnitude(name)]
    columns = candidates(evidence, roles, "flux_unit", evidence.header)[:1]
    stated = [text for name in columns for text in evidence.distinct(name)]
    are_mags = options.flux_unit == "mag" or (stated and all(map(names_magnitudes, stated)))
    if fluxes and (are_mags or evidence.has_unit_magnitude(fluxes[0])):
        mags, fluxes = [fluxes[0], *mags], fluxes[1:]
    elif (
        mags and not fluxes and ((stated and all(map(unit_of, stated))) or _is_unsure_flux(evidence, options, mags[0]))
    ):
        mags, fluxes = [], mags
    if mags or fluxes:
        return mags, fluxes
    mags, fluxes = _brightness_by_value(evidence, roles)
    return ([], mags) if mags and not fluxes and _is_given_as_flux(evidence, options, mags[0]) else (mags, fluxes)


def _is_unsure_flux(evidence: Evidence, options: TableOptions, name: str) -> bool:
    """Return True for a column such as ``brightness`` that holds a flux, by the options or by its values."""
    if options.columns.get("mag") or evidence.keys[name] & SURE_MAGNITUDES:
        return False
    return _is_given_as_flux(evidence, options, name) or not evidence.looks_like_magnitudes(name)


def _is_given_as_flux(evidence: Evidence, options: TableOptions, name: str) -> bool:
    """Return True for a column without the name of magnitudes, where the options state the scale of fluxes."""
    is_given = options.flux_unit not in ("", "mag") or options.zero_point is not None
    return is_given and "mag" not in plain(name) and not evidence.keys[name] & SURE_MAGNITUDES


def _brightness_by_value(evidence: Evidence, roles: Roles) -> tuple[list[str], list[str]]:
    """Look for a column that can only be the brightness, by its values or its place."""
    numeric = free(roles, test=evidence.is_numeric)
    if evidence.is_positional and numeric and "time" in roles.columns:
        return (numeric[:1], []) if evidence.looks_like_magnitudes(numeric[0]) else ([], numeric[:1])
    numeric = [name for name in numeric if not plain(name).startswith("log")]
    bright = [name for name in numeric if evidence.looks_like_magnitudes(name) and np.ptp(evidence.finite(name)) > 0]
    values = [name for name in numeric if not _is_error_name(plain(name))]
    mags = [name for name in values if name in bright and "mag" in plain(name)]
    fluxes = [name for name in values if re.search("flux|jy", plain(name))]
    if mags or fluxes or len(bright) == 1:
        return (mags, fluxes) if mags or fluxes else (bright, [])
    choices = [Choice(name, "looks like magnitudes") for name in bright]
    hint = evidence.not_read([*candidates(evidence, roles, "mag"), *candidates(evidence, roles, "flux")], ONE_NUMBER)
    option, advice = ("columns.mag", "") if bright else ("columns.flux", " Name magnitudes by columns.mag.")
    raise question(evidence, f"Which column holds the brightness?{hint}", option, choices, advice)


def _is_error_name(key: str) -> bool:
    return bool(re.search(r"(err|error|unc|sigma|std)", key)) or key.startswith(("e", "d", "sig"))


def _are_surely_magnitudes(evidence: Evidence, roles: Roles, options: TableOptions, name: str, error: str) -> bool:
    """Return False for values without the name or unit of magnitudes whose errors do not show what they are.

    The errors of magnitudes grow towards faint ones by a factor of 1.2 to 2.5 per magnitude, which is a power of
    four or more of the magnitude. Those of fluxes are constant, or grow like the flux at most.
    """
    is_named = "mag" in plain(name) or evidence.keys[name] & SURE_MAGNITUDES
    is_stated = evidence.has_unit_magnitude(name) or options.columns.get("mag") or options.flux_unit == "mag"
    if is_named or evidence.is_positional or is_stated or roles.survey.mag_system or options.mag_system:
        return True
    values, errors = evidence.numbers(name), evidence.numbers(error)
    if len(values) != len(errors):
        return False
    good = (values > 0) & (values < 32) & (errors > 0) & (errors < LARGEST_ERROR)
    if good.sum() < 3 or np.ptp(values[good]) == 0:
        return False
    slope = np.polyfit(np.log(values[good]), np.log(errors[good]), 1)[0]
    return bool(slope > MAGNITUDE_SLOPE)


def _error_of(
    evidence: Evidence, roles: Roles, options: TableOptions, kind: str, name: str, used: Sequence[str], *, bare: bool
) -> str:
    """Return the column of the errors of another one, empty if there is none.

    Parameters
    ----------
    used : columns that are not looked at. bare : whether it may be called an error without the name of the other.
    """
    if (chosen := options.columns.get(f"{kind}_err")) is not None:
        return chosen
    ranked: list[tuple[int, int, str]] = []
    for candidate in free(roles, test=evidence.is_numeric):
        rank = error_rank(evidence.keys[candidate], evidence.keys[name], kind)
        if candidate != name and candidate not in used and rank is not None and (bare or rank < 2):
            ranked.append((rank, len(ranked), candidate))
    return min(ranked)[2] if ranked else ""


def _with_errors(
    evidence: Evidence, roles: Roles, options: TableOptions, pairs: Mapping[str, tuple[str, str]]
) -> tuple[Roles, Mapping[str, tuple[str, str]]]:
    """Return the columns of brightness whose errors are known. Raises TableQuestion if there are none."""
    if complete := {kind: pair for kind, pair in pairs.items() if pair[1]}:
        return roles, complete
    kind, (name, _) = next(iter(pairs.items()))
    others = [other for other in free(roles, test=evidence.is_numeric) if other != name]
    if evidence.is_positional and others:
        return roles, {kind: (name, others[0])}
    if kind == "mag" and options.mag_err is not None:
        return roles, {kind: (name, "")}
    if kind == "mag" and _are_all_limits(evidence, roles, name):
        return roles, {kind: (name, "")}
    roles = find(evidence, roles, options, "snr", roles.points, evidence.is_numeric)
    if "snr" in roles.columns:
        return roles, pairs
    if kind == "mag" and "mag_err" not in options.columns:
        likely = [other for other in others if evidence.looks_like_errors(other)]
        if len(likely) == 1:
            return roles, {kind: (name, likely[0])}
    hint = " Name it by columns.mag_err, or set one error in mag for all." if kind == "mag" else ""
    option = "mag_err" if kind == "mag" else "columns.flux_err"
    raise question(evidence, f"Which column holds the errors of {name!r}?", option, hint=hint)


def _are_all_limits(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return whether a flag marks every magnitude as an upper limit."""
    found = candidates(evidence, roles, "upper_limit")
    if not found or len(evidence.values(found[0])) != len(mags := evidence.numbers(name)):
        return False
    return bool(flags(evidence.values(found[0]))[np.isfinite(mags)].all())


def decide_magnitude_system(
    evidence: Evidence, roles: Roles, filters: Mapping[str, str | None], options: TableOptions
) -> Decision[str]:
    """Decide the system of magnitudes: ``AB``, ``Vega`` or ``mixed``; a column of systems counts before it."""
    if options.mag_system:
        return Decision(options.mag_system)
    known = roles.survey.mag_system
    if not roles.all("mag") or "mag_system" in roles.columns:
        return Decision(known or "mixed")
    unit = evidence.units.get(roles.columns.get("mag", ""), "").lower()
    name = plain(roles.columns.get("mag", ""))
    if "ab" in unit or name.endswith("ab") or name.startswith("abmag"):
        return Decision("AB")
    if "vega" in unit or "vega" in name:
        return Decision("Vega")
    if known:
        return Decision(known, (Guess("mag_system", known, f"magnitudes are {_SYSTEM_TEXTS[known]}"),))
    found = {band for band, _ in roles.sets()} | {band for band in filters.values() if band}
    if vega := ", ".join(sorted(found & VEGA_BY_CUSTOM)):
        text = f"assumed: magnitudes in {vega} are Vega, those in other filters AB"
        return Decision("mixed", (Guess("mag_system", "mixed", text),))
    return Decision("mixed", (Guess("mag_system", "AB", "assumed: magnitudes are AB"),))


def decide_signs(
    evidence: Evidence, roles: Roles, filters: Mapping[str, str | None], options: TableOptions
) -> Decision[bool]:
    """Decide whether negative magnitudes are those of negative fluxes, as in ATLAS's forced photometry."""
    if options.signed_magnitudes is not None or "mag" not in roles.columns or "flux" in roles.columns:
        return Decision(bool(options.signed_magnitudes))
    values = evidence.finite(roles.columns["mag"])
    negative = values[(values < -8) & (values > -30)]
    if len(negative) > 2 and not (values > 0).any() and len(np.unique(negative)) > 2:
        raise TableQuestion(
            f"All magnitudes in {roles.columns['mag']!r} are negative. Do they stand for negative fluxes? To "
            "absolute or instrumental ones the distance modulus or the zero point has to be added.",
            "signed_magnitudes",
            [Choice("true", "negative fluxes"), Choice("false", "they are left out")],
        )
    found = {band for band in filters.values() if band}
    least = 1 if found and found <= {"c", "o"} else 3
    if len(negative) >= least and len(np.unique(negative)) > len(negative) / 2:
        text = "negative magnitudes stand for negative fluxes, as in ATLAS's forced photometry"
        return Decision(True, (Guess("signed_magnitudes", "true", text),))
    return Decision(False)
