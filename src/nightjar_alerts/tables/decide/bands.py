"""Which column names the filters, or which columns belong to which filter, and what the names mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion, described_filter
from nightjar_alerts.tables.roles import Decision, Roles, candidates, find, free, question
from nightjar_alerts.tables.vocabulary import NUMBERINGS, STRONG_BANDS, filter_and_role, last_part, plain

SLOAN_CAPITALS: Final = frozenset("UGRIZY")
ONE_NUMBER: Final = "a value must be one number, and its error another column"
SHOWN_UNKNOWN: Final = 12
UVOT: Final = frozenset({"uvw1", "uvm2", "uvw2"})
_INFRARED: Final = re.compile(r"(?:([JHKLM]s?)_?(?:mag|MAG)|([wW][1-4])(?:_?mag|mpro))(?:_ep)?")
_NUMBERS: Final = re.compile(r"[0-9]{1,18}")
_VALUES: Final = frozenset({"value", "mag", "flux"})


def find_band(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of filters, or a set of columns for each filter. Raises TableQuestion."""
    if options.band:
        by_filter = _filters_of_magnitudes(evidence, roles)
        if len(by_filter) > 1 and not (options.columns.get("mag") or options.columns.get("flux")):
            listed = ", ".join(by_filter.values())
            raise TableError(
                f"band is given, but the table has columns of several filters ({listed}): leave it out, or name the "
                "column to read by columns.mag or columns.flux"
            )
        return replace(roles, band=described_filter(options.band, "band"))
    if roles.survey.wide:
        return _wide_of_survey(evidence, roles)
    pool = [*roles.points, *evidence.scalars] if roles.nested else roles.points
    roles = find(evidence, roles, options, "band", pool, evidence.holds_filters)
    if (column := roles.columns.get("band")) is not None:
        named = [name for name in candidates(evidence, roles, "band", pool) if evidence.is_all_filters(name)]
        are_numbers = all(map(_NUMBERS.fullmatch, evidence.distinct(column)))
        if named and are_numbers and "band" not in options.columns:  # such as band_name
            return roles.without("band").taking(evidence, options, "band", named[0])
        return roles
    by_value = free(roles, pool, evidence.is_all_filters)
    if len(by_value) == 1:
        return roles.taking(evidence, options, "band", by_value[0])
    if (wide := _find_wide(evidence, roles, options)).wide:
        return wide
    unknown = [name for name in candidates(evidence, roles, "band", pool) if evidence.keys[name] & STRONG_BANDS]
    if unknown and "band" not in options.columns:
        return roles.taking(evidence, options, "band", unknown[0])
    if band := roles.survey.band:
        return replace(roles, band=band).guess("band", band, f"all points are in filter {band}")
    if own := [name for name in free(roles) if (split := filter_and_role(name)) and split[1] in _VALUES]:
        hint = evidence.not_read([name for name in own if not evidence.is_numeric(name)], ONE_NUMBER)
        if len(own) > 1:
            text = f"Which columns hold the errors of {', '.join(own)}, the columns by filter?{hint}"
            raise question(
                evidence, text, "mag_err", hint=" Set one error in mag for all, or name them such as e_Vmag."
            )
        hint = hint or f" Columns by filter ({', '.join(own)}) need errors: set mag_err to one in mag for all."
    else:
        hint = ""
    if infrared := [name for name in free(roles) if _INFRARED.fullmatch(last_part(name))]:
        raise TableError(
            f"columns {', '.join(infrared)} are of infrared filters, which are not known; to read one of them as "
            "another filter, name it by columns.mag, and the filter by band"
        )
    choices = [Choice(name, "") for name in FILTERS]
    raise question(evidence, f"Which filter are the observations in?{hint}", "band", choices)


def _filters_of_magnitudes(evidence: Evidence, roles: Roles) -> dict[str, str]:
    """Return the columns of magnitudes or fluxes of one filter, by their filters."""
    found: dict[str, str] = {}
    for name in free(roles, test=evidence.is_numeric):
        if (split := filter_and_role(name)) and split[0] and split[1] in ("mag", "flux"):
            found.setdefault(split[0], name)
    return found


def _wide_of_survey(evidence: Evidence, roles: Roles) -> Roles:
    """Return the columns of each filter that the survey's documentation names."""
    wide = []
    for band, columns in roles.survey.wide.items():
        own = {role: name for role, key in columns.items() for name in roles.points if key in evidence.keys[name]}
        if {"time", "flux", "flux_err"} <= own.keys() or {"time", "mag", "mag_err"} <= own.keys():
            wide.append((band, own))
    return replace(roles, wide=tuple(wide))


