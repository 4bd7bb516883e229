"""Which column names the objects, and whether rows contradict that."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from nightjar_alerts.models.photometry import Float64
from nightjar_alerts.tables.columns import MISSING_TEXTS, Bool, is_text, texts
from nightjar_alerts.tables.evidence import Evidence
from nightjar_alerts.tables.options import Choice, Guess, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import Roles, candidates, find, free
from nightjar_alerts.tables.vocabulary import (
    DECLINATIONS,
    INDEX,
    MAYBE_IDS,
    NOT_IDS,
    NOT_OBJECTS,
    RANKS,
    RIGHT_ASCENSIONS,
    STRONG_IDS,
    TELESCOPES,
    WEAK_IDS,
    last_part,
    plain,
)

MAX_SPREAD_ARCSEC: Final = 3.0
"""Rows farther apart than this belong to different objects."""
MAX_CONTRADICTORY: Final = 0.1
"""Largest share of rows of one object that may contradict each other; a few are of several telescopes in one night."""
MAX_SIGMA: Final = 5.0
"""Largest difference of two values of one filter at one time, in their errors."""
SHOWN_NAMES: Final = 3
_OBJECT_NAME: Final = re.compile(r"(name|id|object|obj|source|src|target|star|sn|transient)$")
_OTHER_NAME: Final = re.compile(
    r"(inst|tel|obs|filter|band|exp|image|visit|prog|field|ccd|camera|detector|night|version)"
)
_NUMBER_OF_SOURCE: Final = re.compile(r"[0-9]{1,3}(,[0-9]{1,3})*")


def find_objects(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of object names. Raises TableQuestion if objects might be mixed or split."""
    scalars = evidence.scalars
    if options.object_id:
        return roles
    roles = find_names(evidence, roles, options)
    if "object_id" in roles.columns:
        return roles
    if "object_id" not in options.columns:
        named = free(roles, scalars, lambda name: _is_named_like_objects(evidence, roles, name))
        named = named or free(roles, scalars, lambda name: _is_named_index(evidence, roles, name))
        if len(named) == 1:
            return roles.taking(evidence, options, "object_id", named[0])
    if roles.nested:
        return roles
    if "object_id" not in options.columns:
        _ask(evidence, roles)
    return roles.guess("object_id", "", "the table holds one object, because it has no column of object names")


def find_names(evidence: Evidence, roles: Roles, options: TableOptions) -> Roles:
    """Find the column of object names among those with a usual name."""
    return find(
        evidence, roles, options, "object_id", evidence.scalars, lambda name: _holds_names(evidence, roles, name)
    )


