"""Which column holds the times, and from which date and in which unit they count."""

import re
from typing import Final, NamedTuple

import numpy as np

from nightjar_alerts.models.photometry import JD_MINUS_MJD
from nightjar_alerts.tables.columns import iso_times, texts
from nightjar_alerts.tables.decide.metadata import metadata_columns
from nightjar_alerts.tables.evidence import ZERO_IN_NAME, Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Decision, Roles, candidates, find, free, question
from nightjar_alerts.tables.vocabulary import filter_and_role, last_part, plain

SPREADSHEET_DAYS: Final = (36_526, 47_500)
"""Spreadsheet day numbers of the years 2000 to 2030; read as MJD they would lie before 1989."""
SPREADSHEET_ZERO: Final = 15_018
"""MJD of day 0 of a spreadsheet."""
LATEST_UNIX: Final = 4.1e9
"""Seconds since 1970 in the year 2099; MJD in seconds is larger since 1988."""
UNIX_ZERO: Final = 40_587.0
"""MJD of seconds since 1970."""
JULIAN_DATES: Final = (2_396_759.0, 2_488_070.0)
"""Of the years 1850 and 2100."""
CHECKED_CLOCKS: Final = 64
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}")


class TimeScale(NamedTuple):
    """Format of times, as in :class:`TableOptions`, and days to add to them.

    ``is_utc``: whether they are converted from UTC to TAI. ``shift_seconds``: from there to mid-exposure.
    """

    format: str = "mjd"
    offset: float = 0.0
    is_utc: bool = False
    shift_seconds: float = 0.0


