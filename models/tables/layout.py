"""Decides what the columns of a table mean, from their names, their units and the values of the first rows.

Every decision that the caller did not make is a :class:`Guess`. Where two readings are possible and the wrong one would
change the answer (the unit of the flux, which filter a number means), it is a :class:`TableQuestion`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import (
    FILTERS,
    JD_MINUS_MJD,
    NAMES,
    NJY_PER_UNIT,
    NJY_ZERO_POINT,
    Float64,
    nearest_band,
)
from nightjar_alerts.models.tables import vocabulary
from nightjar_alerts.models.tables.columns import Array, Batch, Lists, is_text, iso_times, numbers, texts
from nightjar_alerts.models.tables.options import Choice, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.models.tables.vocabulary import last_part, plain

NO_FILTER: Final = ""
"""Filter of rows that are left out on purpose."""
SAMPLE_POINTS: Final = 65_536
USUAL_DEPTH: Final = (14.0, 25.5)
"""AB magnitude at 5 sigma of a flux without a unit that is taken for nJy, the default of the service."""
POSSIBLE_DEPTH: Final = (12.0, 28.0)
GAIA_EPOCH_MJD: Final = 55_197.0
"""MJD of J2010.0 (JD 2455197.5), from which Gaia counts days."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a table with certain columns."""

    name: str
    survey: str = ""
    band: str = ""
    unit: str = ""
    kind: str = ""
    numbers: str = ""
    mag_system: str = ""
    time_offset: float | None = None


_KNOWN_TABLES: Final[Sequence[tuple[frozenset[str], Hints]]] = tuple(
    (frozenset(names.split()), hints)
    for names, hints in (
        ("forcediffimflux forcediffimfluxunc zpdiff", Hints("ZTF forced photometry", "ztf", kind="difference")),
        ("magpsf sigmapsf fid", Hints("ZTF alerts", "ztf", kind="difference", numbers="ztf")),
        ("hmjd mag magerr filterid", Hints("ZTF data release", "ztf", kind="total", numbers="ztf")),
        ("hmjd mag magerr", Hints("ZTF data release", "ztf", kind="total", numbers="ztf")),
        ("mag magerr catflags", Hints("ZTF data release", "ztf", kind="total", numbers="ztf")),
        ("mag emag fid oid", Hints("ALeRCE", "ztf", kind="difference", numbers="ztf")),
        ("ujy dujy", Hints("ATLAS forced photometry", "atlas", unit="uJy", kind="difference")),
        ("hjd fwhm limit mag", Hints("ASAS-SN", "asas-sn", unit="mJy")),
        ("jd flux mag limit fwhm", Hints("ASAS-SN", "asas-sn", unit="mJy")),
        ("masterid mag magerr blend", Hints("Catalina Surveys", band="C", kind="total", mag_system="Vega")),
        ("averagemag", Hints("Gaia alerts", "gaia", band="G", kind="total", mag_system="Vega")),
        (
            "transitid band time mag flux",
            Hints("Gaia epoch photometry", "gaia", kind="total", mag_system="Vega", time_offset=GAIA_EPOCH_MJD),
        ),
        ("magnitude uncertainty observercode", Hints("AAVSO", kind="total", mag_system="mixed")),
        ("hjd mag0 mer0", Hints("ASAS-3", band="V", kind="total", mag_system="Vega")),
        ("objid obstime filterid psfflux", Hints("Pan-STARRS1 detections", unit="Jy", kind="total", numbers="ps1")),
        ("objectid mjd passband flux fluxerr", Hints("PLAsTiCC", unit="FLUXCAL", kind="difference", numbers="lsst")),
        ("fluxcal fluxcalerr", Hints("SNANA", unit="FLUXCAL", kind="difference")),
        ("psfdiffflux", Hints("Rubin forced photometry", "lsst", unit="nJy", kind="difference")),
        ("midpointmjdtai psfflux", Hints("Rubin", "lsst", unit="nJy", kind="difference")),
        ("midpointtai psflux", Hints("Rubin", "lsst", unit="nJy", kind="difference")),
        ("mag5sig ujy", Hints("ATLAS forced photometry", "atlas", unit="uJy", kind="difference")),
        ("mag magerr 3sigmaglim", Hints("Swift UVOT", "swift", kind="difference", mag_system="Vega")),
        ("magnitude emagnitude upperlimit", Hints("Open Supernova Catalog", kind="difference", mag_system="mixed")),
    )
)
_MALLORN: Final = ("object_id", "Time (MJD)", "Flux", "Flux_err", "Filter")


class BandColumns(NamedTuple):
    """Columns of one filter in a table that has a set of columns for each."""

    filter_name: str
    columns: Mapping[str, str]


@dataclass(slots=True)
class Layout:
    """Meaning of a table's columns.

    Attributes
    ----------
    columns : column of each role.
    wide : columns of each filter, where the table has a set for each; they replace the same roles of ``columns``.
    nested : whether a row holds all points of an object, or of an object in one filter, as lists.
    filters : meaning of the names in the column of filters; :meth:`filter` adds to it.
    scale : nJy of one unit of flux; of a filter in ``scales`` that one instead.
    sentinels : whether magnitudes of 99 and the like, and negative ones, are missing values.
    """

    columns: dict[str, str] = field(default_factory=dict)
    wide: tuple[BandColumns, ...] = ()
    nested: bool = False
    band: str = ""
    filters: dict[str, str | None] = field(default_factory=dict)
    numbering: Mapping[str, str] = field(default_factory=dict)
    uppercase: bool = False
    time_format: str = "mjd"
    time_offset: float = 0.0
    scale: float = 1.0
    scales: dict[str, float] = field(default_factory=dict)
    flux_kind: str = ""
    mag_system: str = "AB"
    survey: str = ""
    signed: bool = False
    bad_flags: dict[str, int] = field(default_factory=dict)
    minimum: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    guesses: list[Guess] = field(default_factory=list)

    def names(self) -> tuple[str, ...]:
        """Return every column that is read."""
        wide = [name for band in self.wide for name in band.columns.values()]
        checks = [*self.bad_flags, *self.minimum]
        return tuple(dict.fromkeys([*self.columns.values(), *wide, *checks, *self.metadata.values()]))

    def filter(self, name: str) -> str | None:
        """Return the filter of a name: :data:`NO_FILTER` to leave its rows out, None where it is unknown."""
        if name not in self.filters:
            self.filters[name] = self._filter(name)
        return self.filters[name]

    def _filter(self, name: str) -> str | None:
        if name in self.numbering:
            return self.numbering[name]
        if self.uppercase and name in vocabulary.UPPERCASE_SLOAN:
            name = name.lower()
        return known_filter(name)


