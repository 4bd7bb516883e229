"""Names that surveys, brokers and archives give to columns, units and tables."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import NJY_PER_UNIT, SourceUnit, njy_of_magnitude
from nightjar_alerts.tables.options import FluxKind


def plain(name: str) -> str:
    """Return a column's name in small letters and digits only, without a unit in brackets."""
    without_unit = re.sub(r"[\[(][^\])]*([\])])?", lambda match: "" if match[1] else match[0], name)
    return re.sub(r"[^a-z0-9]", "", without_unit.lower())


def last_part(name: str) -> str:
    """Return the field of a dotted name, and the name itself without a prefix such as ``i:`` or ``lc_``."""
    field = re.split(r"(?<!\d)\.|\.(?!\d)|:", name)[-1]  # the point of JD-2450000.5 separates nothing
    return re.sub(r"^(?:lc|lightcurve|phot|photometry|obs|det)_(?=.)", "", field)


Flag = int | str | tuple[str, ...]
"""Rule for a column of flags: bits that are bad; ``true``, ``nonzero``, ``present`` or ``date`` for bad values;
or the values that are good. Empty: the flag belongs to another column."""

_DATA: Final = tomllib.loads((files(__package__) / "vocabulary.toml").read_text("utf-8"))
RANKS: Final[Mapping[str, Mapping[str, int]]] = {
    role: {name: rank for rank, equal in enumerate(names.split()) for name in equal.split("=")}
    for role, names in _DATA["roles"].items()
}
"""Plain names of each role of a column; the smaller the number, the more it is preferred. Of equal ones, the first
column counts."""
_COLUMNS: Final = {kind: frozenset(names.split()) for kind, names in _DATA["columns"].items()}
STRONG_BANDS: Final = _COLUMNS["strong_bands"]
"""Columns of filters even if no value is a known filter."""
STRONG_IDS: Final = _COLUMNS["strong_ids"]
"""Id columns that are trusted even if all values differ."""
NOT_OBJECTS: Final = re.compile(
    r"(tel|inst|obs|cam|site|station|survey|quality|qual|flag|type|class|comment|remark|note|ref|bib|system|field|prog|"
    r"author|image|file|exp|night|visit|reduc|pipe|source|catalog|status|unit|filter|band|valid|digit|software|method|"
    r"version|magsys|origin|observer|detector|date)"
)
"""Columns of text that are not names of objects."""
RIGHT_ASCENSIONS: Final = _COLUMNS["right_ascensions"]
DECLINATIONS: Final = _COLUMNS["declinations"]
POSITIONS: Final = RIGHT_ASCENSIONS | DECLINATIONS
COUNTS: Final = _COLUMNS["counts"]
"""Fluxes in units of an instrument, which only a zero point turns into a physical unit."""
TOTAL: Final = _COLUMNS["total"]
"""Brightness of the whole source."""
DIFFERENCE: Final = _COLUMNS["difference"]
"""Brightness in difference images."""
METADATA: Final[Mapping[str, str]] = {**{name.lower(): name for name in KNOWN_COLUMNS}, **_DATA["metadata"]}
"""Metadata by names in small letters."""
GOOD_FLAGS: Final = _COLUMNS["good_flags"]
BAD_FLAGS: Final = _COLUMNS["bad_flags"]
FLAGS: Final[Mapping[str, Flag]] = {
    name: tuple(rule) if isinstance(rule, list) else rule for name, rule in _DATA["flags"].items()
}
"""Rules for columns of flags that only one survey has; a name may end in ``*``."""
NO_OBJECT: Final = _COLUMNS["zero_is_no_object"]
"""Id columns in which 0 is no object."""
NOT_IDS: Final = _COLUMNS["not_ids"]
"""Columns of numbers and names that are not those of objects."""
WEAK_IDS: Final = _COLUMNS["weak_ids"]
"""Columns that name objects in some tables and telescopes or references in others."""
MAYBE_IDS: Final = _COLUMNS["maybe_ids"]
"""Columns that may name objects, which only the user knows."""
INDEX: Final = _COLUMNS["index"]
"""Names that a writer gives to an index without a name."""
MOVING: Final[Mapping[str, str]] = _DATA["moving"]
"""Rules for columns that mark Solar System objects."""
TELESCOPES: Final = _COLUMNS["telescopes"]
"""Names of telescopes and surveys, which are no objects."""
NUMBERINGS: Final[Mapping[str, Mapping[str, str]]] = _DATA["numberings"]
"""Filters by number."""
VEGA_BY_CUSTOM: Final = frozenset({"U", "B", "V", "R", "I", "G", "BP", "RP", "C"})
"""Filters whose magnitudes are usually published in the Vega system."""
_UNITS: Final[Mapping[str, SourceUnit]] = {
    name: unit for unit, names in _DATA["units"].items() for name in names.split()
}
_ZERO_POINTS: Final[Mapping[str, float]] = {
    name: value for names, value in _DATA["zero_points"].items() for name in names.split()
}
INVERSE_VARIANCE: Final = re.compile(r"(ivar|inv_?var(iance)?|inverse_?variance)", re.IGNORECASE)
VARIANCE: Final = re.compile(r"(variance|[_ ]var)$", re.IGNORECASE)


