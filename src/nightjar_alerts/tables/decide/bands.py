"""Which column names the filters, or which columns belong to which filter, and what the names mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableOptions, TableQuestion, described_filter
from nightjar_alerts.tables.roles import Decision, Roles, candidates, find, free, question
from nightjar_alerts.tables.vocabulary import NUMBERINGS, STRONG_BANDS, filter_and_role, last_part, plain

SLOAN_CAPITALS: Final = frozenset("UGRIZY")
ONE_NUMBER: Final = "a value must be one number, and its error another column"
SHOWN_UNKNOWN: Final = 12
_NUMBERS: Final = re.compile(r"[0-9]{1,18}")
_VALUES: Final = frozenset({"value", "mag", "flux"})


def find_band(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of filters, or a set of columns for each filter. Raises TableQuestion."""
    if options.band:
        return replace(roles, band=described_filter(options.band, "band"))
    pool = [*roles.points, *evidence.scalars] if roles.nested else roles.points
    roles = find(evidence, roles, options, "band", pool, evidence.holds_filters)
    if "band" in roles.columns:
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
    hint = ""
    if own := [name for name in free(roles) if (split := filter_and_role(name)) and split[1] in _VALUES]:
        hint = evidence.not_read([name for name in own if not evidence.is_numeric(name)], ONE_NUMBER)
        hint = hint or f" Columns by filter ({', '.join(own)}) need errors: set mag_err to one in mag for all."
    choices = [Choice(name, "") for name in FILTERS]
    raise question(evidence, f"Which filter are the observations in?{hint}", "band", choices)


def _find_wide(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Look for a set of columns for each filter."""
    bands: dict[str, dict[str, str]] = {}
    for name in free(roles, test=evidence.is_numeric):
        if split := filter_and_role(name):
            bands.setdefault(split[0], {}).setdefault(split[1], name)
    wide = []
    for band, own in bands.items():
        if "value" in own:  # a column that has the name of the filter alone
            kind = "mag" if evidence.looks_like_magnitudes(own["value"]) else "flux"
            own.setdefault(kind, own.pop("value"))
        if "err" in own:
            own.setdefault("flux_err" if "flux" in own else "mag_err", own.pop("err"))
        if ("flux" in own and "flux_err" in own) or ("mag" in own and ("mag_err" in own or options.mag_err)):
            named = described_filter(options.filters.get(band, band), f"filters[{band!r}]")
            wide.append((named or band, own))
    if not wide or ("time" not in roles.columns and not all("time" in own for _, own in wide)):
        return roles
    listed = ", ".join(f"{name}: {' '.join(own.values())}" for name, own in wide)
    return replace(roles, wide=tuple(wide)).guess("", "", f"the table has columns for each filter ({listed})")


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
    if any(map(_NUMBERS.fullmatch, unset)):
        numbers = _decide_numbers(evidence, roles, options, column, unset)
        filters = {**numbers.value, **filters}
        guesses += numbers.guesses
    if _are_sloan_capitals(roles, options, column, unset):
        filters = {**{name: known_filter(name.lower()) for name in SLOAN_CAPITALS}, **filters}
    filters = {**{name: known_filter(name) for name in names}, **filters}
    unknown = [name for name in names if filters[name] is None]
    if unknown and len(unknown) == len(names):
        raise TableQuestion(
            f"Which filters are {', '.join(map(repr, unknown[:8]))} in {column!r}?",
            "filters",
            [Choice(f"{unknown[0]}=r", "a filter by its name"), Choice(f"{unknown[0]}=620", "a wavelength in nm")],
        )
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
    key = plain(last_part(column))
    if not scheme:
        if survey_of(roles, options) == "ztf" or (key in ("fid", "filterid") and found <= {1, 2, 3}):
            scheme = "ztf"
        elif (0 in found and found <= set(range(6))) or key in ("passband", "passbandid", "lsstband"):
            scheme = "lsst"
        elif found & {4, 5} and found <= set(range(1, 6)):
            scheme = "ps1"
    described = {
        name: ", ".join(f"{number} {band}" for number, band in numbering.items())
        for name, numbering in NUMBERINGS.items()
    }
    if not scheme:
        listed = ", ".join(map(str, sorted(found)))
        choices = [Choice(name, text) for name, text in described.items()]
        raise TableQuestion(f"Which filters are the numbers {listed} in {column!r}?", "filter_numbers", choices)
    text = f"numbers in {column!r} are filters of {scheme} ({described[scheme]})"
    guesses = () if options.filter_numbers else (Guess("filter_numbers", scheme, text),)
    return Decision(NUMBERINGS[scheme], guesses)