def described_filter(meaning: str) -> str:
    """Return the filter that an option names: itself, or the band nearest to its wavelength. Raises TableError."""
    if not meaning or meaning in NAMES:
        return FILTERS[NAMES[meaning]] if meaning else NO_FILTER
    try:
        return nearest_band(float(meaning.partition("/")[0]))
    except ValueError as error:
        raise TableError(f"filter {meaning!r}: {error}") from None


def guess_layout(
    header: Sequence[str], units: Mapping[str, str], sample: Batch, options: TableOptions, name: str = ""
) -> Layout:
    """Decide what a table's columns mean.

    Parameters
    ----------
    header : names of the columns. units : those that the table states, by column.
    sample : all columns of the first rows.
    name : of the file.

    Raises
    ------
    TableQuestion
        When two readings are possible, or a column cannot be found.
    TableError
        When an option names a column that does not exist.
    """
    return _Guesser(header, units, sample, options, name).layout()


class _Guesser:
    def __init__(
        self, header: Sequence[str], units: Mapping[str, str], sample: Batch, options: TableOptions, name: str
    ) -> None:
        self.options = options
        self.name = name
        self.reference_mag = ""
        self.units = units
        self.sample = sample
        self.header = [name for name in header if name in sample]
        self.keys: dict[str, set[str]] = {name: {plain(name), plain(last_part(name))} for name in self.header}
        self.result = Layout()
        self.positional = all(re.fullmatch(r"(?i)(column|col|field|var)[ _]?\d+", name) for name in self.header)
        for role, name in options.columns.items():
            if name and name not in sample:
                raise TableError(f"columns.{role} is {name!r}, which the table does not have; it has {self._listed()}")
        for meaning, name in (options.metadata or {}).items():
            if name not in sample:
                raise TableError(f"metadata[{meaning!r}] is {name!r}; the table has {self._listed()}")

    def _listed(self) -> str:
        shown = ", ".join(self.header[:40])
        return shown + (" ..." if len(self.header) > 40 else "")

    def layout(self) -> Layout:
        result = self.result
        self._find_points()
        hints = self._hints()
        result.survey = self.options.survey or hints.survey
        if hints.name:
            self._guess("", "", f"the columns are those of {hints.name}")
        self._find_time()
        self._find_band(hints)
        if not result.wide:
            self._find_brightness(hints)
        self._find_object_id()
        self._find_rest()
        self._decide_time(hints)
        self._decide_filters(hints)
        self._decide_units(hints)
        self._decide_kind(hints)
        self._find_metadata()
        self._check_columns()
        return result

    def _check_columns(self) -> None:
        """Raise TableError where the columns do not fit each other or do not hold numbers."""
        result = self.result
        for role in ("flux", "flux_err", "mag", "mag_err"):
            name = result.columns.get(role)
            if name is None:
                continue
            if isinstance(self.sample[name], Lists) != self.nested:
                kind = "is not a column of lists" if self.nested else "is a column of lists"
                raise TableError(f"columns do not fit each other: {name!r} {kind}, unlike the times")
            if self.options.columns.get(role) and not self._is_numeric(name) and not self._is_mag_column(name):
                raise TableError(f"column {name!r} does not hold numbers")
        name = result.columns.get("object_id", "")
        if name and (values := self._values(name)).dtype.kind == "f":
            present = values[np.isfinite(values)]
            if not (np.all(present % 1 == 0) and np.all(np.abs(present) < 2**53)):
                raise TableError(f"column {name!r} holds floating-point numbers instead of a name or an integer")

    # Finding columns

    def _guess(self, option: str, value: object, text: str) -> None:
        self.result.guesses.append(Guess(option, str(value), text))

    def _find_points(self) -> None:
        """Decide whether rows hold lists, and which lists belong together."""
        lists = [name for name in self.header if isinstance(self.sample[name], Lists)]
        chosen = self.options.columns.get("time")
        times = (
            [chosen]
            if chosen and chosen in lists
            else [name for name in lists if not chosen and self.keys[name] & _TIME_KEYS and self._holds_times(name)]
        )
        if not times:
            times = [name for name in lists if any(last_part(name).startswith(f"{key}_") for key in ("mjd", "time"))]
        self.nested = self.result.nested = bool(times)
        if not times:
            self.points = [name for name in self.header if name not in lists]
            return
        groups: dict[tuple[str, bytes], list[str]] = {}
        for name in lists:
            column = self.sample[name]
            assert isinstance(column, Lists)
            groups.setdefault((name.rpartition(".")[0], column.offsets.tobytes()), []).append(name)
        usable = [group for group in groups.values() if any(name in times for name in group)]
        usable.sort(key=lambda group: (not any("forced" in name.lower() for name in group), -len(group)))
        if len(usable) > 1 and not chosen and not self._is_wide(times):
            self._guess("columns.time", usable[0][0], f"points are in the lists of {_prefix(usable[0][0])!r}")
        self.points = [name for group in usable for name in group] if self._is_wide(times) else usable[0]

    def _is_wide(self, times: Sequence[str]) -> bool:
        """Return True where each filter has a list of times of its own."""
        return len(times) > 1 and all(_band_in(name) for name in times)

    def _values(self, name: str) -> Array:
        column = self.sample[name]
        values = column.values if isinstance(column, Lists) else column
        return values[:SAMPLE_POINTS]

    def _numbers(self, name: str) -> Float64:
        return numbers(self._values(name))[0]

    def _finite(self, name: str) -> Float64:
        values = self._numbers(name)
        return values[np.isfinite(values)]

    def _is_numeric(self, name: str) -> bool:
        values = self._values(name)
        if not is_text(values):
            return values.dtype.kind in "fiu"
        found, bad = numbers(values)
        present = np.isfinite(found)
        return bool(present.any() and bad.sum() <= 0.2 * present.sum())

    def _holds_times(self, name: str) -> bool:
        values = self._values(name)
        if values.dtype.kind == "M":
            return True
        if self._is_numeric(name):
            return bool(self._finite(name).size)
        found, bad = iso_times(values[:256])
        return bool(np.isfinite(found).any() and bad.sum() < np.isfinite(found).sum())

    def _candidates(
        self, synonyms: Sequence[str], pool: Iterable[str], test: Callable[[str], bool] | None = None
    ) -> list[str]:
        """Return the columns with one of the names, in the order of the names."""
        ranks = {synonym: rank for rank, synonym in enumerate(synonyms)}
        ranked = []
        for place, name in enumerate(pool):
            rank = min((ranks[key] for key in self.keys[name] if key in ranks), default=None)
            if rank is not None and name not in self._taken() and (test is None or test(name)):
                ranked.append((rank, place, name))
        return [name for _, _, name in sorted(ranked)]

    def _taken(self) -> set[str]:
        wide = {name for band in self.result.wide for name in band.columns.values()}
        return set(self.result.columns.values()) | wide | {name for name in self.options.columns.values() if name}

    def _take(self, role: str, name: str, *, mention: bool = True) -> None:
        self.result.columns[role] = name
        if mention and self.options.columns.get(role) != name and plain(name) != role.replace("_", ""):
            self._guess(f"columns.{role}", name, f"{_ROLE_TEXTS.get(role, role)} is column {name!r}")

    def _chosen(self, role: str) -> str | None:
        """Return the column that the caller chose, empty for none, or None where it is to be found."""
        return self.options.columns.get(role)

    def _find(
        self, role: str, synonyms: Sequence[str], pool: Iterable[str], test: Callable[[str], bool] | None = None
    ) -> str | None:
        chosen = self._chosen(role)
        if chosen is not None:
            if chosen:
                self.result.columns[role] = chosen
            return chosen or None
        found = self._candidates(synonyms, pool, test)
        if found:
            self._take(role, found[0])
            return found[0]
        return None

    def _hints(self) -> Hints:
        if tuple(self.header) == _MALLORN:
            return Hints("MALLORN", unit="uJy", kind="difference")
        keys = {key for name in self.header for key in self.keys[name]}
        for names, hints in _KNOWN_TABLES:
            if names <= keys:
                return hints
        has_filters = any(self._all_filters(name) for name in self.points)
        if (
            self.positional
            and not has_filters
            and re.search(r"ogle|phot\.dat", f"{self.name} {self.options.survey}", re.IGNORECASE)
        ):
            return Hints("OGLE", "ogle", band="I", kind="total", mag_system="Vega")
        return Hints("")

    def _find_time(self) -> None:
        if self._find("time", vocabulary.TIME, self.points, self._holds_times):
            return
        likely = [name for name in self.points if self._is_numeric(name) and _looks_like_date(self._finite(name))]
        if not likely:
            likely = [name for name in self.points if not self._is_numeric(name) and self._holds_times(name)]
        if not likely and self.positional:
            likely = [name for name in self.points if self._is_numeric(name)][:1]
        if len(likely) == 1 or (likely and self.positional):
            self._take("time", likely[0])
            return
        if not likely and self._wide_times():
            return
        raise TableQuestion(
            f"Which column holds the time of the observations? The table has {self._listed()}.",
            "columns.time",
            [Choice(name, "looks like dates") for name in likely],
        )

    def _wide_times(self) -> bool:
        return len({_band_in(name) for name in self.points if self._role_of_wide(name) == "time"}) > 1

    def _find_band(self, hints: Hints) -> None:
        if self.options.band:
            self.result.band = described_filter(self.options.band)
            return
        pool = (
            [*self.points, *(name for name in self.header if name not in self.points)] if self.nested else self.points
        )
        if self._find("band", vocabulary.BAND, pool, self._holds_filters):
            return
        by_value = [name for name in pool if name not in self._taken() and self._all_filters(name)]
        if len(by_value) == 1:
            self._take("band", by_value[0])
            return
        if self._find_wide():
            return
        unknown = self._candidates(vocabulary.BAND[:12], pool)
        if unknown and self._chosen("band") is None:
            self._take("band", unknown[0])
            return
        if hints.band:
            self.result.band = hints.band
            self._guess("band", hints.band, f"all points are in filter {hints.band}")
            return
        raise TableQuestion(
            f"Which filter are the observations in? The table has {self._listed()}.",
            "band",
            [Choice(name, "") for name in FILTERS],
        )

    def _names_in(self, name: str) -> list[str]:
        return sorted({text for text in texts(self._values(name)) if text})

    def _holds_filters(self, name: str) -> bool:
        values = self._values(name)
        if values.dtype.kind == "f" and not np.all(values[np.isfinite(values)] % 1 == 0):
            return False
        found = self._names_in(name)
        if not found or len(found) > 200:
            return False
        given = self.options.filters
        known = [text for text in found if text in given or known_filter(text) or re.fullmatch(r"[0-9]{1,2}", text)]
        return bool(known)

    def _all_filters(self, name: str) -> bool:
        found = self._names_in(name) if is_text(self._values(name)) else []
        return (
            bool(found)
            and len(found) < 60
            and all(text in self.options.filters or known_filter(text) for text in found)
        )

    def _role_of_wide(self, name: str) -> str:
        """Return the role of a column of one filter (``mag_g``, ``g_err``), empty where its name is none of those."""
        split = _band_in(name)
        if split is None:
            return ""
        return split[1]

    def _find_wide(self) -> bool:
        """Look for a set of columns for each filter."""
        bands: dict[str, dict[str, str]] = {}
        for name in self.points:
            if name in self._taken() or (split := _band_in(name)) is None:
                continue
            band, role = split
            if role in ("time", "flux", "flux_err", "mag", "mag_err", "limit", "err", "value") and self._is_numeric(
                name
            ):
                bands.setdefault(band, {}).setdefault(role, name)
        complete: list[BandColumns] = []
        for band, columns in bands.items():
            if "value" in columns:  # a column that has the name of the filter alone
                kind = "mag" if self._looks_like_mags(columns["value"]) else "flux"
                columns.setdefault(kind, columns.pop("value"))
            if "err" in columns:
                columns.setdefault("flux_err" if "flux" in columns else "mag_err", columns.pop("err"))
            has_error = self.options.mag_err is not None or "mag_err" in columns
            if ("flux" in columns and "flux_err" in columns) or ("mag" in columns and has_error):
                filter_name = self.options.filters.get(band, band)
                complete.append(BandColumns(described_filter(filter_name) or band, columns))
        if not complete or ("time" not in self.result.columns and any("time" not in band.columns for band in complete)):
            return False
        self.result.wide = tuple(complete)
        listed = ", ".join(f"{band.filter_name}: {' '.join(band.columns.values())}" for band in complete)
        self._guess("", "", f"the table has columns for each filter ({listed})")
        return True

    def _looks_like_mags(self, name: str) -> bool:
        values = self._finite(name)
        values = values[(values < 90) & (values > -90)]
        return bool(values.size and (values > 3).all() and (values < 32).all() and np.ptp(values) < 16)

    def _error_of(self, role: str, name: str, generic: Sequence[str], pool: Sequence[str]) -> str | None:
        """Return the column of the errors of another one."""
        chosen = self._chosen(role)
        if chosen is not None:
            return chosen or None
        bases = self.keys[name]
        stripped = {re.sub(r"(njy|ujy|mjy|jy|ab|vega)$", "", base) for base in bases}
        unit = {base[len(short) :] for base in bases for short in stripped if base.startswith(short)}
        forms: list[str] = []
        for base in [*bases, *sorted(stripped - bases)]:
            if not base:
                continue
            for suffix in (
                "err",
                "error",
                "errs",
                "errors",
                "unc",
                "uncertainty",
                "uncert",
                "sigma",
                "std",
                "stderr",
                "e",
                "er",
            ):
                forms.append(base + suffix)
                forms += [base + suffix + ending for ending in sorted(unit) if ending]
            for before in ("e", "d", "err", "error", "sigma", "sig", "unc", "delta", "s", "uncertainty", "merr"):
                forms.append(before + base)
        forms += [base.replace("mag", "sigma") for base in bases if "mag" in base]
        forms += [base.replace("flux", "fluxerr") for base in bases] + [base.replace("flux", "eflux") for base in bases]
        forms += [base.replace("mag", "magerr") for base in bases] + [base.replace("mag", "mer") for base in bases]
        forms = [form for form in forms if form not in bases]
        found = self._candidates([*dict.fromkeys([*forms, *generic])], pool, self._is_error_column(name))
        return found[0] if found else None

    def _is_error_column(self, name: str) -> Callable[[str], bool]:
        def test(candidate: str) -> bool:
            return candidate != name and self._is_numeric(candidate)

        return test

    def _find_brightness(self, hints: Hints) -> None:
        pool = self.points
        flux = self._chosen("flux")
        mag = self._chosen("mag")
        fluxes = (
            [flux] if flux else [] if flux == "" or mag else self._candidates(vocabulary.FLUX, pool, self._is_numeric)
        )
        mags = (
            [mag] if mag else [] if mag == "" or flux else self._candidates(vocabulary.MAG, pool, self._is_mag_column)
        )
        mags = [name for name in mags if not self._is_flux_unit(name)]
        apertures = [name for name in pool if name in mags and re.fullmatch(r"mag[0-9]", plain(name))]
        if mags and mags[0] in apertures:  # ASAS writes the best one first
            mags = apertures
        if not fluxes and not mags and (by_unit := self._mag_by_unit()):
            mags = by_unit
        if fluxes and self._is_mag_by_unit(fluxes[0]):
            mags, fluxes = [fluxes[0], *mags], fluxes[1:]
        if mags and not fluxes and self._has_flux_units():
            mags, fluxes = [], mags
        if not fluxes and not mags:
            mags, fluxes = self._brightness_by_value()
        pairs: dict[str, tuple[str, str | None]] = {}
        for name in mags:
            error = self._error_of("mag_err", name, (*vocabulary.MAG_ERR, *vocabulary.ANY_ERR), pool)
            if "mag" not in pairs or (error and not pairs["mag"][1]):
                pairs["mag"] = (name, error)
        taken = set(pairs["mag"]) if "mag" in pairs else set()
        free = [name for name in pool if name not in taken]
        for name in fluxes:
            generic = (*vocabulary.FLUX_ERR, *(vocabulary.ANY_ERR if "mag" not in pairs or not pairs["mag"][1] else ()))
            error = self._error_of("flux_err", name, generic, free)
            if "flux" not in pairs or (error and not pairs["flux"][1]):
                pairs["flux"] = (name, error)
        self.reference_mag = pairs["mag"][0] if "mag" in pairs else ""
        self._choose_brightness(pairs)

    def _is_mag_column(self, name: str) -> bool:
        values = self._values(name)
        if is_text(values) and not self._is_numeric(name):
            limits = [text.lstrip("<> ") for text in texts(values) if text.startswith(("<", ">"))]
            return bool(limits)
        return self._is_numeric(name)

    def _is_flux_unit(self, name: str) -> bool:
        return unit_of(self.units.get(name, "")) in NJY_PER_UNIT

    def _is_mag_by_unit(self, name: str) -> bool:
        if "mag" in self.units.get(name, "").lower() and "maggy" not in self.units.get(name, "").lower():
            return True
        return self.options.flux_unit == "mag" or any(
            all("mag" in text.lower() for text in self._names_in(column)) and bool(self._names_in(column))
            for column in self._candidates(vocabulary.FLUX_UNIT, self.header)
        )

    def _has_flux_units(self) -> bool:
        """Return True if a column of units has units of flux only."""
        columns = self._candidates(vocabulary.FLUX_UNIT, self.header)
        return bool(columns) and all(unit_of(text) for text in self._names_in(columns[0]))

    def _mag_by_unit(self) -> list[str]:
        named = [name for name in self.points if self.units.get(name, "").lower() in ("mag", "abmag", "mag(ab)")]
        return [name for name in named if name not in self._taken() and self._looks_like_mags(name)]

    def _brightness_by_value(self) -> tuple[list[str], list[str]]:
        """Look for a column that can only be the brightness, by its values or its place."""
        free = [name for name in self.points if name not in self._taken() and self._is_numeric(name)]
        if self.positional and "time" in self.result.columns:
            after = free
            if after and self._looks_like_mags(after[0]):
                return after[:1], []
            return [], after[:1]
        mags = [
            name
            for name in free
            if self._looks_like_mags(name) and np.ptp(self._finite(name)) > 0 and "mag" in plain(name)
        ]
        fluxes = [name for name in free if "flux" in plain(name) or "jy" in plain(name)]
        mags = [name for name in mags if not _is_error_name(plain(name))]
        fluxes = [name for name in fluxes if not _is_error_name(plain(name))]
        if mags or fluxes:
            return mags, fluxes
        bright = [name for name in free if self._looks_like_mags(name) and np.ptp(self._finite(name)) > 0]
        if len(bright) == 1:
            return bright, []
        raise TableQuestion(
            f"Which column holds the brightness? The table has {self._listed()}.",
            "columns.mag" if bright else "columns.flux",
            [Choice(name, "looks like magnitudes") for name in bright],
        )

    def _choose_brightness(self, pairs: Mapping[str, tuple[str, str | None]]) -> None:
        if not pairs:
            raise TableQuestion(f"Which column holds the brightness? The table has {self._listed()}.", "columns.mag")
        complete = {kind: pair for kind, pair in pairs.items() if pair[1]}
        if self.positional and not complete and pairs:
            kind, (name, _) = next(iter(pairs.items()))
            free = [other for other in self.points if other not in self._taken() | {name} and self._is_numeric(other)]
            if free:
                complete = {kind: (name, free[0])}
        if not complete and "mag" in pairs and self.options.mag_err is not None:
            complete = {"mag": pairs["mag"]}
        snr = [] if self._chosen("snr") == "" else self._candidates(vocabulary.SNR, self.points, self._is_numeric)
        if not complete and pairs and snr:
            self._take("snr", snr[0])
            complete = dict(pairs)
        if not complete and "mag" in pairs and self._chosen("mag_err") is None:
            errors = [name for name in self.points if self._looks_like_errors(name, pairs["mag"][0])]
            if len(errors) == 1:
                complete = {"mag": (pairs["mag"][0], errors[0])}
        if not complete:
            kind, (name, _) = next(iter(pairs.items()))
            option = "columns.mag_err" if kind == "mag" else "columns.flux_err"
            hint = " If there is none, set mag_err to an error in mag for all." if kind == "mag" else ""
            raise TableQuestion(
                f"Which column holds the errors of {name!r}? The table has {self._listed()}.{hint}", option
            )
        # Fluxes keep what magnitudes lose (negative values), but only with a known unit. Both are read where they are
        # complete, so that one can fill the gaps of the other.
        for kind, (name, error) in complete.items():
            self._take(kind, name)
            if error:
                self._take(f"{kind}_err", error)
        if "flux" in pairs and "flux" not in complete and "mag" in complete:
            self._guess("columns.flux", "", f"column {pairs['flux'][0]!r} is not used, because it has no errors")

    def _looks_like_errors(self, name: str, mag: str) -> bool:
        """Return True for small positive numbers of several values, as errors of magnitudes are."""
        if name == mag or name in self._taken() or not self._is_numeric(name):
            return False
        values = self._finite(name)
        values = values[values < 9]
        return bool(len(values) > 2 and (values > 0).all() and np.median(values) < 0.7 and len(np.unique(values)) > 2)

    def _find_object_id(self) -> None:
        if self.options.object_id:
            return
        scalars = [name for name in self.header if not isinstance(self.sample[name], Lists)]
        if self._find("object_id", vocabulary.OBJECT_ID, scalars, self._holds_ids):
            return
        named = (
            [name for name in scalars if self._could_name_objects(name)] if self._chosen("object_id") is None else []
        )
        if len(named) == 1:
            self._take("object_id", named[0])
            return
        if self._chosen("object_id") is None and not self.nested:
            self._ask_for_objects(scalars)
        if not self.nested:
            self._guess("object_id", "", "the table holds one object, because it has no column of object names")

    def _ask_for_objects(self, scalars: Sequence[str]) -> None:
        """Ask where a column of text may name several objects, which would be mixed otherwise."""
        for name in scalars:
            if name in self._taken() or vocabulary.NOT_OBJECTS.search(plain(name)) or self._is_numeric(name):
                continue
            names = [text for text in texts(self._values(name)) if text]
            if 1 < len(set(names)) <= len(names) / 3 and len(names) > 0.9 * len(self._values(name)):
                raise TableQuestion(
                    f"Does column {name!r} name the objects? Otherwise the table is one object.",
                    "columns.object_id",
                    [Choice(name, "the objects"), Choice("", "the table is one object")],
                )

    def _could_name_objects(self, name: str) -> bool:
        """Return True for text that repeats, in a column with a name such as ``source_name`` or ``sn_id``."""
        fits = re.search(r"(name|id|object|obj|source|src|target|star|sn|transient)$", plain(last_part(name)))
        if not fits or name in self._taken() or re.search(r"(inst|tel|obs|filter|band|exp|image|visit)", plain(name)):
            return False
        return self._holds_ids(name)

    def _holds_ids(self, name: str) -> bool:
        values = self._values(name)
        if values.dtype.kind == "f" and not np.all(values[np.isfinite(values)] % 1 == 0):
            return False
        names = texts(values)
        present = [text for text in names if text]
        if not present:
            return False
        weak = not self.keys[name] & {"objectid", "diaobjectid", "snid", "objid", "oid", "gaiasourceid", "event"}
        if not self.nested and weak and len(present) > 3 and len(set(present)) == len(present):
            return False  # a number of the row
        return "" not in names or len(present) > 0.5 * len(names)

    def _find_rest(self) -> None:
        points = self.points
        self._find("limit", vocabulary.LIMIT, points, self._looks_like_limit)
        self._find("upper_limit", vocabulary.UPPER_LIMIT, points)
        self._find("detected", (*vocabulary.DETECTED, "photflag"), points)
        self._find("sign", vocabulary.SIGN, points)
        if "flux" in self.result.columns or any("flux" in band.columns for band in self.result.wide):
            self._find("zero_point", vocabulary.ZERO_POINT, [*points, *self.header], self._looks_like_zero_point)
        self._find("flux_unit", vocabulary.FLUX_UNIT, [*points, *self.header])
        self._find("mag_system", vocabulary.MAG_SYSTEM, [*points, *self.header], self._names_systems)
        self._find_checks()
        if label := self._chosen("label"):
            self.result.columns["label"] = label
        for role in ("redshift", "parent"):
            if name := self._chosen(role):
                self.result.columns[role] = name

    def _find_checks(self) -> None:
        """Find the columns of flags and qualities."""
        given = self.options.bad_flags
        for name, bits in (vocabulary.BAD_FLAGS if given is None else given).items():
            found = [column for column in self.points if name in (column, plain(last_part(column)))]
            if given is not None and not found:
                raise TableError(f"bad_flags names {name!r}, which the table does not have; it has {self._listed()}")
            if found and self._is_numeric(found[0]):
                self.result.bad_flags[found[0]] = bits
                if given is None:
                    text = f"rows are left out where the survey flags them as bad in {found[0]!r}"
                    self._guess("bad_flags", f"{found[0]}={bits}", text)
        for name, least in self.options.minimum.items():
            if name not in self.sample:
                raise TableError(f"minimum names {name!r}, which the table does not have; it has {self._listed()}")
            self.result.minimum[name] = least

    def _looks_like_limit(self, name: str) -> bool:
        return self._is_numeric(name) and self._looks_like_mags(name)

    def _looks_like_zero_point(self, name: str) -> bool:
        values = self._finite(name) if self._is_numeric(name) else np.zeros(0)
        return bool(values.size and (values > 0).all() and (values < 50).all())

    def _names_systems(self, name: str) -> bool:
        found = {text.lower() for text in self._names_in(name)}
        return bool(found) and any("ab" in text or "vega" in text for text in found)

    # Deciding what values mean

    def _decide_time(self, hints: Hints) -> None:
        result, options = self.result, self.options
        names = (
            [result.columns["time"]]
            if "time" in result.columns
            else [band.columns["time"] for band in result.wide if "time" in band.columns]
        )
        name = names[0]
        if options.time_format:
            result.time_format = options.time_format
            result.time_offset = options.time_offset or 0.0
            return
        if options.time_offset is not None:
            result.time_offset = options.time_offset
            return
        values = self._values(name)
        if values.dtype.kind == "M" or not self._is_numeric(name):
            result.time_format = "iso"
            self._guess("time_format", "iso", f"times in {name!r} are dates")
            return
        finite = self._finite(name)
        middle = float(np.median(finite)) if finite.size else 0.0
        key = plain(last_part(name)) + plain(self.units.get(name, ""))
        minus = re.search(r"(24\d{5})(5?)", key)  # plain() drops the point of 2400000.5
        zero = 0.0 if minus is None else float(minus[1]) + (0.5 if minus[2] else 0.0)
        if hints.time_offset is not None and 0 < middle < 10_000:
            result.time_offset = hints.time_offset
            self._guess("time_offset", hints.time_offset, f"times in {name!r} count from MJD {hints.time_offset:g}")
        elif 2.3e6 < middle < 2.6e6:
            result.time_format = "jd"
            self._guess("time_format", "jd", f"times in {name!r} are Julian dates")
        elif 1e8 < middle < 1e10:
            result.time_format = "unix"
            self._guess("time_format", "unix", f"times in {name!r} are seconds since 1970")
        elif 1e11 < middle < 1e13:
            raise TableQuestion(f"Times in {name!r} are neither MJD, JD, dates nor seconds.", "columns.time")
        elif 1850 < middle < 2150 and ("year" in key or key in ("epoch", "date")):
            result.time_format = "year"
            self._guess("time_format", "year", f"times in {name!r} are decimal years")
        elif 19_000_101 <= middle <= 21_001_231:
            result.time_format = "iso"
            self._guess("time_format", "iso", f"times in {name!r} are dates as YYYYMMDD")
        elif -2_000 <= middle < 15_000 and minus:
            self._offset(name, zero - JD_MINUS_MJD)
        elif 15_000 <= middle < 100_000 and (zero == 2_400_000 or key == "rjd") and "mjd" not in key:
            self._offset(name, -0.5)
        elif 0 <= middle < 15_000 and "jd" in key and "mjd" not in key:
            self._offset(name, {"btjd": 57_000.0 - 0.5, "bkjd": 54_833.0 - 0.5}.get(key, 50_000.0 - 0.5))
        elif middle < 15_000 and self.positional:
            self._offset(name, 50_000.0 - 0.5)
        elif middle < 15_000 and not key.startswith("mjd"):
            self._guess("time_offset", "0", f"times in {name!r} are days from an unknown date")

    def _offset(self, name: str, offset: float) -> None:
        self.result.time_offset = offset
        zero = offset + JD_MINUS_MJD
        self._guess("time_offset", f"{offset:g}", f"times in {name!r} are JD - {zero:.1f}")

    def _decide_filters(self, hints: Hints) -> None:
        result, options = self.result, self.options
        for name, meaning in options.filters.items():
            result.filters[name] = described_filter(meaning)
        if "band" not in result.columns:
            return
        column = result.columns["band"]
        names = self._names_in(column)
        unset = [name for name in names if name not in options.filters]
        if any(re.fullmatch(r"[0-9]+", name) for name in unset):
            self._decide_numbers(column, unset, hints)
        capital = vocabulary.uppercase_sloan(unset)
        if result.survey in ("ztf", "lsst"):
            capital = bool(unset) and set(unset) <= vocabulary.UPPERCASE_SLOAN
        if capital is None:
            raise TableQuestion(
                f"Do the capital letters {', '.join(unset)} in {column!r} mean the filters g r i of a survey, or G of "
                "Gaia and R I of Cousins?",
                "filters",
                [
                    Choice(",".join(f"{name}={name.lower()}" for name in unset), "filters of a survey"),
                    Choice(",".join(f"{name}={name}" for name in unset), "Gaia and Cousins"),
                ],
            )
        result.uppercase = capital
        known = {name: found for name in names if (found := result.filter(name))}
        unknown = [name for name in names if result.filter(name) is None]
        if names and not known and not any(result.filter(name) == NO_FILTER for name in names):
            raise TableQuestion(
                f"Which filters are {', '.join(map(repr, unknown[:8]))} in {column!r}?",
                "filters",
                [Choice(f"{unknown[0]}=r", "a filter by its name"), Choice(f"{unknown[0]}=620", "a wavelength in nm")],
            )
        renamed = {name: found for name, found in known.items() if name != found and name not in options.filters}
        if renamed:
            listed = ", ".join(f"{name} is {found}" for name, found in renamed.items())
            self._guess("filters", ",".join(f"{name}={found}" for name, found in renamed.items()), f"filters: {listed}")
        if unknown:
            listed = ", ".join(unknown[:12])
            self._guess("filters", "", f"rows in filters that are not known are left out: {listed}")

    def _decide_numbers(self, column: str, names: Sequence[str], hints: Hints) -> None:
        scheme = self.options.filter_numbers or hints.numbers
        found = {int(name) for name in names if re.fullmatch(r"[0-9]+", name)}
        key = plain(last_part(column))
        if not scheme:
            if self.result.survey == "ztf" or (key in ("fid", "filterid") and found <= {1, 2, 3}):
                scheme = "ztf"
            elif (0 in found and found <= set(range(6))) or key in ("passband", "passbandid", "lsstband"):
                scheme = "lsst"
            elif found & {4, 5} and found <= set(range(1, 6)):
                scheme = "ps1"
        if not scheme:
            raise TableQuestion(
                f"Which filters are the numbers {', '.join(map(str, sorted(found)))} in {column!r}?",
                "filter_numbers",
                [
                    Choice("ztf", "1 g, 2 r, 3 i"),
                    Choice("lsst", "0 u, 1 g, 2 r, 3 i, 4 z, 5 y"),
                    Choice("ps1", "1 g, 2 r, 3 i, 4 z, 5 y"),
                ],
            )
        self.result.numbering = vocabulary.NUMBERINGS[scheme]
        if not self.options.filter_numbers:
            listed = ", ".join(f"{number} {name}" for number, name in self.result.numbering.items())
            self._guess("filter_numbers", scheme, f"numbers in {column!r} are filters of {scheme} ({listed})")

    def _decide_units(self, hints: Hints) -> None:
        result, options = self.result, self.options
        self._decide_mag_system(hints)
        fluxes = (
            [result.columns["flux"]]
            if "flux" in result.columns
            else [band.columns["flux"] for band in result.wide if "flux" in band.columns]
        )
        if not fluxes or "zero_point" in result.columns:
            return
        flux = fluxes[0]
        if options.zero_point is not None:
            result.scale = float(10 ** (-0.4 * (options.zero_point - NJY_ZERO_POINT)))
            return
        if options.flux_unit:
            if options.flux_unit != "mag":
                result.scale = NJY_PER_UNIT[options.flux_unit]
            return
        if "flux_unit" in result.columns:
            found = {unit_of(text) for text in self._names_in(result.columns["flux_unit"])}
            if found <= set(NJY_PER_UNIT) and found:
                return
            del result.columns["flux_unit"]
        unit = unit_of(self.units.get(flux, "")) or _unit_in_name(flux) or hints.unit
        if unit:
            result.scale = NJY_PER_UNIT[unit]  # type: ignore[index]  # one of the units, by the functions above
            if flux.lower() != "fluxcal":
                self._guess("flux_unit", unit, f"fluxes in {flux!r} are in {unit}")
            return
        if self.reference_mag and self._scale_from_magnitudes(flux, self.reference_mag):
            return
        if "mag" in result.columns and "mag_err" in result.columns:
            del result.columns["flux"]
            result.columns.pop("flux_err", None)
            self._guess("columns.flux", "", f"column {flux!r} is not used, because its unit is not known")
            return
        self._unit_by_depth(flux)

    def _scale_from_magnitudes(self, flux: str, mag: str) -> bool:
        """Find the zero point of the flux from magnitudes in the same rows, by filter."""
        values, mags = self._numbers(flux), self._numbers(mag)
        if len(values) != len(mags):
            return False
        good = (values > 0) & (mags > 3) & (mags < 32)
        if good.sum() < 3:
            return False
        with np.errstate(divide="ignore", invalid="ignore"):
            zero_points = mags + 2.5 * np.log10(values)
        bands = self._band_values(len(values))
        found = {}
        for name in np.unique(bands[good]):
            rows = good & (bands == name)
            if rows.sum() < 3:
                continue
            middle = float(np.median(zero_points[rows]))
            if np.median(np.abs(zero_points[rows] - middle)) > 0.05:
                return False
            found[str(name)] = middle
        if not found:
            return False
        # The magnitudes may be Vega's; the correction by filter is applied to fluxes and magnitudes alike.
        self.result.scales = {name: float(10 ** (-0.4 * (zp - NJY_ZERO_POINT))) for name, zp in found.items()}
        self.result.scale = float(np.median(list(self.result.scales.values())))
        listed = ", ".join(f"{name} {zp:.3f}".strip() for name, zp in found.items())
        self._guess("zero_point", "", f"the zero point of {flux!r} follows from {mag!r}: {listed}")
        return True

    def _band_values(self, count: int) -> Array:
        column = self.result.columns.get("band")
        if column is None or isinstance(self.sample[column], Lists) != self.nested:
            return np.full(count, "", np.object_)
        return np.array([self.result.filter(text) or "" for text in texts(self._values(column))], np.object_)

    def _unit_by_depth(self, flux: str) -> None:
        if plain(last_part(flux)) in vocabulary.COUNTS:
            raise TableQuestion(f"Which AB zero point do the counts in {flux!r} have, in mag?", "zero_point")
        error = self.result.columns.get("flux_err") or next(
            (band.columns["flux_err"] for band in self.result.wide if "flux_err" in band.columns), ""
        )
        errors = np.abs(self._finite(error)) if error else np.zeros(0)
        errors = errors[errors > 0]
        if not errors.size:
            self._guess("flux_unit", "nJy", f"fluxes in {flux!r} are in nJy, the default")
            return
        middle = float(np.median(errors))
        depths = {unit: NJY_ZERO_POINT - 2.5 * np.log10(5 * middle * scale) for unit, scale in NJY_PER_UNIT.items()}
        if USUAL_DEPTH[0] <= depths["nJy"] <= USUAL_DEPTH[1]:
            text = f"fluxes in {flux!r} are in nJy: their errors fit a depth of {depths['nJy']:.1f} mag"
            self._guess("flux_unit", "nJy", text)
            return
        possible = {unit: depth for unit, depth in depths.items() if POSSIBLE_DEPTH[0] <= depth <= POSSIBLE_DEPTH[1]}
        if set(possible) == {"nJy"}:
            self._guess("flux_unit", "nJy", f"fluxes in {flux!r} are in nJy: no other unit fits their errors")
            return
        choices = [Choice(str(unit), f"a depth of {depth:.1f} mag at 5 sigma") for unit, depth in possible.items()]
        if self._looks_like_mags(flux) and middle < 1:
            choices.append(Choice("mag", "they are AB magnitudes"))
        raise TableQuestion(
            f"In which unit are the fluxes in {flux!r}? Their median error is {middle:.3g}.",
            "flux_unit",
            choices or [Choice(str(unit), f"a depth of {depth:.1f} mag at 5 sigma") for unit, depth in depths.items()],
        )

    def _decide_mag_system(self, hints: Hints) -> None:
        result, options = self.result, self.options
        has_mags = "mag" in result.columns or any("mag" in band.columns for band in result.wide)
        if options.mag_system:
            result.mag_system = options.mag_system
            result.columns.pop("mag_system", None)
            return
        if not has_mags or "mag_system" in result.columns:
            result.mag_system = hints.mag_system or "mixed"
            return
        unit = self.units.get(result.columns.get("mag", ""), "").lower()
        name = plain(result.columns.get("mag", ""))
        if "ab" in unit or name.endswith("ab") or name.startswith("abmag"):
            result.mag_system = "AB"
            return
        if "vega" in unit or "vega" in name:
            result.mag_system = "Vega"
            return
        if hints.mag_system:
            result.mag_system = hints.mag_system
            self._guess("mag_system", hints.mag_system, f"magnitudes are {_SYSTEM_TEXTS[hints.mag_system]}")
            return
        result.mag_system = "mixed"
        filters = (
            {band.filter_name for band in result.wide}
            | {result.band}
            | {found for found in result.filters.values() if found}
        )
        vega = sorted(filters & VEGA_BY_CUSTOM)
        if not vega:
            self._guess("mag_system", "AB", "magnitudes are AB")
        else:
            self._guess("mag_system", "mixed", f"magnitudes in {', '.join(vega)} are Vega, those in other filters AB")

    def _decide_kind(self, hints: Hints) -> None:
        result, options = self.result, self.options
        if options.flux_kind:
            result.flux_kind = options.flux_kind
            return
        name = plain(last_part(result.columns.get("flux") or result.columns.get("mag") or ""))
        if name in _TOTAL_NAMES:
            result.flux_kind = "total"
        elif name in _DIFFERENCE_NAMES:
            result.flux_kind = "difference"
        elif hints.kind:
            result.flux_kind = hints.kind
        if result.flux_kind:
            text = _KIND_TEXTS[result.flux_kind]
            self._guess("flux_kind", result.flux_kind, text)

    def _find_metadata(self) -> None:
        """Take the columns that have the names of metadata, where a row or an object has one value."""
        result = self.result
        if self.options.metadata is not None:
            result.metadata = dict(self.options.metadata)
            return
        taken = self._taken()
        for name in self.header:
            known = last_part(name)
            wanted = known if known in KNOWN_COLUMNS else _METADATA_SYNONYMS.get(known.lower(), "")
            if wanted and wanted not in result.metadata and name not in taken and self._is_scalar_number(name):
                result.metadata[wanted] = name
        if found := sorted(result.metadata.values()):
            listed = ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
            self._guess("metadata", "", f"metadata: {listed}")

    def _is_scalar_number(self, name: str) -> bool:
        return not isinstance(self.sample[name], Lists) and self._is_numeric(name)