OTHER_UNIT: Final = re.compile(
    r"erg|photon|maggy|maggie|mgy|jy|jansky|adu|\bdn\b|\bct|count|e-|electron|\bw\b|%|/", re.IGNORECASE
)
"""Matches bracketed text that is an unsupported unit, not a comment."""
COUNTS_UNIT: Final = re.compile(r"adu|\bdn\b|\bct|count|e-|electron", re.IGNORECASE)
MILLIMAGNITUDES: Final = re.compile(r"(?<![a-z])m(illi)?mag", re.IGNORECASE)
SURE_MAGNITUDES: Final = RANKS["mag"].keys() - {"brightness", "value"}
"""Names that fluxes do not have."""


_POWER: Final = re.compile(r"(?:1(?:\.0{0,9})?[eE]|(?:1[x*×])?10(?:\^|\*\*)?)\{?([-+]?\d{1,2})\}?\*?(?=[A-Za-z])")
SAME_FACTOR: Final = 1e-9


def unit_of(text: str) -> SourceUnit | None:
    """Return the unit of flux that a text names, None where it names none."""
    bare = re.sub(r"[\s_]", "", text).replace("µ", "u").replace("μ", "u")
    power = 0
    if match := _POWER.match(bare):  # such as 10^-6 Jy, 1e-06 Jy, and 10-6Jy of VizieR
        power, bare = int(match[1]), bare[match.end() :]
    if bare == "MJy":
        return None
    unit = _UNITS.get(bare.lower())
    if not power or unit is None:
        return unit
    factor = NJY_PER_UNIT[unit] * 10.0**power
    return next((other for other, njy in NJY_PER_UNIT.items() if abs(njy / factor - 1) < SAME_FACTOR), None)


def names_magnitudes(unit: str) -> bool:
    """Return whether a unit is that of magnitudes, rather than of maggies."""
    return bool(re.search(r"mag(?!g)", unit, re.IGNORECASE))


def zero_point_of(name: str, unit: str) -> float | None:
    """Return the AB zero point of a flux in maggies or nanomaggies by its name or unit, None for others."""
    words = [*re.split(r"[^A-Za-z]+", name), unit.strip(), re.sub(r"^\d*e?-?\d*[ *]*", "", unit.strip())]
    if re.fullmatch(r"1e-0?9[ *]*(maggies|maggy|mgy)", unit.strip(), re.IGNORECASE):
        return _ZERO_POINTS["nanomaggies"]
    return next((_ZERO_POINTS[word.lower()] for word in words if word.lower() in _ZERO_POINTS), None)


def njy_of_unit(text: str) -> float | None:
    """Return nJy of one unit of flux that a text names, None where it names none."""
    if unit := unit_of(text):
        return NJY_PER_UNIT[unit]
    zero_point = zero_point_of("", text)
    return None if zero_point is None else float(njy_of_magnitude(zero_point))


_SCALED: Final = re.compile(r"\d|/|log|dex", re.IGNORECASE)