def _find_wide(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Look for a set of columns for each filter."""
    bands: dict[str, dict[str, str]] = {}
    names = free(roles)
    present = set(names)
    marks = {name: mark for name in names if (mark := _mark_of_value(name, present))}
    for name in names:
        if name not in marks and evidence.is_numeric(name) and (split := filter_and_role(name)):
            bands.setdefault(split[0], {}).setdefault(split[1], name)
    for name, (role, value) in marks.items():  # such as e_Bmag, the error of Bmag, and l_Bmag, its limit flag
        for own in bands.values():
            kinds = [kind for kind in ("mag", "flux", "value") if own.get(kind) == value]
            if kinds and role == "err" and evidence.is_numeric(name):
                own.setdefault("err" if kinds[0] == "value" else f"{kinds[0]}_err", name)
            elif kinds and role == "upper_limit":
                own.setdefault("upper_limit", name)
    empty = [name for name in names if name not in marks and filter_and_role(name) and not evidence.distinct(name)]
    wide = []
    bare = [own["value"] for own in bands.values() if "value" in own]  # columns with the name of the filter alone
    kind = "mag" if any(map(evidence.looks_like_magnitudes, bare)) else "flux"
    for band, own in bands.items():
        if "value" in own:
            own.setdefault(kind, own.pop("value"))
        if "err" in own:
            own.setdefault("flux_err" if "flux" in own else "mag_err", own.pop("err"))
        if ("flux" in own and "flux_err" in own) or ("mag" in own and ("mag_err" in own or options.mag_err)):
            named = described_filter(options.filters.get(band, band), f"filters[{band!r}]")
            wide.append((named or band, own))
    if not wide or ("time" not in roles.columns and not all("time" in own for _, own in wide)):
        return roles
    listed = ", ".join(f"{name}: {' '.join(own.values())}" for name, own in wide)
    roles = replace(roles, wide=tuple(wide)).guess("", "", f"the table has columns for each filter ({listed})")
    return roles.guess("", "", f"columns without a value: {', '.join(empty)}") if empty else roles


def _mark_of_value(name: str, names: set[str]) -> tuple[str, str] | None:
    """Return ``err`` or ``upper_limit``, and the column that an error or a limit flag of VizieR belongs to."""
    for prefix, role in (("e_", "err"), ("E_", "err"), ("err_", "err"), ("sigma_", "err"), ("l_", "upper_limit")):
        if name.startswith(prefix) and name.removeprefix(prefix) in names:
            return role, name.removeprefix(prefix)
    return None


def decide_filters(evidence: Evidence, roles: Roles, options: TableOptions) -> Decision[dict[str, str | None]]:
    """Decide the filter of each name in the column of filters. Raises TableQuestion."""
    filters: dict[str, str | None] = {
        name: described_filter(meaning, f"filters[{name!r}]") for name, meaning in options.filters.items()
    }
    if "band" not in roles.columns:
        return Decision(filters)
    column, guesses = roles.columns["band"], list[Guess]()
    names = evidence.distinct(column)
    if unused := sorted(set(options.filters) - set(names)):
        guesses.append(Guess("", "", f"no row is in {', '.join(unused)}, which the option filters names"))
    unset = [name for name in names if name not in options.filters]
    has_numbers = any(map(_NUMBERS.fullmatch, unset))
    if options.filter_numbers and not has_numbers:
        text = "filter_numbers is given and changes nothing, because no filter is a number: leave it out"
        raise TableError(text)
    if has_numbers:
        numbers = _decide_numbers(evidence, roles, options, column, unset)
        filters = {**numbers.value, **filters}
        guesses += numbers.guesses
    if _are_sloan_capitals(roles, options, column, unset):
        filters = {**{name: known_filter(name.lower()) for name in SLOAN_CAPITALS}, **filters}
    if "O" in unset and set(unset) <= {"C", "O"}:
        filters = {"C": "c", "O": "o", **filters}  # of ATLAS
    filters = {**roles.survey.filters, **filters}
    _ask_about_r(roles, options, column, names)
    _ask_about_letters(column, set(unset) - filters.keys())
    if "u" in unset and {plain(name) for name in names} & UVOT:
        filters = {"u": "U", **filters}  # u of Swift's telescope, which is near U
    filters = {**{name: known_filter(name) for name in names}, **filters}
    unknown = [name for name in names if filters[name] is None]
    if unknown and len(unknown) == len(names):
        wavelengths = [f"{name}={wavelength:g}" for name in unknown if (wavelength := _wavelength_in(name))]
        choices = [Choice(f"{unknown[0]}=r", "a filter by its name"), Choice(f"{unknown[0]}=620", "a wavelength in nm")]
        if wavelengths:
            choices = [Choice(",".join(wavelengths), "the wavelengths in nm that the names state")]
        raise TableQuestion(f"Which filters are {', '.join(map(repr, unknown[:8]))} in {column!r}?", "filters", choices)
    renamed = {
        name: found for name in names if (found := filters[name]) and name != found and name not in options.filters
    }
    if renamed:
        listed = ", ".join(f"{name} is {found}" for name, found in renamed.items())
        value = ",".join(f"{name}={found}" for name, found in renamed.items())
        guesses.append(Guess("filters", value, f"filters: {listed}"))
    if unknown:
        listed = ", ".join(unknown[:SHOWN_UNKNOWN])
        guesses.append(Guess("filters", "", f"rows in filters that are not known are left out: {listed}"))
    return Decision(filters, tuple(guesses))


def _wavelength_in(name: str) -> float:
    """Return the wavelength in nm in a name of Hubble's or Webb's filters, such as F625W, 0 without one."""
    match = re.search(r"(?i)(?:^|[^A-Za-z0-9])F(\d{3})(?:W|M|N|LP|X|W2)$", name)
    if not match:
        return 0.0
    number = float(match[1])
    return number if number >= SHORTEST_NM else 10 * number


SHORTEST_NM: Final = 200.0
"""Smaller numbers in the names of Hubble's infrared filters are tens of nm."""


def _ask_about_r(roles: Roles, options: TableOptions, column: str, names: Sequence[str]) -> None:
    """Raise TableQuestion for g together with R and without B or V: R may be r of ZTF or PTF, or that of Cousins."""
    is_clear = survey_of(roles, options) == "ztf" or "R" in roles.survey.filters or "R" in options.filters
    if is_clear or not {"g", "R"} <= set(names) or set(names) & {"B", "V", "U", "r"}:
        return
    raise TableQuestion(
        f"Is 'R' in {column!r} r of a survey such as ZTF or PTF, or R of Cousins? The other filters are "
        f"{', '.join(name for name in names if name != 'R')}.",
        "filters",
        [Choice("R=r", "r of a survey (AB)"), Choice("R=R", "R of Cousins (Vega)")],
    )


def _ask_about_letters(column: str, names: set[str]) -> None:
    """Raise TableQuestion for letters that stand for other filters in some surveys than the usual ones."""
    if {"v", "b", "y"} <= names:
        kind = "Are u, v, b and y those of Strömgren"
        choices = [Choice("u=,v=,b=,y=", "Strömgren's, which are left out"), Choice("v=V,b=B,y=Y", "B, V and Y")]
    elif "v" in names and names & {"u", "g"} and not names & {"b", "B", "V"}:
        kind = "Is v that of SkyMapper (384 nm)"
        choices = [Choice("v=", "SkyMapper's, which is left out"), Choice("v=V", "V of Johnson")]
    elif {"X", "Y"} <= names:
        kind = "Are X and Y g and r of ZTF, as in files of YSE"
        choices = [Choice("X=g,Y=r", "g and r of ZTF"), Choice("X=,Y=Y", "Y, and X is left out")]
    else:
        return
    raise TableQuestion(f"{kind}, or other filters, in {column!r}?", "filters", choices)


def survey_of(roles: Roles, options: TableOptions) -> str:
    """Return the survey of the photometry, empty if unknown."""
    return options.survey.lower() or roles.survey.survey


def _are_sloan_capitals(roles: Roles, options: TableOptions, column: str, names: Sequence[str]) -> bool:
    """Return whether capital letters stand for u g r i z y rather than for G of Gaia and R I of Cousins."""
    if not names or not set(names) <= SLOAN_CAPITALS:
        return False
    if survey_of(roles, options) in ("ztf", "lsst") or ("G" in names and {"Z", "Y"} & set(names)):
        return True
    if "G" not in names or len(names) == 1:
        return False
    raise TableQuestion(
        f"Do the capital letters {', '.join(names)} in {column!r} mean the filters g r i of a survey, or G of "
        "Gaia and R I of Cousins?",
        "filters",
        [
            Choice(",".join(f"{name}={name.lower()}" for name in names), "filters of a survey"),
            Choice(",".join(f"{name}={name}" for name in names), "Gaia and Cousins"),
        ],
    )


def _decide_numbers(
    evidence: Evidence, roles: Roles, options: TableOptions, column: str, names: Sequence[str]
) -> Decision[Mapping[str, str]]:
    scheme = options.filter_numbers or roles.survey.filter_numbers
    found = {int(name) for name in names if _NUMBERS.fullmatch(name)}
    key, basis = plain(last_part(column)), ""
    if not scheme:
        if survey_of(roles, options) == "ztf" or (key == "fid" and found <= {1, 2, 3}):
            scheme = "ztf"
        elif key in ("passband", "passbandid", "lsstband"):
            scheme = "lsst"
        elif key == "filterid" and found <= {1, 2, 3}:
            scheme, basis = "ztf", "assumed: "  # VISTA has 1 Z, 2 Y, 3 J
        elif 0 in found and found <= set(range(6)):
            scheme, basis = "lsst", "assumed: "
        elif found & {4, 5} and found <= set(range(1, 6)):
            scheme, basis = "ps1", "assumed: "
    described = {
        name: ", ".join(f"{number} {band}" for number, band in numbering.items())
        for name, numbering in NUMBERINGS.items()
    }
    if not scheme:
        listed = ", ".join(map(str, sorted(found)))
        choices = [Choice(name, text) for name, text in described.items()]
        raise TableQuestion(f"Which filters are the numbers {listed} in {column!r}?", "filter_numbers", choices)
    text = f"{basis}numbers in {column!r} are filters of {scheme} ({described[scheme]})"
    guesses = () if options.filter_numbers else (Guess("filter_numbers", scheme, text),)
    return Decision(NUMBERINGS[scheme], guesses)