_TIME_KEYS: Final = frozenset(vocabulary.TIME)
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
_KIND_TEXTS: Final = {
    "difference": "the brightness is that of difference images",
    "total": "the brightness is that of the whole source: the median of each filter is subtracted",
}
VEGA_BY_CUSTOM: Final = frozenset({"U", "B", "V", "R", "I", "G", "BP", "RP", "C"})
"""Filters whose magnitudes are usually published in the Vega system."""
_TOTAL_NAMES: Final = frozenset(
    [
        "scienceflux",
        "totflux",
        "totalflux",
        "fluxtot",
        "fluxtotal",
        "magpsfcorr",
        "magcorr",
        "psdirectflux",
        "directflux",
        "psfdirectflux",
    ]
)
_DIFFERENCE_NAMES: Final = frozenset(
    [
        "psfdiffflux",
        "forcediffimflux",
        "diffflux",
        "fluxdiff",
        "differenceflux",
        "difflux",
        "psdiffflux",
        "magpsf",
        "diffmag",
        "magdiff",
        "unforcedmag",
        "forcedujy",
    ]
)
_METADATA_SYNONYMS: Final = {
    "ebv": "mwebv",
    "mwebvmwe": "mwebv",
    "mw_ebv": "mwebv",
    "redshift": "zspec",
    "z_spec": "zspec",
    "specz": "zspec",
    "redshift_err": "zspec_err",
    "sgscore1": "star_score",
    "hostgal_specz": "hostgal_zspec",
    "hostgal_photoz": "hostgal_zphot",
    "hostgal_photoz_err": "hostgal_zphot_err",
}