def unit_in_name(name: str) -> SourceUnit | None:
    """Return the unit of flux in a column's name (``flux [uJy]``, ``f_nu_mJy``, ``forcedujy``), None without one."""
    bracket = re.search(r"[\[(]([^\])]+)[\])]", name)
    field = last_part(name)
    ending = re.search(r"(nJy|uJy|µJy|mJy|Jy|njy|ujy|mjy|microjy|nanojy)$", field)
    if bracket and (unit := unit_of(bracket[1])):
        return unit
    if bracket and _SCALED.search(bracket[1]):
        return None  # such as 0.1 mJy, mJy/beam and log Jy
    parts = [*re.split(r"[^A-Za-zµμ]+", field), ending and ending[1]]
    return next((unit for part in parts if part and (unit := unit_of(part))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyLayout:
    """What is known of tables of a survey or tool, from a file in ``layouts``.

    Names of columns are plain names.

    Attributes
    ----------
    name : of the survey's table, for people. source : where this is documented.
    columns : columns by which it is known, and ``any_column``, one of which it has as well; header : all columns as
        they are written; file : pattern of the file's name, for columns without names.
    where : values that a column may have, if there is one; tables with others have another layout.
    survey, band, unit, zero_point, mag_system, filter_numbers, time_offset : as in :class:`TableOptions`.
    zero_points : AB zero point of fluxes by filter.
    kind : kind of flux. usual_kind : kind if the light curves do not show it.
    roles : column of a role; empty if there is none. wide : columns of each filter by role.
    filters : filter of each name that other surveys use for another one.
    time_scale : ``utc`` if times are converted to TAI. time_shift_seconds : from the stated time to mid-exposure.
    sentinels : numbers that are missing values, by column. flags : rules by column.
    detection_id : column with a number in rows of detections only, not in those of limits and forced photometry.
    """

    name: str = ""
    source: str = ""
    columns: frozenset[str] = frozenset()
    any_column: frozenset[str] = frozenset()
    header: tuple[str, ...] = ()
    file: str = ""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    survey: str = ""
    band: str = ""
    unit: SourceUnit | None = None
    zero_point: float | None = None
    zero_points: Mapping[str, float] = field(default_factory=dict)
    kind: FluxKind | Literal[""] = ""
    usual_kind: FluxKind | Literal[""] = ""
    filter_numbers: Literal["", "ztf", "lsst", "ps1"] = ""
    mag_system: Literal["", "AB", "Vega", "mixed"] = ""
    time_offset: float | None = None
    time_scale: Literal["", "utc"] = ""
    time_shift_seconds: float = 0.0
    roles: Mapping[str, str] = field(default_factory=dict)
    wide: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    filters: Mapping[str, str] = field(default_factory=dict)
    sentinels: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    flags: Mapping[str, Flag] = field(default_factory=dict)
    detection_id: str = ""


NO_LAYOUT: Final = SurveyLayout()


def _layouts() -> Iterator[SurveyLayout]:
    folder = files(__package__) / "layouts"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".toml"):
            continue
        for table in tomllib.loads(file.read_text("utf-8"))["table"]:
            for name in ("columns", "any_column"):
                table[name] = frozenset(table.get(name, "").split())
            table["header"] = tuple(table.get("header", ()))
            table["flags"] = {
                name: tuple(rule) if isinstance(rule, list) else rule for name, rule in table.get("flags", {}).items()
            }
            yield SurveyLayout(**table)


LAYOUTS: Final = tuple(_layouts())


def find_survey(
    header: Sequence[str], keys: set[str], name: str = "", values: Callable[[str], Sequence[str]] = lambda _: ()
) -> SurveyLayout:
    """Return the layout with the most columns among those of a table.

    Parameters
    ----------
    keys : plain names of all columns. name : of the file and the survey, empty if the columns have names.
    values : returns the different values of the column with a plain name.
    """

    def score(layout: SurveyLayout) -> int:
        if layout.header:
            return len(layout.header) if layout.header == tuple(header) else 0
        if layout.file:
            return int(bool(re.search(layout.file, name, re.IGNORECASE))) if name else 0
        if not layout.columns <= keys or (layout.any_column and not layout.any_column & keys):
            return 0
        if any(not set(values(key)) <= set(known) for key, known in layout.where.items()):
            return 0
        return len(layout.columns)

    best = max(LAYOUTS, key=score)
    return best if score(best) else NO_LAYOUT


_ERROR_WORDS: Final = (
    *("err", "error", "errs", "errors", "unc", "uncert", "uncertainty", "sig", "sigma", "delta", "mer", "merr"),
    *("erreur", "fehler", "errore", "ivar", "invvar", "inversevariance", "variance"),
)
_ERROR_BEHIND: Final = ("std", "stderr", "rms", "er", "e")
_ERROR_ALONE: Final = frozenset({*_ERROR_WORDS, *_ERROR_BEHIND})
_UNIT_BEHIND: Final = re.compile(r"(?<=.)(njy|ujy|mjy|jy|ab|vega|mmag)$")


@lru_cache(maxsize=4096)
def stems_of_error(key: str) -> frozenset[str]:
    """Return what may remain of an error's plain name without the word for an error and the unit."""
    stems = set[str]()
    for name in (key, _UNIT_BEHIND.sub("", key)):
        stems |= {name.replace(word, "", 1) for word in _ERROR_WORDS if word in name}
        stems |= {name.removesuffix(word) for word in _ERROR_BEHIND if name.endswith(word)}
        stems |= {name[1:]} if name.startswith(("e", "d", "s")) else set()
    return frozenset(stems | {_UNIT_BEHIND.sub("", stem) for stem in stems})


def error_rank(keys: set[str], measurement: set[str], kind: str) -> int | None:
    """Return how well a column's plain names fit the error of a measurement, 0 best; None where it is no error.

    An error has the name of its measurement and a word such as ``err`` (0), that of another magnitude or flux and such
    a word (1), or that word alone (2).

    Parameters
    ----------
    measurement : plain names of the column of the measurement. kind : ``mag`` or ``flux``.
    """
    names = measurement | {_UNIT_BEHIND.sub("", name) for name in measurement}
    names |= {name.replace(kind, "") for name in names if name != kind}  # sigmapsf is the error of magpsf
    stems = set[str]().union(*map(stems_of_error, keys))
    if stems & (names - {""}):
        return 0
    if stems & {*RANKS[kind], "y", "phot", "photometric"}:
        return 1
    return 2 if {_UNIT_BEHIND.sub("", key) for key in keys} & _ERROR_ALONE else None


_FILTER: Final = r"(?P<filter>[ugrizyUBVRIG]|BP|RP)"
_QUANTITY: Final = r"(?P<quantity>(?i:mag|err|magerr|emag|flux|fluxerr|mjd|e))"
_ONE_WORD: Final = (re.compile(f"{_FILTER}_?{_QUANTITY}"), re.compile(f"{_QUANTITY}_?{_FILTER}"))


MAX_PARTS: Final = 12
"""Maximum number of words of the name of a column of one filter."""


def filter_and_role(name: str) -> tuple[str, str] | None:
    """Return the filter and the role of a column of one filter, such as ``mag_g``, ``g_mag_err`` or ``e_V``.

    The role is ``value`` where there is only a filter, and ``err`` for an error of magnitudes or fluxes.
    """
    field = last_part(name)
    parts = [part for part in re.split(r"[_\s.:()\[\]-]+", field) if part]
    if len(parts) > MAX_PARTS:
        return None
    if len(parts) > 2 and (parts[-1].lower() in ("ab", "vega") or unit_of(parts[-1])):
        parts.pop()
    for index in sorted(range(len(parts)), key=lambda index: index + 1 < len(parts)):  # the last one first
        role = _role_beside_filter(plain("_".join(parts[:index] + parts[index + 1 :])))
        if role and (found := known_filter(parts[index])):
            return found, role
    match = next((match for pattern in _ONE_WORD if (match := pattern.fullmatch(field))), None)
    if match is None:
        return None
    return known_filter(match["filter"]) or "", _role_beside_filter(match["quantity"].lower())


def _role_beside_filter(key: str) -> str:
    if not key:
        return "value"
    if role := next((role for role in ("mag", "flux", "time", "limit") if key in RANKS[role]), ""):
        return role
    stems = stems_of_error(key)
    return next(
        (f"{kind}_err" for kind in ("mag", "flux") if stems & RANKS[kind].keys()), "err" if key in _ERROR_ALONE else ""
    )