def find_time(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of times by name, or by its values; raises TableQuestion."""
    roles = find(evidence, roles, options, "time", roles.points, evidence.holds_times)
    if "time" in roles.columns:
        return roles
    numeric = [name for name in roles.points if evidence.is_numeric(name)]
    likely = [name for name in numeric if evidence.looks_like_dates(name)]
    likely = likely or [name for name in roles.points if name not in numeric and evidence.holds_times(name)]
    if evidence.is_positional:
        likely = likely[:1] or numeric[:1]
    if len(likely) == 1:
        return roles.taking(evidence, options, "time", likely[0])
    own = {name: split[0] for name in roles.points if (split := filter_and_role(name)) and split[1] == "time"}
    if len(set(own.values())) > 1 and set(likely) <= own.keys():  # times by filter
        return roles
    choices = [Choice(name, "looks like dates") for name in likely]
    has_brightness = candidates(evidence, roles, "mag") or candidates(evidence, roles, "flux")
    if not choices and metadata_columns(evidence, roles) and not has_brightness:
        raise TableError(
            "the table has metadata of objects and no light curves: give it as object_metadata "
            "(--object-metadata FILE) with the table of light curves"
        )
    remedy = "write MJD, JD, or dates as YYYY-MM-DD (also with a time of day, 2026-05-01T06:00)"
    hint = "" if choices else evidence.not_read(candidates(evidence, roles, "time"), remedy)
    raise question(evidence, f"Which column holds the time of the observations?{hint}", "columns.time", choices)


def decide_time(evidence: Evidence, roles: Roles, options: TableOptions) -> Decision[TimeScale]:
    """Decide from which date times count, by the unit and name of their column and by their size."""
    is_utc, shift = roles.survey.time_scale == "utc", roles.survey.time_shift_seconds
    if options.time_format or options.time_offset is not None:
        return Decision(TimeScale(options.time_format or "mjd", options.time_offset or 0.0, is_utc, shift))
    name = roles.all("time")[0]
    finite = evidence.finite(name) if evidence.is_numeric(name) else np.zeros(0)
    middle = float(np.median(finite)) if finite.size else 0.0
    decision = _time_scale(evidence, roles, name, middle)
    if SPREADSHEET_DAYS[0] < middle < SPREADSHEET_DAYS[1] and "jd" not in plain(name):
        years = [Choice("0", f"MJD, of {1858.9 + middle / 365.25:.0f}")]
        years += [Choice(f"{SPREADSHEET_ZERO}", f"days of a spreadsheet, of {1900 + middle / 365.25:.0f}")]
        raise TableQuestion(f"From which day do the times in {name!r} count?", "time_offset", years)
    if decision.value.format == "iso" and "time" not in options.columns:
        _check_clock(evidence, roles, name)
    return Decision(decision.value._replace(is_utc=is_utc, shift_seconds=shift), decision.guesses)


def _time_scale(evidence: Evidence, roles: Roles, name: str, middle: float) -> Decision[TimeScale]:
    unit = evidence.units.get(name, "")
    key = plain(last_part(name)) + plain(unit)
    zero = _zero_in(last_part(name)) or _zero_in(f"JD {unit}")
    if zero and "mjd" in key:
        zero += JD_MINUS_MJD
    is_jd = "jd" in key and "mjd" not in key
    offset = roles.survey.time_offset
    if zero and "gaia" in roles.survey.survey:
        offset = None  # the table states the date
    if evidence.values(name).dtype.kind == "M" or not evidence.is_numeric(name):
        return _format("iso", f"times in {name!r} are dates")
    if offset is not None and -10_000 < middle < 10_000:
        return _offset(offset, f"{offset}", f"times in {name!r} count from MJD {offset:g}")
    if 2.3e6 < middle < 2.6e6:
        return _format("jd", f"times in {name!r} are Julian dates")
    if 1e8 < middle < LATEST_UNIX:
        return _format("unix", f"times in {name!r} are seconds since 1970")
    if LATEST_UNIX <= middle < 1e10:  # TAI of SDSS
        text = f"{'' if 'tai' in key else 'assumed: '}times in {name!r} are MJD in seconds"
        return Decision(TimeScale("unix", -UNIX_ZERO), (Guess("", "", text),))
    if 1e11 < middle < 1e13:
        return _format("unix_ms", f"times in {name!r} are milliseconds since 1970")
    if 1850 < middle < 2150 and ("year" in key or key in ("epoch", "date")):
        return _format("year", f"times in {name!r} are decimal years")
    if 19_000_101 <= middle <= 21_001_231:
        return _format("iso", f"times in {name!r} are dates as YYYYMMDD")
    if zero and (-2_000 <= middle < 15_000 or JULIAN_DATES[0] < middle + zero < JULIAN_DATES[1]):
        return _zero(name, zero)
    if zero and zero != 2_400_000 and 15_000 <= middle < 100_000:
        text = f"By its name or unit, {name!r} counts from JD {zero:.1f}, but its values, such as {middle:.2f}, do not."
        choices = [Choice("0", "they are MJD"), Choice("-0.5", "they are JD - 2400000")]
        raise TableQuestion(text, "time_offset", choices)
    if 15_000 <= middle < 100_000 and (zero == 2_400_000 or key == "rjd") and "mjd" not in key:
        return _zero(name, 2_400_000)
    if 15_000 <= middle < 100_000 and is_jd and not zero:
        return _zero(name, 2_400_000, "assumed: ")
    if 0 <= middle < 15_000 and is_jd:
        known = {"btjd": 2_457_000.0, "bkjd": 2_454_833.0}.get(key)
        return _zero(name, known) if known else _zero(name, 2_450_000.0, "assumed: ")
    if middle < 15_000 and evidence.is_positional:
        return _zero(name, 2_450_000.0, "assumed: ")
    if middle < 15_000:
        return _offset(0.0, "0", f"assumed: times in {name!r} are days from an unknown date, which does not matter")
    return Decision(TimeScale())


def _format(time_format: str, text: str) -> Decision[TimeScale]:
    return Decision(TimeScale(time_format), (Guess("time_format", time_format, text),))


def _offset(offset: float, value: str, text: str) -> Decision[TimeScale]:
    return Decision(TimeScale("mjd", offset), (Guess("time_offset", value, text),))


def _zero(name: str, zero: float, basis: str = "") -> Decision[TimeScale]:
    offset = zero - JD_MINUS_MJD
    return _offset(offset, f"{offset:g}", f"{basis}times in {name!r} are JD - {zero:.1f}")


def _zero_in(text: str) -> float:
    """Return the date from which times count by a text such as ``HJD-2450000`` or ``JD (2450000+)``, 0 without one."""
    bare = re.sub(r"\((?:tdb|tcb|utc|tt|tai)\)", "", text, flags=re.IGNORECASE)
    found = ZERO_IN_NAME.search(re.sub(r"[()\[\]+]|,?\s*(days?|d)$", " ", bare))
    return float(found[2]) if found else 0.0


def _check_clock(evidence: Evidence, roles: Roles, name: str) -> None:
    """Raise TableQuestion for dates whose time of day is in another column."""

    def holds_clocks(other: str) -> bool:
        return all(map(_CLOCK.match, evidence.distinct(other)[:CHECKED_CLOCKS] or [""]))

    days = iso_times(texts(evidence.values(name)))[0]
    clocks = free(roles, test=holds_clocks)
    if clocks and (days[np.isfinite(days)] % 1 == 0).all():
        text = f"Column {name!r} holds dates, and {clocks[0]!r} the time of day. Join them, or read dates only."
        raise TableQuestion(text, "columns.time", [Choice(name, "dates only")])