def _prefix(name: str) -> str:
    return name.rpartition(".")[0] or name


def _looks_like_date(values: Float64) -> bool:
    if not values.size:
        return False
    inside = ((values > 15_000) & (values < 100_000)) | ((values > 2.4e6) & (values < 2.6e6))
    return bool(inside.mean() > 0.95 and np.ptp(values) < 60_000)


def _is_error_name(key: str) -> bool:
    return bool(re.search(r"(err|error|unc|sigma|std)", key)) or key.startswith(("e", "d", "sig"))


def unit_of(text: str) -> str:
    """Return the unit of flux that a text names, empty where it names none."""
    key = re.sub(r"[\s_]", "", text).replace("µ", "u").replace("μ", "u").lower()
    known = {
        "njy": "nJy",
        "nanojansky": "nJy",
        "nanojanskys": "nJy",
        "nanojy": "nJy",
        "ujy": "uJy",
        "microjy": "uJy",
        "microjansky": "uJy",
        "microjanskys": "uJy",
        "mjy": "mJy",
        "millijansky": "mJy",
        "millijy": "mJy",
        "jy": "Jy",
        "jansky": "Jy",
        "fluxcal": "FLUXCAL",
    }
    if text.strip() == "MJy":
        return ""
    return known.get(key, "")