def _holds_names(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return whether a column may hold names of objects: they repeat, unless the column's name shows what they are."""
    if evidence.is_numeric(name) and not evidence.is_whole(name):  # such as dnearestrefsrc of ZTF, also in text
        return False
    names = texts(evidence.values(name))
    present = [text for text in names if text.lower() not in MISSING_TEXTS]
    is_row_number = not roles.nested and len(present) > 3 and len(set(present)) == len(present)
    if is_row_number and not evidence.keys[name] & STRONG_IDS:
        return False
    if evidence.keys[name] & NOT_IDS or (evidence.keys[name] & WEAK_IDS and _names_sources(set(present))):
        return False
    return len(present) > (0.0 if evidence.keys[name] & STRONG_IDS else 0.5) * len(names)


def _names_sources(names: set[str]) -> bool:
    """Return whether values are telescopes, or numbers of references, instead of objects."""
    if all(map(_NUMBER_OF_SOURCE.fullmatch, names)):
        return True
    return all(plain(re.split(r"[\s_/-]", name)[0]) in TELESCOPES or plain(name) in TELESCOPES for name in names)


def _is_named_like_objects(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return True for names that repeat, in a column such as ``source_name`` or ``sn_id``."""
    fits = _OBJECT_NAME.search(plain(last_part(name))) and not _OTHER_NAME.search(plain(name))
    return bool(fits and not _has_other_role(evidence, name) and _holds_names(evidence, roles, name))


def _is_named_index(evidence: Evidence, roles: Roles, name: str) -> bool:
    """Return True for an index without a name, such as the keys of a concatenation, whose values follow each other."""
    return bool(
        evidence.keys[name] & INDEX
        and not evidence.is_positional
        and is_text(evidence.values(name))
        and _holds_names(evidence, roles, name)
        and _are_runs(list(texts(evidence.values(name))))
    )


def _are_runs(names: Sequence[str]) -> bool:
    """Return whether equal names follow each other, two or more rows each."""
    runs = 1 + sum(one != other for one, other in pairwise(names))
    return runs == len(set(names)) <= len(names) / 2


def _has_other_role(evidence: Evidence, name: str) -> bool:
    """Return whether a column has a name for something else, such as the time, a magnitude system or an instrument."""
    keys = evidence.keys[name]
    return bool(keys & NOT_IDS) or any(keys & ranks.keys() for role, ranks in RANKS.items() if role != "object_id")


def _ask(evidence: Evidence, roles: Roles) -> None:
    """Raise TableQuestion if a column may name the objects, or positions or values show several."""
    scalars = evidence.scalars
    for name in free(roles, scalars, lambda name: _may_name_objects(evidence, name)):
        raise TableQuestion(
            f"Does column {name!r} name the objects? Otherwise the table is one object.",
            "columns.object_id",
            [Choice(name, "the objects"), Choice("", "the table is one object")],
        )
    for name in candidates(evidence, roles, "object_id", scalars, lambda name: _is_unique_text(evidence, name)):
        raise TableQuestion(
            f"Does column {name!r} name the objects? Every row has another name.",
            "columns.object_id",
            [Choice(name, "every row is an object"), Choice("", "the table is one object")],
        )
    ra, dec = _positions(evidence, roles)
    one_object = [Choice("", "the table is one object")]
    for name, values, scale in ((dec[0], dec[1], 1.0), (ra[0], ra[1], _cosine(dec[1]))):
        if len(finite := values[np.isfinite(values)]) and (spread := float(np.ptp(finite))) * scale * 3600 > (
            MAX_SPREAD_ARCSEC
        ):
            text = (
                f"The rows have no name of an object, and {name!r} differs by {spread:.3g} degrees. Add a column of "
                "names."
            )
            raise TableQuestion(text, "columns.object_id", one_object)


def _is_unique_text(evidence: Evidence, name: str) -> bool:
    """Return whether the column is unique text (a label, not a row number)."""
    if evidence.is_numeric(name) or evidence.keys[name] & NOT_IDS:
        return False
    names = texts(evidence.values(name))
    return all(names) and not (evidence.keys[name] & WEAK_IDS and _names_sources(set(names)))


def _may_name_objects(evidence: Evidence, name: str) -> bool:
    """Return True for names or numbers that may be those of several objects, which would be mixed otherwise."""
    is_known = bool(evidence.keys[name] & (MAYBE_IDS | INDEX)) or not plain(name)  # such as "#"
    if _has_other_role(evidence, name) or (NOT_OBJECTS.search(plain(name)) and not is_known):
        return False
    if evidence.is_numeric(name) and not (is_known and evidence.is_whole(name)):
        return False
    names = [text for text in texts(evidence.values(name)) if text]
    return 1 < len(set(names)) <= len(names) / 3 and len(names) > 0.9 * len(evidence.values(name))


# Contradictions


def check_objects(evidence: Evidence, roles: Roles, options: TableOptions) -> tuple[Guess, ...]:
    """Say where rows of one object contradict each other."""
    if roles.nested or roles.wide:
        return ()
    names = _names_of_rows(evidence, roles)
    if "object_id" in roles.columns:
        guesses = list[Guess]()
        if apart := _apart(evidence, roles, names):
            listed = ", ".join(apart[:SHOWN_NAMES]) + (" ..." if len(apart) > SHOWN_NAMES else "")
            text = f"assumed: rows of {listed} are one object each, although they are farther apart than "
            guesses.append(Guess("columns.object_id", "", f"{text}{MAX_SPREAD_ARCSEC:g} arcseconds"))
        if similar := _similar(names):
            text = "are different objects, although their names differ in capital letters, blanks or underscores only"
            guesses.append(Guess("columns.object_id", "", f"assumed: {' and '.join(similar)} {text}"))
        return tuple(guesses)
    count = int(_contradictory(evidence, roles).sum())
    if not count or options.object_id or "object_id" in options.columns:
        return ()
    text = (
        f"assumed: the table is one object, although {count} of {len(names)} rows have other values of the same filter "
        "at the same time, which differ by more than their errors"
    )
    columns = _integers(evidence, roles)[:SHOWN_NAMES]
    if count > MAX_CONTRADICTORY * len(names):
        raise TableQuestion(
            f"Which column names the objects? Otherwise the table is one object, but {count} of {len(names)} rows have "
            "other values of the same filter at the same time, which differ by more than their errors.",
            "columns.object_id",
            [*(Choice(name, "the objects") for name in columns), Choice("", "the table is one object")],
        )
    hint = f"; columns that may name objects: {', '.join(columns)}" if columns else ""
    return (Guess("columns.object_id", "", text + hint),)


def _similar(names: Iterable[object]) -> list[str]:
    """Return the first names that differ in capital letters, blanks and underscores only; empty without any."""
    known: dict[str, list[str]] = {}
    for name in sorted(set(map(str, names))):
        known.setdefault(re.sub(r"[\s_]", "", name).lower(), []).append(name)
    return next((same for same in known.values() if len(same) > 1), [])[:SHOWN_NAMES]


def _names_of_rows(evidence: Evidence, roles: Roles) -> Sequence[str]:
    column = roles.columns.get("object_id")
    rows = len(evidence.values(roles.all("time")[0]))
    return [""] * rows if column is None else list(texts(evidence.values(column)))


def _integers(evidence: Evidence, roles: Roles) -> list[str]:
    """Return columns of integers or text that repeat, among which may be the names of the objects."""
    return [
        name
        for name in free(roles, evidence.scalars)
        if not _has_other_role(evidence, name)
        and (not evidence.is_numeric(name) or evidence.is_whole(name))
        and 1 < len(evidence.distinct(name)) <= len(evidence.values(name)) / 2
    ]


def position_columns(evidence: Evidence, roles: Roles) -> tuple[str, str] | None:
    """Return the columns of right ascension and declination in degrees, if the table has both."""
    pool = free(roles, evidence.scalars, lambda name: evidence.is_numeric(name) and _is_in_degrees(evidence, name))
    ra, dec = (
        next((name for name in pool if evidence.keys[name] & names), "") for names in (RIGHT_ASCENSIONS, DECLINATIONS)
    )
    return (ra, dec) if ra and dec else None


def _is_in_degrees(evidence: Evidence, name: str) -> bool:
    return evidence.units.get(name, "").strip().lower() in {"", "deg", "degree", "degrees"}


def _positions(evidence: Evidence, roles: Roles) -> tuple[tuple[str, Float64], tuple[str, Float64]]:
    """Return the columns of right ascension and declination in degrees, with empty names and values without."""

    def column(keys: frozenset[str]) -> tuple[str, Float64]:
        found = free(roles, evidence.scalars, lambda name: bool(evidence.keys[name] & keys))
        found = [name for name in found if evidence.is_numeric(name)]
        return (found[0], evidence.numbers(found[0])) if found else ("", np.zeros(0))

    return column(RIGHT_ASCENSIONS), column(DECLINATIONS)


def _cosine(declination: Float64) -> float:
    finite = declination[np.isfinite(declination)]
    return float(np.cos(np.radians(np.median(finite)))) if len(finite) else 1.0


def _apart(evidence: Evidence, roles: Roles, names: Sequence[str]) -> list[str]:
    """Return the objects whose rows are farther apart than :data:`MAX_SPREAD_ARCSEC`."""
    (ra_name, ra), (dec_name, dec) = _positions(evidence, roles)
    if not ra_name or not dec_name or not len(names) == len(ra) == len(dec):
        return []
    good = np.isfinite(ra) & np.isfinite(dec)
    numbers: dict[str, int] = {}
    kept = [name for name, is_good in zip(names, good, strict=True) if is_good]
    number = np.array([numbers.setdefault(name, len(numbers)) for name in kept], np.int64)
    objects = list(numbers)
    if not objects:
        return []
    spread = np.zeros((2, len(objects)))
    for axis, values in enumerate((ra[good], dec[good])):
        least, most = np.full(len(objects), np.inf), np.full(len(objects), -np.inf)
        np.minimum.at(least, number, values)
        np.maximum.at(most, number, values)
        spread[axis] = most - least
    middle = np.zeros(len(objects))
    middle[number] = dec[good]
    spread[0] = np.minimum(spread[0], 360.0 - spread[0]) * np.cos(np.radians(middle))
    return [objects[index] for index in np.flatnonzero(np.hypot(*spread) * 3600 > MAX_SPREAD_ARCSEC)]


def _contradictory(evidence: Evidence, roles: Roles) -> Bool:
    """Return the rows that differ from another one of the same filter and time by more than their errors."""
    columns = roles.columns
    kind = "flux" if "flux" in columns and "flux_err" in columns else "mag"
    if kind not in columns or f"{kind}_err" not in columns:
        return np.zeros(0, np.bool_)
    times = evidence.values(columns["time"])
    moments = texts(times) if is_text(times) else times
    bands = texts(evidence.values(columns["band"])) if "band" in columns else [""] * len(moments)
    groups: dict[tuple[str, object], list[int]] = {}
    for row, key in enumerate(zip(bands, moments, strict=True)):
        groups.setdefault(key, []).append(row)
    value, error = evidence.numbers(columns[kind]), evidence.numbers(columns[f"{kind}_err"])
    found = np.zeros(len(value), np.bool_)
    for rows in groups.values():
        if len(rows) > 1 and rows[0] < len(value):
            found[rows] = are_contradictory(value[rows], error[rows])
    return found


def are_contradictory(value: Float64, error: Float64) -> bool:
    """Return whether values that should be equal differ by more than :data:`MAX_SIGMA` of their errors."""
    good = np.isfinite(value) & np.isfinite(error) & (error > 0)
    if good.sum() < 2:
        return False
    low, high = int(np.argmin(np.where(good, value, np.inf))), int(np.argmax(np.where(good, value, -np.inf)))
    with np.errstate(over="ignore"):  # of fluxes that are not plausible
        return bool(value[high] - value[low] > MAX_SIGMA * np.hypot(error[high], error[low]))
