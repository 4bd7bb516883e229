"""Decides what the columns of a table mean, from their names, their units and the values of the first rows.

Every decision that the caller did not make is a :class:`Guess`. Where two readings are possible and the wrong one would
change the answer (the unit of the flux, which filter a number means), it is a :class:`TableQuestion`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, NoReturn, get_args

import numpy as np

from nightjar_alerts.models.checks import DEEPEST, SHALLOWEST
from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.metadata import REDSHIFT_RANGE, REDSHIFTS
from nightjar_alerts.models.photometry import (
    FILTERS,
    JD_MINUS_MJD,
    NJY_PER_UNIT,
    NJY_ZERO_POINT,
    Float64,
    SourceUnit,
    njy_of_magnitude,
)
from nightjar_alerts.tables import vocabulary
from nightjar_alerts.tables.columns import (
    MISSING_TEXTS,
    Array,
    Lists,
    TableColumns,
    is_text,
    iso_times,
    numbers,
    object_column,
    texts,
)
from nightjar_alerts.tables.options import (
    Choice,
    FluxKind,
    Guess,
    TableError,
    TableOptions,
    TableQuestion,
    described_filter,
)
from nightjar_alerts.tables.vocabulary import RANKS, filter_and_role, last_part, plain, unit_of

SAMPLE_POINTS: Final = 65_536
USUAL_DEPTH: Final = (14.0, 25.5)
"""AB magnitude at 5 sigma of a flux without a unit that is taken for nJy, the default of the service."""
POSSIBLE_DEPTH: Final = (12.0, 28.0)
SLOAN_CAPITALS: Final = frozenset("UGRIZY")
VEGA_BY_CUSTOM: Final = frozenset({"U", "B", "V", "R", "I", "G", "BP", "RP", "C"})
"""Filters whose magnitudes are usually published in the Vega system."""
MAGNITUDE_SLOPE: Final = 2.0
"""Power of the value with which errors grow: more than 3 for magnitudes, 1 or less for fluxes."""
LARGEST_ERROR: Final = 9.0
MAX_SPREAD_DEGREES: Final = 0.01
"""Distance in declination, or right ascension, of rows that are of different objects."""
SPREADSHEET_DAYS: Final = (36_526, 47_500)
"""Days of a spreadsheet between 2000 and 2030, which as MJD are before 1989."""
SPREADSHEET_ZERO: Final = 15_018
"""MJD of day 0 of a spreadsheet."""
MAX_CANDIDATES: Final = 32
"""Columns that may be the brightness, the most likely first, whose errors are looked for among all columns."""
LISTED_COLUMNS: Final = 12
MAX_FLAGS: Final = 6
"""Distinct values of a column of flags that a message lists."""
_ROLE_TEXTS: Final = {
    "object_id": "the object",
    "time": "the time",
    "band": "the filter",
    "flux_err": "the error of the flux",
    "mag": "the magnitude",
    "mag_err": "the error of the magnitude",
    "limit": "the limiting magnitude",
    "upper_limit": "the flag of upper limits",
    "detected": "the flag of detections",
    "sign": "the sign of the difference",
    "snr": "the signal-to-noise ratio",
    "zero_point": "the zero point of the flux",
    "mag_system": "the magnitude system",
}
_SYSTEM_TEXTS: Final = {"AB": "AB", "Vega": "Vega", "mixed": "Vega in U B V R I G BP RP and unfiltered, AB in others"}
KIND_TEXTS: Final = {
    "difference": "the brightness is that of difference images",
    "total": "the brightness is that of the whole source: the median of each filter is subtracted",
}
_NUMBERS: Final = re.compile(r"[0-9]{1,18}")
_ZERO_BEHIND: Final = re.compile(r"(jd(?:_?(?:tdb|tcb|utc))?)[\s_+-]*(\d{4,}(?:\.\d+)?)\s*$", re.IGNORECASE)
"""Date from which times count, in a name such as ``MJD-60000``."""
_VALUES: Final = frozenset({"value", "mag", "flux"})
_ONE_NUMBER: Final = "a value must be one number, and its error another column"
_YES_OR_NO: Final = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n"})
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}")
_FLAGS: Final = re.compile(r"flag|qual|valid|reject|bad|status")


@dataclass(slots=True)
class Layout:
    """Meaning of a table's columns.

    Attributes
    ----------
    columns : column of each role.
    wide : filters and their own columns by role, where the table has a set of columns for each filter.
    nested : whether a row holds all points of an object, or of an object in one filter, as lists.
    band : filter of all points, in a table without a column of filters.
    filters : meaning of the names in the column of filters; :meth:`filter` adds to it.
    scale : nJy of one unit of flux; of a filter in ``scales`` that one instead.
    error_scales : nJy, or mag, of one unit of a column of errors that has a unit of its own.
    usual_kind : kind of flux where neither names nor values show it.
    signed : whether a negative magnitude stands for a negative flux.
    """

    columns: dict[str, str] = field(default_factory=dict)
    wide: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    nested: bool = False
    band: str = ""
    filters: dict[str, str | None] = field(default_factory=dict)
    time_format: str = "mjd"
    time_offset: float = 0.0
    scale: float = 1.0
    scales: dict[str, float] = field(default_factory=dict)
    error_scales: dict[str, float] = field(default_factory=dict)
    flux_kind: str = ""
    usual_kind: FluxKind = "difference"
    mag_system: str = "AB"
    survey: str = ""
    signed: bool = False
    bad_flags: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    position: tuple[str, ...] = ()
    guesses: list[Guess] = field(default_factory=list)

    def sets(self) -> list[tuple[str, dict[str, str]]]:
        """Return the filter, and the columns by role, of each set of points: one, or one for each filter."""
        return [(name, self.columns | own) for name, own in self.wide] or [(self.band, self.columns)]

    def all(self, role: str) -> list[str]:
        """Return the columns of a role: none, one, or one for each filter."""
        return list(dict.fromkeys(columns[role] for _, columns in self.sets() if role in columns))

    def names(self) -> tuple[str, ...]:
        """Return every column that is read."""
        measured = [name for _, columns in self.sets() for name in columns.values()]
        return tuple(dict.fromkeys([*measured, *self.bad_flags, *self.metadata.values(), *self.position]))

    def filter(self, name: str) -> str | None:
        """Return the filter of a name: :data:`NO_FILTER` to leave its rows out, None where it is unknown."""
        if name not in self.filters:
            self.filters[name] = known_filter(name)
        return self.filters[name]

    def guess(self, option: str, value: object, text: str) -> None:
        """Add a decision that the options did not make."""
        self.guesses.append(Guess(option, str(value), text))


def guess_layout(
    header: Sequence[str],
    units: Mapping[str, str],
    sample: TableColumns,
    options: TableOptions,
    name: str = "",
    checkpoint: Callable[[], None] = lambda: None,
) -> Layout:
    """Decide what a table's columns mean.

    Parameters
    ----------
    header : names of the columns. units : those that the table states, by column.
    sample : all columns of the first rows.
    name : of the file. checkpoint : called before each look at a column; may raise.

    Raises
    ------
    TableQuestion
        When two readings are possible, or a column cannot be found.
    TableError
        When an option names a column that does not exist.
    """
    guesser = _Guesser(header, units, sample, options, checkpoint)
    guesser.find_columns(name)
    guesser.decide_values()
    return guesser.result


def guess_object_columns(header: Sequence[str], sample: TableColumns) -> tuple[str, dict[str, str]]:
    """Return the column of object names of a table with one row per object, and that of each metadata name.

    Raises
    ------
    TableError
        When there is none of either.
    """
    guesser = _Guesser(header, {}, sample, TableOptions())
    guesser.points, guesser.result.nested = [], True  # names need not repeat
    object_id = guesser._find("object_id", guesser.scalars, guesser._holds_ids)
    if object_id is None:
        raise TableError(f"no column has names of objects, such as object_id; it has {guesser._listed()}")
    if not (metadata := guesser._metadata_columns()):
        raise TableError(f"no column has metadata, such as redshift or mwebv; it has {guesser._listed()}")
    return object_id, metadata


class _Guesser:
    def __init__(
        self,
        header: Sequence[str],
        units: Mapping[str, str],
        sample: TableColumns,
        options: TableOptions,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self._checkpoint = checkpoint
        self.options, self.units, self.sample = options, units, sample
        self.header = [name for name in header if name in sample]
        self.keys: dict[str, set[str]] = {
            name: {plain(part) for part in (name, last_part(name), _ZERO_BEHIND.sub(r"\1", name))}
            for name in self.header
        }
        self.positional = all(re.fullmatch(r"(?i)(column|col|field|var)[ _]?\d+", name) for name in self.header)
        self.scalars = [name for name in self.header if not isinstance(sample[name], Lists)]
        self.reference_mag = ""
        self.hints = vocabulary.Hints()
        self.result = Layout({role: name for role, name in options.columns.items() if name})
        named = {f"columns.{role}": name for role, name in self.result.columns.items()}
        named |= {f"metadata[{meaning!r}]": name for meaning, name in (options.metadata or {}).items()}
        for option, name in named.items():
            if name not in sample:
                raise TableError(f"{option} is {name!r}, which the table does not have; it has {self._listed()}")

    def find_columns(self, name: str) -> None:
        """Find the column of each role. ``name`` is that of the file."""
        result = self.result
        self._find_points()
        self._find_hints(name)
        self._find_time()
        self._find_band()
        if not result.wide:
            self._find_brightness()
        self._find_object_id()
        self._find("limit", self.points, self._looks_like_mags)
        for role in ("upper_limit", "detected", "sign"):
            self._find(role, self.points)
        if result.all("flux"):
            self._find("zero_point", [*self.points, *self.header], self._looks_like_zero_point)
        self._find("flux_unit", [*self.points, *self.header])
        self._find("mag_system", [*self.points, *self.header], self._names_systems)
        self._find_flags()

    def decide_values(self) -> None:
        """Decide what the values mean."""
        self._decide_time()
        self._decide_filters()
        self._decide_mag_system()
        self._decide_signs()
        self._decide_unit()
        self._decide_error_units()
        self._decide_kind()
        self._find_metadata()
        self._find_position()
        self._check_columns()
        self._list_unused()

    def _check_columns(self) -> None:
        """Raise TableError where the columns do not fit each other or do not hold numbers."""
        result = self.result
        for role in ("flux", "flux_err", "mag", "mag_err"):
            name = result.columns.get(role)
            if name is None:
                continue
            if isinstance(self.sample[name], Lists) != result.nested:
                kind = "is not a column of lists" if result.nested else "is a column of lists"
                raise TableError(f"columns do not fit each other: {name!r} {kind}, unlike the times")
            if self.options.columns.get(role) and not self._may_hold_mags(name):
                raise TableError(f"column {name!r} does not hold numbers")
        name = result.columns.get("object_id", "")
        if name and self._values(name).dtype.kind == "f" and not self._is_whole(name, 2**53):
            raise TableError(f"column {name!r} holds floating-point numbers instead of a name or an integer")

    # Asking about names and values

    def _listed(self) -> str:
        return ", ".join(self.header[:40]) + (" ..." if len(self.header) > 40 else "")

    def _question(self, text: str, option: str, choices: Sequence[Choice] = (), hint: str = "") -> TableQuestion:
        return TableQuestion(f"{text} The table has {self._listed()}.{hint}", option, choices)

    def _values(self, name: str) -> Array:
        self._checkpoint()
        column = self.sample[name]
        return (column.values if isinstance(column, Lists) else column)[:SAMPLE_POINTS]

    def _finite(self, name: str) -> Float64:
        values = numbers(self._values(name))[0]
        return values[np.isfinite(values)]

    def _same(self, name: str, other: str) -> bool:
        return list(texts(self._values(name))) == list(texts(self._values(other)))

    def _not_read(self, names: Iterable[str], remedy: str) -> str:
        """Return a sentence on the first of some columns, whose values cannot be read."""
        for name in names:
            values = [text for text in texts(self._values(name)) if text.lower() not in MISSING_TEXTS]
            bad = numbers(object_column(values))[1]
            if bad.any():
                return f" Values of {name!r}, such as {values[int(np.argmax(bad))]!r}, cannot be read: {remedy}."
            return f" Values of {name!r} are not plausible." if values else f" Column {name!r} has no values."
        return ""

    def _distinct(self, name: str) -> list[str]:
        return sorted({text for text in texts(self._values(name)) if text})

    def _is_numeric(self, name: str) -> bool:
        values = self._values(name)
        if not is_text(values):
            return values.dtype.kind in "fiu"
        found, bad = numbers(values)
        present = np.isfinite(found)
        return bool(present.any() and bad.sum() <= 0.2 * present.sum())

    def _is_whole(self, name: str, limit: float = np.inf) -> bool:
        values = self._finite(name)
        return bool(np.all((values % 1 == 0) & (np.abs(values) < limit)))

    def _holds_times(self, name: str) -> bool:
        values = self._values(name)
        if values.dtype.kind == "M":
            return True
        if self._is_numeric(name):
            return bool(self._finite(name).size)
        found, bad = iso_times(values[:256])
        return bool(np.isfinite(found).any() and bad.sum() < np.isfinite(found).sum())

    def _looks_like_date(self, name: str) -> bool:
        values = self._finite(name)
        inside = ((values > 15_000) & (values < 100_000)) | ((values > 2.4e6) & (values < 2.6e6))
        return bool(values.size and inside.mean() > 0.95 and np.ptp(values) < 60_000)

    def _looks_like_mags(self, name: str) -> bool:
        values = self._finite(name) if self._is_numeric(name) else np.zeros(0)
        values = values[(values < 90) & (values > -90)]
        return bool(values.size and (values > 3).all() and (values < 32).all() and np.ptp(values) < 16)

    def _looks_like_zero_point(self, name: str) -> bool:
        values = self._finite(name) if self._is_numeric(name) else np.zeros(0)
        return bool(values.size and (values > 0).all() and (values < 50).all())

    def _looks_like_errors(self, name: str) -> bool:
        """Return True for small positive numbers of several values, as errors of magnitudes are."""
        values = self._finite(name) if self._is_numeric(name) else np.zeros(0)
        values = values[values < 9]
        return bool(len(values) > 2 and (values > 0).all() and np.median(values) < 0.7 and len(np.unique(values)) > 2)

    def _may_hold_mags(self, name: str) -> bool:
        """Return True for numbers, and for text with limits such as ``>20.5``."""
        return self._is_numeric(name) or any(text.startswith(("<", ">")) for text in texts(self._values(name)))

    def _names_systems(self, name: str) -> bool:
        return any("ab" in text.lower() or "vega" in text.lower() for text in self._distinct(name))

    def _is_filter(self, text: str) -> bool:
        return text in self.options.filters or bool(known_filter(text))

    def _holds_filters(self, name: str) -> bool:
        if self._values(name).dtype.kind == "f" and not self._is_whole(name):
            return False
        found = self._distinct(name)
        return len(found) <= 200 and any(self._is_filter(text) or re.fullmatch(r"[0-9]{1,2}", text) for text in found)

    def _all_filters(self, name: str) -> bool:
        found = self._distinct(name) if is_text(self._values(name)) else []
        return 0 < len(found) < 60 and all(map(self._is_filter, found))

    def _holds_ids(self, name: str) -> bool:
        if self._values(name).dtype.kind == "f" and not self._is_whole(name):
            return False
        names = texts(self._values(name))
        present = [text for text in names if text]
        is_row_number = not self.result.nested and len(present) > 3 and len(set(present)) == len(present)
        if is_row_number and not self.keys[name] & vocabulary.STRONG_IDS:
            return False
        return len(present) > 0.5 * len(names)

    # Finding columns

    def _taken(self) -> set[str]:
        return {name for _, columns in self.result.sets() for name in columns.values()}

    def _free(self, test: Callable[[str], bool] | None = None, pool: Iterable[str] | None = None) -> list[str]:
        """Return the columns without a role that pass a test, of the points where no others are named."""
        taken = self._taken()
        pool = self.points if pool is None else pool
        return [name for name in dict.fromkeys(pool) if name not in taken and (test is None or test(name))]

    def _candidates(
        self, role: str, pool: Iterable[str] | None = None, test: Callable[[str], bool] | None = None
    ) -> list[str]:
        """Return the columns with one of the names of a role, the most usual names first."""
        ranks = RANKS[role]
        named = [name for name in self._free(pool=pool) if self.keys[name] & ranks.keys()]
        named.sort(key=lambda name: min(ranks[key] for key in self.keys[name] if key in ranks))
        return [name for name in named if test is None or test(name)]

    def _take(self, role: str, name: str) -> None:
        for other in (f"{name} (2)", f"{name}.1"):  # as this reader and pandas name the second one
            if self.options.columns.get(role) is None and other in self.sample and not self._same(name, other):
                choices = [Choice(name, "the first"), Choice(other, "the second")]
                raise TableQuestion(f"Which of the columns named {name!r} is to be read?", f"columns.{role}", choices)
        self.result.columns[role] = name
        if self.options.columns.get(role) != name and plain(name) != role.replace("_", ""):
            self.result.guess(f"columns.{role}", name, f"{_ROLE_TEXTS.get(role, role)} is column {name!r}")

    def _find(self, role: str, pool: Iterable[str], test: Callable[[str], bool] | None = None) -> str | None:
        """Return the column of a role: that of the options, or the first with one of its names."""
        if role not in self.options.columns and (found := self._candidates(role, pool, test)):
            self._take(role, found[0])
        return self.result.columns.get(role)

    def _find_points(self) -> None:
        """Decide whether rows hold lists, and which lists belong together."""
        lists = [name for name in self.header if name not in self.scalars]
        chosen = self.options.columns.get("time")
        if chosen:
            times = [name for name in lists if name == chosen]
        else:
            times = [name for name in lists if self.keys[name] & RANKS["time"].keys() and self._holds_times(name)]
        times = times or [name for name in lists if last_part(name).startswith(("mjd_", "time_"))]
        self.result.nested = bool(times)
        if not times:
            self.points = self.scalars
            return
        groups: dict[tuple[str, bytes], list[str]] = {}
        for name in lists:
            column = self.sample[name]
            assert isinstance(column, Lists)
            groups.setdefault((name.rpartition(".")[0], column.offsets.tobytes()), []).append(name)
        usable = [group for group in groups.values() if any(name in times for name in group)]
        usable.sort(key=lambda group: (not any("forced" in name.lower() for name in group), -len(group)))
        if len(times) > 1 and all(map(filter_and_role, times)):  # each filter has times of its own
            self.points = [name for group in usable for name in group]
            return
        self.points = usable[0]
        if len(usable) > 1 and not chosen:
            prefix = usable[0][0].rpartition(".")[0] or usable[0][0]
            self.result.guess("columns.time", usable[0][0], f"points are in the lists of {prefix!r}")

    def _find_hints(self, name: str) -> None:
        self.hints = vocabulary.hints_of(self.header, {key for keys in self.keys.values() for key in keys})
        is_ogle = re.search(r"ogle|phot\.dat", f"{name} {self.options.survey}", re.IGNORECASE)
        if self.positional and is_ogle and not any(map(self._all_filters, self.points)):
            self.hints = vocabulary.Hints("OGLE", "ogle", band="I", kind="total", mag_system="Vega")
        self.result.survey = self.options.survey.lower() or self.hints.survey
        if self.hints.name:
            self.result.guess("", "", f"the columns are those of {self.hints.name}")

    def _find_time(self) -> None:
        if self._find("time", self.points, self._holds_times):
            return
        numeric = [name for name in self.points if self._is_numeric(name)]
        likely = [name for name in numeric if self._looks_like_date(name)]
        likely = likely or [name for name in self.points if name not in numeric and self._holds_times(name)]
        if self.positional:
            likely = likely[:1] or numeric[:1]
        if len(likely) == 1:
            self._take("time", likely[0])
            return
        own = {split[0] for name in self.points if (split := filter_and_role(name)) and split[1] == "time"}
        if likely or len(own) < 2:
            choices = [Choice(name, "looks like dates") for name in likely]
            if not choices and self._metadata_columns() and not self._candidates("mag") + self._candidates("flux"):
                raise TableError(
                    "the table has metadata of objects and no light curves: give it as object_metadata "
                    "(--object-metadata FILE) with the table of light curves"
                )
            hint = "" if choices else self._not_read(self._candidates("time"), "write MJD, or dates as YYYY-MM-DD")
            text = f"Which column holds the time of the observations?{hint}"
            raise self._question(text, "columns.time", choices)

    def _find_band(self) -> None:
        result = self.result
        if self.options.band:
            result.band = described_filter(self.options.band, "band")
            return
        pool = [*self.points, *self.scalars] if result.nested else self.points
        if self._find("band", pool, self._holds_filters):
            return
        by_value = self._free(self._all_filters, pool)
        if len(by_value) == 1:
            self._take("band", by_value[0])
            return
        if self._find_wide():
            return
        unknown = [name for name in self._candidates("band", pool) if self.keys[name] & vocabulary.STRONG_BANDS]
        if unknown and "band" not in self.options.columns:
            self._take("band", unknown[0])
        elif self.hints.band:
            result.band = self.hints.band
            result.guess("band", result.band, f"all points are in filter {result.band}")
        else:
            hint = ""
            if own := [name for name in self._free() if (split := filter_and_role(name)) and split[1] in _VALUES]:
                hint = self._not_read([name for name in own if not self._is_numeric(name)], _ONE_NUMBER)
                hint = hint or f" Columns by filter ({', '.join(own)}) need errors: set mag_err to one in mag for all."
            text = f"Which filter are the observations in?{hint}"
            raise self._question(text, "band", [Choice(name, "") for name in FILTERS])

    def _find_wide(self) -> bool:
        """Look for a set of columns for each filter."""
        result, options = self.result, self.options
        bands: dict[str, dict[str, str]] = {}
        for name in self._free(self._is_numeric):
            if split := filter_and_role(name):
                bands.setdefault(split[0], {}).setdefault(split[1], name)
        for band, own in bands.items():
            if "value" in own:  # a column that has the name of the filter alone
                own.setdefault("mag" if self._looks_like_mags(own["value"]) else "flux", own.pop("value"))
            if "err" in own:
                own.setdefault("flux_err" if "flux" in own else "mag_err", own.pop("err"))
            if ("flux" in own and "flux_err" in own) or ("mag" in own and ("mag_err" in own or options.mag_err)):
                named = described_filter(options.filters.get(band, band), f"filters[{band!r}]")
                result.wide.append((named or band, own))
        if "time" not in result.columns and not all("time" in own for _, own in result.wide):
            result.wide.clear()
        if result.wide:
            listed = ", ".join(f"{name}: {' '.join(own.values())}" for name, own in result.wide)
            result.guess("", "", f"the table has columns for each filter ({listed})")
        return bool(result.wide)

    def _find_brightness(self) -> None:
        options, result = self.options, self.result
        mags, fluxes = self._mags_and_fluxes()
        pairs: dict[str, tuple[str, str]] = {}
        for kind, names in (("mag", mags), ("flux", fluxes)):
            used = [name for pair in pairs.values() for name in pair]
            bare = not any(error for _, error in pairs.values())  # otherwise a column `err` is that of the magnitudes
            for name in names[:MAX_CANDIDATES]:
                error = self._error_of(kind, name, used, bare=bare)
                if kind not in pairs or error:
                    pairs[kind] = name, error
                if error:
                    break
        if not pairs:
            raise self._question("Which column holds the brightness?", "columns.mag")
        self.reference_mag = pairs["mag"][0] if "mag" in pairs else ""
        # Fluxes keep what magnitudes lose (negative values), but only with a known unit. Both are read where they have
        # errors, so that one can fill the gaps of the other.
        for kind, (name, error) in self._with_errors(pairs).items():
            if kind == "mag" and error and not self._are_surely_mags(name, error):
                choices = [Choice("mag", "magnitudes"), *(Choice(unit, "fluxes") for unit in NJY_PER_UNIT)]
                text = f"Are the values of {name!r} magnitudes, or fluxes? Their errors fit both."
                raise TableQuestion(text, "flux_unit", choices)
            self._take(kind, name)
            if error:
                self._take(f"{kind}_err", error)
        if "flux" in pairs and "flux" not in result.columns and options.columns.get("flux") is None:
            result.guess("columns.flux", "", f"column {pairs['flux'][0]!r} is not used, because it has no errors")

    def _mags_and_fluxes(self) -> tuple[list[str], list[str]]:
        """Return the columns that may be magnitudes, and those that may be fluxes, the most likely first."""
        chosen = self.options.columns
        if chosen.get("mag") or chosen.get("flux"):
            mags, fluxes = ([name] if (name := chosen.get(kind)) else [] for kind in ("mag", "flux"))
        else:
            mags = [] if "mag" in chosen else self._candidates("mag", test=self._may_hold_mags)
            mags = [name for name in mags if not unit_of(self.units.get(name, ""))]
            fluxes = [] if "flux" in chosen else self._candidates("flux", test=self._is_numeric)
        if not fluxes and not mags:
            mags = [name for name in self._free(self._looks_like_mags) if self._has_unit_mag(name)]
        stated = [text for name in self._candidates("flux_unit", self.header)[:1] for text in self._distinct(name)]
        are_mags = self.options.flux_unit == "mag" or (stated and all("mag" in text.lower() for text in stated))
        if fluxes and (are_mags or self._has_unit_mag(fluxes[0])):
            mags, fluxes = [fluxes[0], *mags], fluxes[1:]
        elif mags and not fluxes and ((stated and all(map(unit_of, stated))) or self._is_unsure_flux(mags[0])):
            mags, fluxes = [], mags
        return (mags, fluxes) if mags or fluxes else self._brightness_by_value()

    def _is_unsure_flux(self, name: str) -> bool:
        """Return True for a column such as ``brightness`` that holds a flux, by the options or by its values."""
        if self.options.columns.get("mag") or self.keys[name] & vocabulary.SURE_MAGNITUDES:
            return False
        given = self.options.flux_unit not in ("", "mag") or self.options.zero_point is not None
        return given or not self._looks_like_mags(name)

    def _has_unit_mag(self, name: str) -> bool:
        unit = self.units.get(name, "").lower()
        return "mag" in unit and "maggy" not in unit

    def _brightness_by_value(self) -> tuple[list[str], list[str]]:
        """Look for a column that can only be the brightness, by its values or its place."""
        free = self._free(self._is_numeric)
        if self.positional and free and "time" in self.result.columns:
            return (free[:1], []) if self._looks_like_mags(free[0]) else ([], free[:1])
        bright = [name for name in free if self._looks_like_mags(name) and np.ptp(self._finite(name)) > 0]
        values = [name for name in free if not _is_error_name(plain(name))]
        mags = [name for name in values if name in bright and "mag" in plain(name)]
        fluxes = [name for name in values if re.search("flux|jy", plain(name)) and not plain(name).startswith("log")]
        if mags or fluxes or len(bright) == 1:
            return (mags, fluxes) if mags or fluxes else (bright, [])
        choices = [Choice(name, "looks like magnitudes") for name in bright]
        named = [*self._candidates("mag"), *self._candidates("flux")]
        hint = self._not_read(named, _ONE_NUMBER)
        text = f"Which column holds the brightness?{hint}"
        raise self._question(text, "columns.mag" if bright else "columns.flux", choices)

    def _are_surely_mags(self, name: str, error: str) -> bool:
        """Return False for values without the name or unit of magnitudes whose errors do not show what they are.

        The errors of magnitudes grow towards faint ones by a factor of 1.2 to 2.5 per magnitude, which is a power of
        four or more of the magnitude. Those of fluxes are constant, or grow like the flux at most.
        """
        is_named = "mag" in plain(name) or self.keys[name] & vocabulary.SURE_MAGNITUDES
        if (
            is_named
            or self.positional
            or self._has_unit_mag(name)
            or self.options.columns.get("mag")
            or self.options.flux_unit == "mag"
        ):
            return True
        if self.hints.mag_system or self.options.mag_system:
            return True
        values, errors = numbers(self._values(name))[0], numbers(self._values(error))[0]
        if len(values) != len(errors):
            return False
        good = (values > 0) & (values < 32) & (errors > 0) & (errors < LARGEST_ERROR)
        if good.sum() < 3 or np.ptp(values[good]) == 0:
            return False
        slope = np.polyfit(np.log(values[good]), np.log(errors[good]), 1)[0]
        return bool(slope > MAGNITUDE_SLOPE)

    def _error_of(self, kind: str, name: str, used: Sequence[str], *, bare: bool) -> str:
        """Return the column of the errors of another one, empty where there is none."""
        if (chosen := self.options.columns.get(f"{kind}_err")) is not None:
            return chosen
        ranked: list[tuple[int, int, str]] = []
        for candidate in self._free(self._is_numeric):
            rank = vocabulary.error_rank(self.keys[candidate], self.keys[name], kind)
            if candidate != name and candidate not in used and rank is not None and (bare or rank < 2):
                ranked.append((rank, len(ranked), candidate))
        return min(ranked)[2] if ranked else ""

    def _with_errors(self, pairs: Mapping[str, tuple[str, str]]) -> Mapping[str, tuple[str, str]]:
        """Return the columns of brightness whose errors are known. Raises TableQuestion where there are none."""
        if complete := {kind: pair for kind, pair in pairs.items() if pair[1]}:
            return complete
        kind, (name, _) = next(iter(pairs.items()))
        free = [other for other in self._free(self._is_numeric) if other != name]
        if self.positional and free:
            return {kind: (name, free[0])}
        if kind == "mag" and self.options.mag_err is not None:
            return {kind: (name, "")}
        if self._find("snr", self.points, self._is_numeric):
            return pairs
        if kind == "mag" and "mag_err" not in self.options.columns:
            likely = [other for other in free if self._looks_like_errors(other)]
            if len(likely) == 1:
                return {kind: (name, likely[0])}
        hint = " Name it by columns.mag_err, or set one error in mag for all." if kind == "mag" else ""
        option = "mag_err" if kind == "mag" else "columns.flux_err"
        raise self._question(f"Which column holds the errors of {name!r}?", option, hint=hint)

    def _find_object_id(self) -> None:
        if self.options.object_id or self._find("object_id", self.scalars, self._holds_ids):
            return
        if "object_id" not in self.options.columns:
            named = self._free(self._is_named_like_objects, self.scalars)
            if len(named) == 1:
                self._take("object_id", named[0])
                return
        if self.result.nested:
            return
        for name in self._free(self._may_name_objects, self.scalars) if "object_id" not in self.options.columns else ():
            raise TableQuestion(
                f"Does column {name!r} name the objects? Otherwise the table is one object.",
                "columns.object_id",
                [Choice(name, "the objects"), Choice("", "the table is one object")],
            )
        for name in self._candidates("object_id", self.scalars, self._names_each_row):
            raise TableQuestion(
                f"Does column {name!r} name the objects? Every row has another name.",
                "columns.object_id",
                [Choice(name, "every row is an object"), Choice("", "the table is one object")],
            )
        for name in self._free(self._is_numeric, self.scalars) if "object_id" not in self.options.columns else ():
            if self._is_position(name) and (values := self._finite(name)).size and np.ptp(values) > MAX_SPREAD_DEGREES:
                text = (
                    f"The rows have no name of an object, and {name!r} differs by {np.ptp(self._finite(name)):.3g} "
                    "degrees. Add a column of names."
                )
                raise TableQuestion(text, "columns.object_id", [Choice("", "the table is one object")])
        self.result.guess("object_id", "", "the table holds one object, because it has no column of object names")

    def _is_named_like_objects(self, name: str) -> bool:
        """Return True for names that repeat, in a column such as ``source_name`` or ``sn_id``."""
        fits = re.search(r"(name|id|object|obj|source|src|target|star|sn|transient)$", plain(last_part(name)))
        other = re.search(r"(inst|tel|obs|filter|band|exp|image|visit)", plain(name))
        return bool(fits and not other and self._holds_ids(name))

    def _names_each_row(self, name: str) -> bool:
        """Return True for text that differs in every row, unlike a number of the row."""
        return "object_id" not in self.options.columns and not self._is_numeric(name) and all(texts(self._values(name)))

    def _may_name_objects(self, name: str) -> bool:
        """Return True for text that may name several objects, which would be mixed otherwise."""
        if vocabulary.NOT_OBJECTS.search(plain(name)) or self._is_numeric(name):
            return False
        names = [text for text in texts(self._values(name)) if text]
        return 1 < len(set(names)) <= len(names) / 3 and len(names) > 0.9 * len(self._values(name))

    def _find_flags(self) -> None:
        """Find the columns of flags and qualities."""
        given = self.options.bad_flags
        for name, bits in (vocabulary.BAD_FLAGS if given is None else given).items():
            found = [column for column in self.points if name in (column, plain(last_part(column)))]
            if given is not None and not found:
                raise TableError(f"bad_flags names {name!r}, which the table does not have; it has {self._listed()}")
            if found and (given is not None or self._is_numeric(found[0])):
                self.result.bad_flags[found[0]] = bits
                if given is None:
                    text = f"rows are left out where the survey flags them as bad in {found[0]!r}"
                    self.result.guess("bad_flags", f"{found[0]}={bits}", text)
        for name in self.options.minimum:
            if name not in self.sample:
                raise TableError(f"minimum names {name!r}, which the table does not have; it has {self._listed()}")

    def _find_metadata(self) -> None:
        """Take the columns that have the names of metadata, where a row or an object has one value."""
        if self.options.metadata is not None:
            self.result.metadata = dict(self.options.metadata)
            return
        self.result.metadata = self._metadata_columns()
        if found := sorted(self.result.metadata.values()):
            listed = ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
            self.result.guess("metadata", "", f"metadata for the model: {listed}")

    def _find_position(self) -> None:
        """Take the columns of right ascension and declination in degrees, if the table has both."""
        free = [name for name in self._free(self._is_numeric, self.scalars) if self._is_in_degrees(name)]
        pair = [
            next((name for name in free if self.keys[name] & names), "")
            for names in (vocabulary.RIGHT_ASCENSIONS, vocabulary.DECLINATIONS)
        ]
        self.result.position = tuple(pair) if all(pair) else ()

    def _is_in_degrees(self, name: str) -> bool:
        return self.units.get(name, "").strip().lower() in {"", "deg", "degree", "degrees"}

    def _metadata_columns(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self._free(self._is_numeric, self.scalars):
            wanted = vocabulary.METADATA.get(last_part(name).lower(), "")
            is_velocity = wanted in REDSHIFTS and (self._finite(name) > REDSHIFT_RANGE[1]).any()
            if wanted and not is_velocity:
                found.setdefault(wanted, name)
        return found

    # Deciding what values mean

    def _decide_time(self) -> None:
        result, options = self.result, self.options
        if options.time_format or options.time_offset is not None:
            result.time_format = options.time_format or "mjd"
            result.time_offset = options.time_offset or 0.0
            return
        name = result.all("time")[0]
        finite = self._finite(name) if self._is_numeric(name) else np.zeros(0)
        middle = float(np.median(finite)) if finite.size else 0.0
        key = plain(last_part(name)) + plain(self.units.get(name, ""))
        zero = _zero_in(last_part(name)) or _zero_in(f"JD {self.units.get(name, '')}")
        if zero and "mjd" in key:
            zero += JD_MINUS_MJD
        is_jd = "jd" in key and "mjd" not in key
        if self._values(name).dtype.kind == "M" or not self._is_numeric(name):
            self._set_time("iso", f"times in {name!r} are dates")
        elif self.hints.time_offset is not None and 0 < middle < 10_000:
            result.time_offset = self.hints.time_offset
            result.guess("time_offset", result.time_offset, f"times in {name!r} count from MJD {result.time_offset:g}")
        elif 2.3e6 < middle < 2.6e6:
            self._set_time("jd", f"times in {name!r} are Julian dates")
        elif 1e8 < middle < 1e10:
            self._set_time("unix", f"times in {name!r} are seconds since 1970")
        elif 1e11 < middle < 1e13:
            raise TableQuestion(f"Times in {name!r} are neither MJD, JD, dates nor seconds.", "columns.time")
        elif 1850 < middle < 2150 and ("year" in key or key in ("epoch", "date")):
            self._set_time("year", f"times in {name!r} are decimal years")
        elif 19_000_101 <= middle <= 21_001_231:
            self._set_time("iso", f"times in {name!r} are dates as YYYYMMDD")
        elif -2_000 <= middle < 15_000 and zero:
            self._set_zero(name, zero)
        elif 15_000 <= middle < 100_000 and (zero == 2_400_000 or key == "rjd") and "mjd" not in key:
            self._set_zero(name, 2_400_000)
        elif 0 <= middle < 15_000 and is_jd:
            self._set_zero(name, {"btjd": 2_457_000.0, "bkjd": 2_454_833.0}.get(key, 2_450_000.0))
        elif middle < 15_000 and self.positional:
            self._set_zero(name, 2_450_000.0)
        elif middle < 15_000 and not key.startswith("mjd"):
            result.guess("time_offset", "0", f"times in {name!r} are days from an unknown date")
        self._check_days(name, middle)

    def _set_time(self, time_format: str, text: str) -> None:
        self.result.time_format = time_format
        self.result.guess("time_format", time_format, text)

    def _set_zero(self, name: str, zero: float) -> None:
        self.result.time_offset = zero - JD_MINUS_MJD
        self.result.guess("time_offset", f"{zero - JD_MINUS_MJD:g}", f"times in {name!r} are JD - {zero:.1f}")

    def _check_days(self, name: str, middle: float) -> None:
        """Raise TableQuestion for days of a spreadsheet, and for dates whose time of day is in another column."""
        if SPREADSHEET_DAYS[0] < middle < SPREADSHEET_DAYS[1] and "jd" not in plain(name):
            years = [Choice("0", f"MJD, of {1858.9 + middle / 365.25:.0f}")]
            years += [Choice(f"{SPREADSHEET_ZERO}", f"days of a spreadsheet, of {1900 + middle / 365.25:.0f}")]
            raise TableQuestion(f"From which day do the times in {name!r} count?", "time_offset", years)
        if self.result.time_format != "iso" or "time" in self.options.columns or self.options.time_format:
            return
        days = iso_times(texts(self._values(name)))[0]
        clocks = self._free(lambda other: all(map(_CLOCK.match, self._distinct(other)[:64] or [""])))
        if clocks and (days[np.isfinite(days)] % 1 == 0).all():
            text = f"Column {name!r} holds dates, and {clocks[0]!r} the time of day. Join them, or read dates only."
            raise TableQuestion(text, "columns.time", [Choice(name, "dates only")])

    def _decide_filters(self) -> None:
        result, options = self.result, self.options
        result.filters = {
            name: described_filter(meaning, f"filters[{name!r}]") for name, meaning in options.filters.items()
        }
        if "band" not in result.columns:
            return
        column = result.columns["band"]
        names = self._distinct(column)
        if unused := sorted(set(options.filters) - set(names)):
            result.guess("", "", f"no row is in {', '.join(unused)}, which the option filters names")
        unset = [name for name in names if name not in options.filters]
        if any(map(_NUMBERS.fullmatch, unset)):
            result.filters = {**self._decide_numbers(column, unset), **result.filters}
        if self._are_sloan_capitals(column, unset):
            result.filters = {**{name: known_filter(name.lower()) for name in SLOAN_CAPITALS}, **result.filters}
        known = {name: found for name in names if (found := result.filter(name))}
        unknown = [name for name in names if result.filter(name) is None]
        if unknown and len(unknown) == len(names):
            raise TableQuestion(
                f"Which filters are {', '.join(map(repr, unknown[:8]))} in {column!r}?",
                "filters",
                [Choice(f"{unknown[0]}=r", "a filter by its name"), Choice(f"{unknown[0]}=620", "a wavelength in nm")],
            )
        renamed = {name: found for name, found in known.items() if name != found and name not in options.filters}
        if renamed:
            listed = ", ".join(f"{name} is {found}" for name, found in renamed.items())
            result.guess(
                "filters", ",".join(f"{name}={found}" for name, found in renamed.items()), f"filters: {listed}"
            )
        if unknown:
            listed = ", ".join(unknown[:12])
            result.guess("filters", "", f"rows in filters that are not known are left out: {listed}")

    def _are_sloan_capitals(self, column: str, names: Sequence[str]) -> bool:
        """Return whether capital letters stand for u g r i z y rather than for G of Gaia and R I of Cousins."""
        if not names or not set(names) <= SLOAN_CAPITALS:
            return False
        if self.result.survey in ("ztf", "lsst") or ("G" in names and {"Z", "Y"} & set(names)):
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

    def _decide_numbers(self, column: str, names: Sequence[str]) -> Mapping[str, str]:
        scheme = self.options.filter_numbers or self.hints.numbers
        found = {int(name) for name in names if _NUMBERS.fullmatch(name)}
        key = plain(last_part(column))
        if not scheme:
            if self.result.survey == "ztf" or (key in ("fid", "filterid") and found <= {1, 2, 3}):
                scheme = "ztf"
            elif (0 in found and found <= set(range(6))) or key in ("passband", "passbandid", "lsstband"):
                scheme = "lsst"
            elif found & {4, 5} and found <= set(range(1, 6)):
                scheme = "ps1"
        described = {
            name: ", ".join(f"{number} {band}" for number, band in numbering.items())
            for name, numbering in vocabulary.NUMBERINGS.items()
        }
        if not scheme:
            listed = ", ".join(map(str, sorted(found)))
            choices = [Choice(name, text) for name, text in described.items()]
            raise TableQuestion(f"Which filters are the numbers {listed} in {column!r}?", "filter_numbers", choices)
        if not self.options.filter_numbers:
            text = f"numbers in {column!r} are filters of {scheme} ({described[scheme]})"
            self.result.guess("filter_numbers", scheme, text)
        return vocabulary.NUMBERINGS[scheme]

    def _decide_mag_system(self) -> None:
        result, hinted = self.result, self.hints.mag_system
        if self.options.mag_system:
            result.mag_system = self.options.mag_system
            result.columns.pop("mag_system", None)
            return
        result.mag_system = hinted or "mixed"
        if not result.all("mag") or "mag_system" in result.columns:
            return
        unit = self.units.get(result.columns.get("mag", ""), "").lower()
        name = plain(result.columns.get("mag", ""))
        if "ab" in unit or name.endswith("ab") or name.startswith("abmag"):
            result.mag_system = "AB"
        elif "vega" in unit or "vega" in name:
            result.mag_system = "Vega"
        elif hinted:
            result.guess("mag_system", hinted, f"magnitudes are {_SYSTEM_TEXTS[hinted]}")
        else:
            filters = {band for band, _ in result.sets()} | {found for found in result.filters.values() if found}
            if vega := ", ".join(sorted(filters & VEGA_BY_CUSTOM)):
                result.guess("mag_system", "mixed", f"magnitudes in {vega} are Vega, those in other filters AB")
            else:
                result.guess("mag_system", "AB", "magnitudes are AB")

    def _decide_signs(self) -> None:
        """Decide whether negative magnitudes are those of negative fluxes, as in ATLAS's forced photometry."""
        result = self.result
        result.signed = bool(self.options.signed_magnitudes)
        if self.options.signed_magnitudes is not None or "mag" not in result.columns or "flux" in result.columns:
            return
        values = self._finite(result.columns["mag"])
        negative = values[(values < -8) & (values > -30)]
        if len(negative) > 2 and not (values > 0).any() and len(np.unique(negative)) > 2:
            raise TableQuestion(
                f"All magnitudes in {result.columns['mag']!r} are negative. Do they stand for negative fluxes? To "
                "absolute or instrumental ones the distance modulus or the zero point has to be added.",
                "signed_magnitudes",
                [Choice("true", "negative fluxes"), Choice("false", "they are left out")],
            )
        filters = {found for found in result.filters.values() if found}
        least = 1 if filters and filters <= {"c", "o"} else 3
        if len(negative) >= least and len(np.unique(negative)) > len(negative) / 2:
            result.signed = True
            text = "negative magnitudes stand for negative fluxes, as in ATLAS's forced photometry"
            result.guess("signed_magnitudes", "true", text)

    def _decide_unit(self) -> None:
        result, options = self.result, self.options
        if "zero_point" in result.columns or not (fluxes := result.all("flux")):
            return
        flux = fluxes[0]
        if options.zero_point is not None:
            result.scale = float(njy_of_magnitude(options.zero_point))
            return
        if options.flux_unit:
            result.scale = 1.0 if options.flux_unit == "mag" else NJY_PER_UNIT[options.flux_unit]
            return
        if "flux_unit" in result.columns:
            if all(map(unit_of, self._distinct(result.columns["flux_unit"]))):
                return
            del result.columns["flux_unit"]
        stated = self.units.get(flux, "")
        named = self._unit(flux) or self._unit(result.columns.get("flux_err", ""))
        if unit := named or self.hints.unit:
            depths = self._depths()
            if not named and depths and not SHALLOWEST <= depths[unit] <= DEEPEST:
                self._ask_unit(flux, depths)
            result.scale = NJY_PER_UNIT[unit]
            if flux.lower() != "fluxcal":
                result.guess("flux_unit", unit, f"fluxes in {flux!r} are in {unit}")
        elif self.reference_mag and self._scale_from_magnitudes(flux, self.reference_mag):
            pass
        elif "mag" in result.columns and "mag_err" in result.columns:
            del result.columns["flux"]
            result.columns.pop("flux_err", None)
            result.guess("columns.flux", "", f"column {flux!r} is not used, because its unit is not known")
        elif vocabulary.OTHER_UNIT.search(stated) and not vocabulary.COUNTS_UNIT.search(stated):
            raise _unsupported(flux, stated)
        else:
            self._unit_by_depth(flux)

    def _scale_from_magnitudes(self, flux: str, mag: str) -> bool:
        """Find the zero point of the flux from magnitudes in the same rows, by filter."""
        result = self.result
        values, mags = numbers(self._values(flux))[0], numbers(self._values(mag))[0]
        if len(values) != len(mags):
            return False
        bands = np.full(len(values), "", np.object_)
        column = result.columns.get("band")
        if column is not None and isinstance(self.sample[column], Lists) == result.nested:
            bands[:] = [result.filter(text) or "" for text in texts(self._values(column))]
        good = (values > 0) & (mags > 3) & (mags < 32)
        found: dict[str, float] = {}
        for name in np.unique(bands[good]):
            rows = good & (bands == name)
            zero_points = mags[rows] + 2.5 * np.log10(values[rows])
            if len(zero_points) < 3:
                continue
            found[str(name)] = float(np.median(zero_points))
            if np.median(np.abs(zero_points - found[str(name)])) > 0.05:
                return False
        if not found:
            return False
        # The magnitudes may be Vega's; the correction by filter is applied to fluxes and magnitudes alike.
        result.scales = {name: float(njy_of_magnitude(zero_point)) for name, zero_point in found.items()}
        result.scale = float(np.median(list(result.scales.values())))
        listed = ", ".join(f"{name} {zero_point:.3f}".strip() for name, zero_point in found.items())
        result.guess("zero_point", "", f"the zero point of {flux!r} follows from {mag!r}: {listed}")
        return True

    def _unit_by_depth(self, flux: str) -> None:
        """Decide by the depth that the errors mean in each unit."""
        if plain(last_part(flux)) in vocabulary.COUNTS or vocabulary.COUNTS_UNIT.search(self.units.get(flux, "")):
            raise TableQuestion(f"Which AB zero point do the counts in {flux!r} have, in mag?", "zero_point")
        depths = self._depths()
        if not depths:
            self.result.guess("flux_unit", "nJy", f"fluxes in {flux!r} are in nJy, the default")
        elif USUAL_DEPTH[0] <= depths["nJy"] <= USUAL_DEPTH[1]:
            text = f"fluxes in {flux!r} are in nJy: their errors fit a depth of {depths['nJy']:.1f} mag"
            self.result.guess("flux_unit", "nJy", text)
        elif set(_possible(depths)) == {"nJy"}:
            self.result.guess("flux_unit", "nJy", f"fluxes in {flux!r} are in nJy: no other unit fits their errors")
        else:
            self._ask_unit(flux, depths)

    def _ask_unit(self, flux: str, depths: Mapping[str, float]) -> NoReturn:
        choices = [
            Choice(unit, f"a depth of {depth:.1f} mag at 5 sigma")
            for unit, depth in (_possible(depths) or depths).items()
        ]
        if self._looks_like_mags(flux):
            choices.append(Choice("mag", "they are AB magnitudes"))
        raise TableQuestion(f"In which unit are the fluxes in {flux!r}?", "flux_unit", choices)

    def _depths(self) -> dict[str, float]:
        """Return the 5 sigma depth (AB mag) of the median error in each unit, empty without errors."""
        errors = np.abs(self._finite(self.result.all("flux_err")[0])) if self.result.all("flux_err") else np.zeros(0)
        errors = errors[errors > 0]
        if not errors.size:
            return {}
        middle = float(np.median(errors))
        return {unit: NJY_ZERO_POINT - 2.5 * np.log10(5 * middle * scale) for unit, scale in NJY_PER_UNIT.items()}

    def _unit(self, name: str) -> SourceUnit | None:
        """Return the unit of a flux or its error that the table or the name of the column states."""
        return unit_of(self.units.get(name, "")) or vocabulary.unit_in_name(name)

    def _decide_error_units(self) -> None:
        """Find columns of errors that have a unit of their own."""
        result = self.result
        for name in result.all("flux_err") if not self.options.flux_unit and self.options.zero_point is None else ():
            stated = self.units.get(name, "")
            if unit := self._unit(name):
                result.error_scales[name] = NJY_PER_UNIT[unit]
                if NJY_PER_UNIT[unit] != result.scale:
                    result.guess("", "", f"errors in {name!r} are in {unit}")
            elif vocabulary.OTHER_UNIT.search(stated):
                raise _unsupported(name, stated)
        for name in result.all("mag_err"):
            stated = self.units.get(name, "")
            if vocabulary.MILLIMAGNITUDES.search(f"{name} {stated}"):
                result.error_scales[name] = 1e-3
                result.guess("", "", f"errors in {name!r} are in mmag")
            elif vocabulary.OTHER_UNIT.search(stated):
                raise _unsupported(name, stated)

    def _decide_kind(self) -> None:
        """Decide by options, the name of the column, or the survey; otherwise the values of the objects decide."""
        result = self.result
        name = plain(last_part(result.columns.get("flux") or result.columns.get("mag") or ""))
        result.usual_kind = self.hints.usual_kind or "difference"
        if self.options.flux_kind:
            result.flux_kind = self.options.flux_kind
            return
        named = "total" if name in vocabulary.TOTAL else "difference" if name in vocabulary.DIFFERENCE else ""
        result.flux_kind = named or self.hints.kind
        if result.flux_kind:
            result.guess("flux_kind", result.flux_kind, KIND_TEXTS[result.flux_kind])

    def _list_unused(self) -> None:
        """State which columns are not read, flags and qualities first."""
        used = {*self.result.names(), *self.options.minimum}
        unused = [name for name in self.header if name not in used and not self._is_position(name)]
        unused.sort(key=lambda name: not _FLAGS.search(plain(name)))
        for name in unused if self.options.bad_flags is None and not self.options.minimum else ():
            if remedy := self._remedy_for_flags(name):
                self.result.guess("", "", f"no rows are left out because of {name!r}: {remedy}")
        if unused:
            more = len(unused) - LISTED_COLUMNS
            listed = ", ".join(unused[:LISTED_COLUMNS]) + (f" and {more} more" if more > 0 else "")
            self.result.guess("", "", f"columns not used: {listed}")

    def _remedy_for_flags(self, name: str) -> str:
        """Return how to leave out rows by a column of flags or qualities, empty for other columns."""
        values = self._distinct(name)
        if not _FLAGS.search(plain(name)) or len(values) < 2:
            return ""
        least = f"minimum (--minimum '{name}=VALUE') leaves out those below a value"
        if all(map(_NUMBERS.fullmatch, values)) and len(values) <= MAX_FLAGS:
            bits = reduce(or_, map(int, values))
            return f"bad_flags (--bad-flags '{name}={bits}') leaves out those with a flag, {least}"
        if self._is_numeric(name):
            return least
        if {value.lower() for value in values} <= _YES_OR_NO:
            return f"bad_flags (--bad-flags '{name}=1') leaves out the true ones, {least.replace('VALUE', '1')}"
        return f"filter the table first to use it ({', '.join(values)})" if len(values) <= MAX_FLAGS else ""

    def _is_position(self, name: str) -> bool:
        return bool(self.keys[name] & vocabulary.POSITIONS)


def _zero_in(text: str) -> float:
    """Return the date from which times count by a text such as ``HJD-2450000`` or ``JD (2450000+)``, 0 without one."""
    found = _ZERO_BEHIND.search(re.sub(r"[()\[\]+]", " ", text))
    return float(found[2]) if found else 0.0


def _possible(depths: Mapping[str, float]) -> dict[str, float]:
    return {unit: depth for unit, depth in depths.items() if POSSIBLE_DEPTH[0] <= depth <= POSSIBLE_DEPTH[1]}


def _unsupported(name: str, unit: str) -> TableError:
    known = ", ".join(get_args(SourceUnit))
    return TableError(
        f"the unit {unit!r} of column {name!r} is not supported: convert it to one of {known}, or to magnitudes"
    )


def _is_error_name(key: str) -> bool:
    return bool(re.search(r"(err|error|unc|sigma|std)", key)) or key.startswith(("e", "d", "sig"))