def _unit_in_name(name: str) -> str:
    bracket = re.search(r"[\[(]([^\])]+)[\])]", name)
    if bracket and (unit := unit_of(bracket[1])):
        return unit
    for part in re.split(r"[^A-Za-zµμ]+", last_part(name)):
        if unit := unit_of(part):
            return unit
    match = re.search(r"(nJy|uJy|µJy|mJy|Jy|njy|ujy|mjy|microjy|nanojy)$", last_part(name))
    return unit_of(match[1]) if match else ""


_WIDE_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("mag", "magnitude", "m", "psfmag", "psf_mag", "mags", "apmag", "transit_mag"), "mag"),
    **dict.fromkeys(("flux", "f", "psfflux", "fluxcal", "psf_flux", "fluxes", "transit_flux"), "flux"),
    **dict.fromkeys(
        (
            "magerr",
            "mag_err",
            "e_mag",
            "emag",
            "mag_error",
            "err_mag",
            "sigmag",
            "sigma_mag",
            "merr",
            "dmag",
            "mag_unc",
            "psfmagerr",
            "psf_mag_err",
            "mag_sigma",
            "dm",
        ),
        "mag_err",
    ),
    **dict.fromkeys(
        (
            "fluxerr",
            "flux_err",
            "e_flux",
            "flux_error",
            "err_flux",
            "sigma_flux",
            "ferr",
            "dflux",
            "flux_unc",
            "fluxcalerr",
            "psffluxerr",
            "psf_flux_err",
            "flux_sigma",
            "df",
            "transit_flux_error",
        ),
        "flux_err",
    ),
    **dict.fromkeys(("err", "error", "e", "sigma", "unc", "sig", "d", "uncertainty", "errs"), "err"),
    **dict.fromkeys(("mjd", "time", "t", "jd", "hjd", "bjd", "times", "transit_time", "obstime"), "time"),
    **dict.fromkeys(("limit", "lim", "maglim", "limmag", "mag_lim", "limiting_mag"), "limit"),
    "": "value",
}


def _band_in(name: str) -> tuple[str, str] | None:
    """Return the filter and the role of a column of one filter, such as ``mag_g``, ``g_mag_err`` or ``e_V``."""
    field_name = last_part(name)
    parts = [part for part in re.split(r"[_\s.:()\[\]-]+", field_name) if part]
    if len(parts) > 2 and (parts[-1].lower() in ("ab", "vega") or unit_of(parts[-1])):
        parts = parts[:-1]
    for place in (len(parts) - 1, 0, *range(1, len(parts) - 1)):
        if not parts or not 0 <= place < len(parts):
            continue
        band = known_filter(parts[place])
        rest = [part for index, part in enumerate(parts) if index != place]
        role = _WIDE_PARTS.get("_".join(rest).lower())
        if band and role is not None:
            return band, role
    if match := re.fullmatch(r"([ugrizyUBVRIG]|BP|RP)_?((?i:mag|err|magerr|flux|fluxerr|mjd))", field_name):
        return known_filter(match[1]) or match[1], _WIDE_PARTS[match[2].lower()]
    if match := re.fullmatch(r"((?i:mag|err|magerr|emag|flux|fluxerr|mjd|e))_?([ugrizyUBVRIG]|BP|RP)", field_name):
        return known_filter(match[2]) or match[2], _WIDE_PARTS[match[1].lower()]
    return None
