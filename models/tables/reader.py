"""Light curves of a table, one object at a time.

Notable:

- rows may be in any order. A table of up to :data:`HELD_POINTS` points is grouped in memory. Of a larger one the column
  of names is read first: if the rows of each object are together, objects are yielded as they end, and otherwise the
  points are distributed over temporary files, a share of the objects in each, and grouped file by file;
- memory holds :data:`HELD_POINTS` points, or one share, and the names of all objects;
- rows that cannot be used are left out and counted by reason, in :class:`Report` and for each object.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.checks import looks_like_total_flux, photometry_warnings
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError, without_reference
from nightjar_alerts.models.metadata import clean_metadata
from nightjar_alerts.models.photometry import (
    JD_MINUS_MJD,
    NJY_PER_UNIT,
    VEGA_AB_OFFSETS,
    Float64,
    njy_of_magnitude,
    njy_with_error,
)
from nightjar_alerts.models.tables.columns import (
    Array,
    Batch,
    Bool,
    Lists,
    flags,
    is_text,
    iso_times,
    numbers,
    object_column,
    texts,
)
from nightjar_alerts.models.tables.files import Data, Source, open_source
from nightjar_alerts.models.tables.layout import NO_FILTER, VEGA_BY_CUSTOM, Layout, guess_layout, unit_of
from nightjar_alerts.models.tables.options import Guess, TableError, TableOptions, TableQuestion

HELD_POINTS: Final = 1_000_000
SHARES: Final = 64
PLAUSIBLE_MAGNITUDES: Final = (0.0, 35.0)
PLAUSIBLE_ERROR: Final = 5.0
"""Magnitudes and errors of magnitudes beyond these are sentinels such as 99, -99 and -999, and so is 0 itself."""
DETECTION_BIT: Final = 4096
"""Of SNANA's ``PHOTFLAG``."""
UNIX_EPOCH_MJD: Final = 40_587.0
DAYS_PER_YEAR: Final = 365.25
MJD_OF_2000: Final = 51_544.0

REASONS: Final = (
    "",
    "no time",
    "time is not readable",
    "no filter",
    "filter left out",
    "unknown filter",
    "flagged by the survey",
    "quality is too low",
    "upper limit",
    "no brightness",
    "brightness is not readable",
    "negative magnitude",
    "magnitude is not plausible",
    "magnitude error is not plausible",
    "no error",
    "error is not positive",
)
"""Why a point is not used, by its code."""
_CODES: Final = {reason: code for code, reason in enumerate(REASONS)}
_POINT: Final = np.dtype(
    [
        ("key", "i8"),
        ("mjd", "f8"),
        ("flux", "f8"),
        ("flux_err", "f8"),
        ("band", "i4"),
        ("detected", "i1"),
        ("code", "i1"),
    ]
)
NOT_STATED: Final = -1
MIN_CHECKED_POINTS: Final = 5
"""Minimum number of points of an object that is checked to find out whether a table has total flux."""
NAMELESS: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class TableObject:
    """One object of a table, its points in the order of the rows.

    Attributes
    ----------
    mjd : shape (n,), days. flux, flux_err: shape (n,), nJy; NaN where the table has no value.
    band : n names: of :data:`models.photometry.FILTERS`, or as the table has it where that is unknown or left out.
    detected : shape (n,), or None if the table has no such column.
    rejected : masks of shape (n,) of the points that cannot be used, by reason.
    metadata : by the names of :data:`models.metadata.KNOWN_COLUMNS`.
    label, redshift, parent : as the table has them; empty and NaN where it has none.
    flux_kind : ``total`` where the flux is that of the whole source, of which :meth:`light_curve` subtracts the
        medians; empty if unknown.
    """

    object_id: str
    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: NDArray[np.object_]
    detected: Bool | None = None
    rejected: Mapping[str, Bool] = field(default_factory=dict)
    metadata: Mapping[str, float] = field(default_factory=dict)
    label: str = ""
    redshift: float = float("nan")
    parent: str = ""
    survey: str = ""
    flux_kind: str = ""

    def usable(self) -> Bool:
        """Return the mask of the points that can be used."""
        keep = np.ones(len(self.mjd), np.bool_)
        for bad in self.rejected.values():
            keep &= ~bad
        return keep

    def light_curve(self) -> LightCurve:
        """Return the record that models classify; its ``dropped`` and ``unknown_filters`` count what is left out.

        Raises
        ------
        LightCurveError
            When no point can be used, or a value breaks a rule of the record.
        """
        keep = self.usable()
        dropped = {reason.replace(" ", "_"): int(bad.sum()) for reason, bad in self.rejected.items()}
        unknown = (
            Counter(str(name) for name in self.band[self.rejected["unknown filter"]])
            if ("unknown filter" in self.rejected)
            else Counter()
        )
        dropped.pop("unknown_filter", None)
        if not keep.any():
            listed = ", ".join(f"{count} {reason}" for reason, count in (dropped | dict(unknown)).items())
            raise LightCurveError("", "no_usable_points", f"no point can be used ({listed})" if listed else "no points")
        bands = list(self.band[keep])
        flux = self.flux[keep]
        curve = LightCurve.from_columns(
            self.mjd[keep],
            without_reference(flux, bands) if self.flux_kind == "total" else flux,
            self.flux_err[keep],
            bands,
            None if self.detected is None or self.flux_kind == "total" else self.detected[keep],
            clean_metadata(self.metadata),
            self.object_id,
            survey=self.survey,
        )
        warnings = photometry_warnings(
            curve.mjd, curve.flux, curve.flux_err, self.survey, check_total=not self.flux_kind
        )
        return replace(curve, dropped=dropped, unknown_filters=dict(unknown), warnings=warnings)


class About(NamedTuple):
    """Label, redshift, parent and metadata of an object."""

    label: str = ""
    redshift: float = float("nan")
    parent: str = ""
    metadata: Mapping[str, float] = {}


@dataclass
class Report:
    """Counts of one reading.

    ``objects`` and ``points`` that were yielded, ``unused`` points by reason, ``unknown_filters`` by name,
    ``malformed`` rows by reason and ``examples`` of those.
    """

    objects: int = 0
    points: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    unknown_filters: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return sentences for people, none where everything was used."""
        lines = []
        if self.malformed:
            listed = ", ".join(f"{count} with {reason}" for reason, count in self.malformed.most_common())
            lines.append(f"malformed rows left out: {listed} (first: {'; '.join(self.examples[:3])})")
        if self.unused:
            listed = ", ".join(f"{count} {reason}" for reason, count in self.unused.most_common())
            lines.append(f"points left out: {listed}")
        if self.unknown_filters:
            listed = ", ".join(f"{name} ({count})" for name, count in self.unknown_filters.most_common())
            lines.append(f"unknown filters: {listed}; the option filters names them")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "objects": self.objects,
            "points": self.points,
            "unused_points": dict(self.unused.most_common()),
            "unknown_filters": dict(self.unknown_filters.most_common()),
            "malformed_rows": dict(self.malformed.most_common()),
            "examples": self.examples,
        }


def read_table(data: Data, options: TableOptions | None = None, *, name: str = "") -> "Table":
    """Open a table and decide what its columns mean.

    Parameters
    ----------
    data : path of a file or of the folder of a HATS catalogue; its content as bytes or as a binary file; a data frame
        of pandas, a table of pyarrow or astropy, a structured array, a mapping of columns, or a list of rows.
    options : options of the reader; the defaults guess everything.
    name : name of content without a path; its ending gives the format, if the content does not.

    Raises
    ------
    TableQuestion
        When two readings are possible.
    TableError
        When the table cannot be read; :class:`MissingExtra` when a library is missing.
    """
    return Table(data, options or TableOptions(), name)


class Table:
    """A table whose layout is known. Each iteration reads it from the beginning and yields its objects.

    Attributes
    ----------
    guesses : decisions of the reader that the options did not make.
    report : counts of the last iteration, complete when it has ended.
    header : names of the columns.
    """

    def __init__(self, data: Data, options: TableOptions, name: str = "") -> None:
        self._source: Source = open_source(data, options.format, name)
        self.options = options
        self.name = self._source.name
        self.header = self._source.header
        self.report = Report()
        sample = next(self._read(None), None)
        if sample is None or not any(len(column) for column in sample.values()):
            examples = "".join(f" ({example})" for example in self._source.problems.examples[:1])
            raise TableError(f"{self.name} is empty: it holds no rows{examples}")
        try:
            self._layout = guess_layout(self.header, self._source.units, sample, options, name or self.name)
        except TableQuestion:
            raise
        except TableError as error:
            raise TableError(f"{self.name}: {error}") from None
        self._names = self._layout.names()
        self._bands: dict[str, int] = {}
        self._seen: set[int] = set()
        self._decide_signs(sample)
        self._decide_kind(sample)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """Decisions of the reader that the options did not make."""
        return tuple(self._layout.guesses)

    @property
    def columns(self) -> dict[str, str]:
        """Column of each role."""
        return dict(self._layout.columns)

    @property
    def progress(self) -> float:
        """Fraction of the table that the iteration has read."""
        return self._source.progress

    def __iter__(self) -> Iterator[TableObject]:
        self.report = Report()
        self._seen = set()
        keys: dict[str, int] = {}
        abouts: list[About] = []
        yield from self._all_objects(keys, abouts)
        for name, key in keys.items():
            if key not in self._seen:  # an object whose lists are empty
                yield self._object(name, np.zeros(0, _POINT), abouts[key])
        self._count_problems()

    def _all_objects(self, keys: dict[str, int], abouts: list[About]) -> Iterator[TableObject]:
        """Yield the objects that have points; new objects are added to ``keys`` and ``abouts``."""
        batches = self._batches(keys, abouts)
        held: list[NDArray[Any]] = []
        points = 0
        for batch in batches:
            held.append(batch)
            points += len(batch)
            if points > HELD_POINTS:
                break
        else:
            yield from self._objects(np.concatenate(held) if held else np.zeros(0, _POINT), list(keys), abouts)
            return
        del held, batches
        self.report = Report()
        keys.clear()
        abouts.clear()
        if self._is_together():
            yield from self._streamed(self._batches(keys, abouts), keys, abouts)
        else:
            yield from self._distributed(self._batches(keys, abouts), keys, abouts)

    def _count_problems(self) -> None:
        problems = self._source.problems
        self.report.malformed.update(problems.counts)
        self.report.examples.extend(problems.examples)

    def _batches(self, keys: dict[str, int], abouts: list[About]) -> Iterator[NDArray[Any]]:
        for batch in self._read(self._names):
            yield self._points_of(batch, keys, abouts)

    def _read(self, names: Sequence[str] | None) -> Iterator[Batch]:
        """Yield batches of the source; in a table of alerts the history of an alert ends with its own detection."""
        own = {name: own for name in names or self.header if (own := _of_alert(name)) in self.header}
        wanted = None if names is None else [*names, *(name for name in own.values() if name not in names)]
        for batch in self._source.batches(wanted):
            lists = [name for name in batch if isinstance(batch[name], Lists) and _of_alert(name)]
            for name in lists if own else ():
                batch[name] = _appended(batch[name], batch.get(own.get(name, "")))
            yield batch

    # Grouping

    def _is_together(self) -> bool:
        """Return True when the rows of each object follow each other."""
        column = self._layout.columns.get("object_id")
        if column is None:
            return True
        ended: set[str] = set()
        current = None
        for batch in self._source.batches([column]):
            values = batch[column]
            assert isinstance(values, np.ndarray)
            names = texts(values)
            for place in np.flatnonzero(np.concatenate(([True], names[1:] != names[:-1]))):
                name = names[place]
                if name == current:
                    continue
                if name in ended:
                    return False
                ended.add(name)
                current = name
        return True

    def _streamed(
        self, batches: Iterator[NDArray[Any]], keys: dict[str, int], abouts: list[About]
    ) -> Iterator[TableObject]:
        """Yield each object when the next one begins."""
        names: list[str] = []
        rest = np.zeros(0, _POINT)
        for batch in batches:
            names.extend(islice(keys, len(names), None))
            points = np.concatenate([rest, batch])
            if not len(points):
                continue
            last = int(np.argmax(points["key"] == points["key"][-1]))
            yield from self._objects(points[:last], names, abouts)
            rest = points[last:]
        yield from self._objects(rest, names, abouts)

    def _objects(self, points: NDArray[Any], names: Sequence[str], abouts: Sequence[About]) -> Iterator[TableObject]:
        """Yield the objects of points in any order, by their numbers."""
        points = points[np.argsort(points["key"], kind="stable")]
        for key, start, end in _runs(points["key"]):
            self._seen.add(key)
            yield self._object(names[key], points[start:end], abouts[key])

    def _distributed(
        self, batches: Iterator[NDArray[Any]], keys: dict[str, int], abouts: list[About]
    ) -> Iterator[TableObject]:
        """Distribute the points over temporary files by object, and yield the objects of one file after the other."""
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            paths = [Path(folder) / str(share) for share in range(SHARES)]
            with ExitStack() as stack:
                files: list[IO[bytes]] = [stack.enter_context(path.open("wb")) for path in paths]
                for batch in batches:
                    share = batch["key"] % SHARES
                    for number in np.unique(share):
                        batch[share == number].tofile(files[int(number)])
            names = list(keys)
            for path in paths:
                yield from self._objects(np.fromfile(path, _POINT), names, abouts)

    # Values

    def _points_of(self, batch: Batch, keys: dict[str, int], abouts: list[About]) -> NDArray[Any]:
        """Return the points of a batch of rows; new objects are added to ``keys`` and ``abouts``."""
        layout = self._layout
        key = self._keys_of(batch, keys, abouts)
        if not layout.wide:
            return self._named(self._measured(batch, layout.columns, layout.band, key))
        pieces = []
        for band in layout.wide:
            columns = {role: name for role, name in layout.columns.items() if role != "band"} | dict(band.columns)
            piece = self._measured(batch, columns, band.filter_name, key)
            pieces.append(piece[piece["code"] != _CODES["no brightness"]])
        points = np.concatenate(pieces)
        return self._named(points[np.argsort(points["key"], kind="stable")])

    def _named(self, points: NDArray[Any]) -> NDArray[Any]:
        """Leave out the points of no object, and count them."""
        is_named = points["key"] != NAMELESS
        if is_named.all():
            return points
        self.report.unused["without the name of an object"] += int((~is_named).sum())
        named: NDArray[Any] = points[is_named]
        return named

    def _keys_of(self, batch: Batch, keys: dict[str, int], abouts: list[About]) -> NDArray[np.int64]:
        layout = self._layout
        rows = len(next(iter(batch.values())))
        column = layout.columns.get("object_id")
        if column is not None:
            values = batch[column]
            assert isinstance(values, np.ndarray)
            names = texts(values)
        elif layout.nested:
            start = len(abouts)
            stem = self.options.object_id or self._source.stem
            many = start + rows > 1 or not stem
            names = object_column([f"{stem} {start + row + 1}".strip() if many else stem for row in range(rows)])
        else:
            names = object_column([self.options.object_id or self._source.stem] * rows)
        known = {"": NAMELESS} if column is not None else {}
        first_rows = dict(zip(names[::-1], range(rows - 1, -1, -1), strict=True))
        for name in dict.fromkeys(names):
            if name in known:
                continue
            if name not in keys:
                keys[name] = len(abouts)
                abouts.append(self._about(batch, first_rows[name]))
            known[name] = keys[name]
        return np.fromiter(map(known.__getitem__, names), np.int64, rows)

    def _about(self, batch: Batch, row: int) -> About:
        layout = self._layout

        def one(name: str) -> Array:
            column = batch[name]
            return (
                column.values[column.offsets[row] : column.offsets[row] + 1]
                if isinstance(column, Lists)
                else (column[row : row + 1])
            )

        def text(role: str) -> str:
            return str(texts(one(layout.columns[role]))[0]) if role in layout.columns else ""

        def number(name: str) -> float:
            values = numbers(one(name))[0]
            return float(values[0]) if len(values) else float("nan")

        redshift = number(layout.columns["redshift"]) if "redshift" in layout.columns else float("nan")
        metadata = {known: number(name) for known, name in layout.metadata.items()}
        metadata = {known: value for known, value in metadata.items() if value == value}
        return About(text("label"), redshift, text("parent"), metadata)

    def _measured(self, batch: Batch, columns: Mapping[str, str], band: str, key: NDArray[np.int64]) -> NDArray[Any]:
        """Return the points of one set of columns."""
        time = batch[columns["time"]]
        offsets = time.offsets if isinstance(time, Lists) else None
        rows = np.arange(len(key)) if offsets is None else np.repeat(np.arange(len(key)), np.diff(offsets))

        def rows_of(name: str) -> Array:
            column = batch[name]
            if not isinstance(column, Lists):
                return column[rows] if offsets is not None else column
            if len(column.values) != len(rows):
                raise TableError(
                    f"{self.name}: lists of {name!r} have another length than those of {columns['time']!r}"
                )
            return column.values

        def values(role: str) -> Array | None:
            name = columns.get(role)
            return None if name is None else rows_of(name)

        count = len(rows)
        points = np.zeros(count, _POINT)
        points["key"] = key[rows]
        points["detected"] = NOT_STATED
        code = points["code"]
        mjd, bad_time = self._mjd(values("time"))
        points["mjd"] = mjd
        filters = self._filters(values("band"), band, points)
        measured = _Brightness(self._layout, self.options, filters, count)
        measured.read(values)
        points["flux"], points["flux_err"] = measured.flux, measured.flux_err
        detected = self._detected(values("detected"), columns.get("detected", ""))
        if detected is not None:
            points["detected"] = detected
        for name, bits in self._layout.bad_flags.items():
            _mark(code, (_bits(rows_of(name)) & bits) != 0, "flagged by the survey")
        for name, least in self._layout.minimum.items():
            _mark(code, ~(numbers(rows_of(name))[0] >= least), "quality is too low")
        _mark(code, bad_time, "time is not readable")
        _mark(code, ~np.isfinite(mjd), "no time")
        limits = measured.is_limit
        if self.options.upper_limits == "use":
            usable = limits & np.isfinite(points["flux_err"]) & (points["flux_err"] > 0)
            points["detected"][usable] = 0
            limits = limits & ~usable
        _mark(code, limits, "upper limit")
        for reason, bad in measured.reasons():
            _mark(code, bad, reason)
        return points

    def _mjd(self, column: Array | None) -> tuple[Float64, Bool]:
        layout = self._layout
        assert column is not None
        form = layout.time_format
        if form == "iso" and column.dtype.kind != "M":
            if not is_text(column):
                column = object_column([str(int(v)) if v == v else "" for v in column.astype(np.float64)])
            column = object_column([_with_hyphens(text) for text in texts(column)])
            mjd, bad = iso_times(column)
            return mjd + layout.time_offset, bad
        mjd, bad = numbers(column)
        mjd = mjd + layout.time_offset
        if form == "jd":
            mjd = mjd - JD_MINUS_MJD
        elif form == "unix":
            mjd = mjd / 86_400.0 + UNIX_EPOCH_MJD
        elif form == "year":
            mjd = (mjd - 2000.0) * DAYS_PER_YEAR + MJD_OF_2000
        mjd[(mjd <= -1e5) | (np.abs(mjd) > 1e7)] = np.nan
        return mjd, bad

    def _filters(self, column: Array | None, band: str, points: NDArray[Any]) -> NDArray[np.object_]:
        """Set the filter of each point; returns their names, as far as they are known."""
        if column is None:
            points["band"] = self._band_number(band)
            return np.full(len(points), band, np.object_)
        stated = texts(column)
        number_of_name = {name: number for number, name in enumerate(dict.fromkeys(stated))}
        names = list(number_of_name)
        inverse = np.fromiter(map(number_of_name.__getitem__, stated), np.int64, len(stated))
        known = np.empty(len(names), np.object_)
        numbers_of = np.empty(len(names), np.int32)
        codes = np.zeros(len(names), np.int8)
        for place, name in enumerate(names):
            found = self._layout.filter(str(name)) if name else None
            known[place] = found or ""
            numbers_of[place] = self._band_number(found or str(name))
            if not name:
                codes[place] = _CODES["no filter"]
            elif found == NO_FILTER:
                codes[place] = _CODES["filter left out"]
            elif found is None:
                codes[place] = _CODES["unknown filter"]
        points["band"] = numbers_of[inverse]
        points["code"] = codes[inverse]
        result: NDArray[np.object_] = known[inverse]
        return result

    def _band_number(self, name: str) -> int:
        return self._bands.setdefault(name, len(self._bands))

    def _detected(self, column: Array | None, name: str) -> NDArray[np.int8] | None:
        if column is None:
            return None
        if name.rpartition(".")[2].lower() == "photflag":
            return np.asarray((_bits(column) & DETECTION_BIT) != 0, np.int8)
        return flags(column).astype(np.int8)

    def _decide_signs(self, sample: Batch) -> None:
        """Decide whether negative magnitudes are those of negative fluxes, as in ATLAS's forced photometry."""
        if (
            self.options.signed_magnitudes is not None
            or "mag" not in self._layout.columns
            or ("flux" in self._layout.columns)
        ):
            return
        column = sample[self._layout.columns["mag"]]
        values, _ = numbers(column.values if isinstance(column, Lists) else column)
        negative = values[(values < -8) & (values > -30)]
        is_atlas = bool(self._layout.filters) and {found for found in self._layout.filters.values() if found} <= {
            "c",
            "o",
        }
        if len(negative) >= (1 if is_atlas else 3) and len(np.unique(negative)) > len(negative) / 2:
            self._layout.signed = True
            text = "negative magnitudes stand for negative fluxes, as in ATLAS's forced photometry"
            self._layout.guesses.append(Guess("signed_magnitudes", "true", text))

    def _decide_kind(self, sample: Batch) -> None:
        """Find out from the values whether the flux is total, if neither names nor options define it."""
        if self._layout.flux_kind:
            return
        keys: dict[str, int] = {}
        abouts: list[About] = []
        objects = list(self._objects(self._points_of(sample, keys, abouts), list(keys), abouts))
        self.report = Report()
        checked = [
            looks_like_total_flux(item.mjd[keep], item.flux[keep], item.flux_err[keep])
            for item in objects
            if (keep := item.usable()).sum() >= MIN_CHECKED_POINTS
        ]
        if checked and sum(checked) > len(checked) / 2:
            self._layout.flux_kind = "total"
            text = "the brightness is that of the whole source, as it stays far above zero for months"
            self._layout.guesses.append(Guess("flux_kind", "total", text))

    def _object(self, name: str, points: NDArray[Any], about: About) -> TableObject:
        codes = points["code"]
        names = object_column(list(self._bands))
        band = names[points["band"]]
        rejected = {REASONS[code]: codes == code for code in np.unique(codes) if code}
        detected = points["detected"]
        report = self.report
        report.objects += 1
        report.points += len(points)
        for reason, bad in rejected.items():
            if reason == "unknown filter":
                report.unknown_filters.update(str(name) for name in band[bad])
            else:
                report.unused[reason] += int(bad.sum())
        return TableObject(
            name,
            points["mjd"].copy(),
            points["flux"].copy(),
            points["flux_err"].copy(),
            band,
            None if (detected == NOT_STATED).any() else detected.astype(np.bool_),
            rejected,
            about.metadata,
            about.label,
            about.redshift,
            about.parent,
            self._layout.survey,
            self._layout.flux_kind,
        )


ALERT_LISTS: Final = {
    "prv_candidates": "candidate",
    "prvDiaSources": "diaSource",
    "prvDiaForcedSources": "diaSource",
}
"""History of an alert, and the detection that the alert is about, whose fields have the same names."""


def _of_alert(name: str) -> str:
    """Return the field of an alert's detection for one of its history, empty for other columns."""
    prefix, _, field = name.rpartition(".")
    return f"{ALERT_LISTS[prefix]}.{field}" if prefix in ALERT_LISTS else ""


def _appended(lists: Any, last: Any) -> Lists:
    """Return lists with one more value at the end of each, missing where ``last`` is None."""
    rows = len(lists)
    values = object_column([None] * rows) if last is None or isinstance(last, Lists) else last
    if is_text(lists.values) or is_text(values):
        values = values.astype(np.object_)
        held = lists.values.astype(np.object_)
    else:
        held = lists.values
    return Lists(lists.offsets + np.arange(rows + 1), np.insert(held, lists.offsets[1:], values))


def _mark(code: NDArray[np.int8], bad: Bool, reason: str) -> None:
    """Give points a reason, unless they have one."""
    code[bad & (code == 0)] = _CODES[reason]


def _bits(column: Array) -> NDArray[np.int64]:
    """Return a column of flags as integers; missing values and what is beyond 53 bits have no flags."""
    values = numbers(column)[0]
    with np.errstate(invalid="ignore"):
        values = np.where(np.abs(values) < 2.0**53, values, 0.0)
    return values.astype(np.int64)


def _runs(key: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield value, start and end of each run of equal values."""
    if not len(key):
        return
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    for start, end in zip(starts, [*starts[1:], len(key)], strict=True):
        yield int(key[start]), int(start), int(end)


def _with_hyphens(text: str) -> str:
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}{text[8:]}" if re.fullmatch(r"(19|20)\d{6}(\.\d+)?", text) else text


class _Brightness:
    """Fluxes and errors in nJy of the rows of a batch, and why a row has none."""

    def __init__(self, layout: Layout, options: TableOptions, filters: NDArray[np.object_], count: int) -> None:
        self._layout, self._options, self._filters = layout, options, filters
        self.flux = np.full(count, np.nan)
        self.flux_err = np.full(count, np.nan)
        self.is_limit = np.zeros(count, np.bool_)
        none = np.zeros(count, np.bool_)
        self.unreadable, self.negative, self.implausible, self.implausible_error = none, none, none, none

    def read(self, values: Any) -> None:
        """Read the columns; ``values`` returns the column of a role, or None."""
        self._offset = self._ab_offset(values("mag_system"))
        limit_mag = self._limit_column(values("limit"))
        flagged = values("upper_limit")
        if flagged is not None:
            self.is_limit = self._limit_flags(flagged)
        mags = values("mag")
        if mags is not None:
            self._magnitudes(mags, values("mag_err"), values("snr"), values("sign"))
        flux = values("flux")
        if flux is not None:
            self._fluxes(flux, values("flux_err"), values)
        missing = ~np.isfinite(self.flux) | self.is_limit
        if limit_mag is not None:
            replaced = missing & np.isfinite(limit_mag)
            limit_flux = njy_of_magnitude(limit_mag + self._offset)
            self.is_limit = self.is_limit | replaced
            self.flux = np.where(replaced & ~np.isfinite(self.flux), limit_flux, self.flux)
            self.unreadable = self.unreadable & ~replaced
            self.implausible = self.implausible & ~replaced
        self._errors_of_limits()

    def reasons(self) -> Iterator[tuple[str, Bool]]:
        """Yield why rows cannot be used, in the order in which the reasons count."""
        usable_limit = self.is_limit & (self._options.upper_limits == "use")
        yield "brightness is not readable", self.unreadable
        yield "negative magnitude", self.negative
        yield "magnitude is not plausible", self.implausible
        yield "magnitude error is not plausible", self.implausible_error & ~usable_limit
        yield "no brightness", ~np.isfinite(self.flux)
        yield "no error", ~np.isfinite(self.flux_err)
        yield "error is not positive", ~(self.flux_err > 0)

    def _errors_of_limits(self) -> None:
        if self._options.upper_limits == "use" and self.is_limit.any():
            size = np.abs(self.flux[self.is_limit])
            self.flux_err[self.is_limit] = size / self._options.limit_sigma
            self.flux[self.is_limit] = 0.0

    def _ab_offset(self, systems: Array | None) -> Float64:
        """Return what is added to a magnitude to get AB, for each row."""
        offsets = {name: VEGA_AB_OFFSETS.get(name, 0.0) for name in set(self._filters)}
        usual = {name: offset if name in VEGA_BY_CUSTOM else 0.0 for name, offset in offsets.items()}
        system = self._layout.mag_system
        chosen = offsets if system == "Vega" else usual if system == "mixed" else dict.fromkeys(offsets, 0.0)
        result = np.fromiter(map(chosen.__getitem__, self._filters), np.float64, len(self._filters))
        if systems is not None:
            stated = texts(systems)
            for row, (text, name) in enumerate(zip(stated, self._filters, strict=True)):
                lower = text.lower()
                if "vega" in lower or lower in ("johnson", "bessell", "landolt"):
                    result[row] = offsets[name]
                elif "ab" in lower or lower in ("sdss", "natural sdss"):
                    result[row] = 0.0
        return result

    def _limit_column(self, column: Array | None) -> Float64 | None:
        if column is None:
            return None
        values, _ = (
            numbers(object_column([text.lstrip("<> ") for text in texts(column)]))
            if is_text(column)
            else (numbers(column))
        )
        values = values.copy()
        values[~((values > PLAUSIBLE_MAGNITUDES[0]) & (values < PLAUSIBLE_MAGNITUDES[1]))] = np.nan
        return values

    def _limit_flags(self, column: Array) -> Bool:
        if not is_text(column):
            return flags(column)
        marks = {"limit", "upper limit", "upperlimit", "nondetection", "non-detection", "<", ">", "ul"}
        return np.array([text.lower() in marks for text in texts(column)], np.bool_) | flags(column)

    def _magnitudes(self, column: Array, errors: Array | None, snr: Array | None, sign: Array | None) -> None:
        mag, self.unreadable = numbers(column)
        if self.unreadable.any():
            beyond = self.unreadable.copy()
            stated = texts(column[beyond])
            beyond[beyond] = [text.startswith(("<", ">")) for text in stated]
            column = object_column([text.lstrip("<> ") for text in stated if text.startswith(("<", ">"))])
            mag[beyond], self.unreadable[beyond] = numbers(column)
            self.is_limit = self.is_limit | beyond
        error = np.full(len(mag), np.nan)
        if errors is not None:
            error, bad = numbers(errors)
            self.unreadable = self.unreadable | (bad & ~self.is_limit)
        elif snr is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                error = 1.0857362 / np.abs(numbers(snr)[0])
        elif self._options.mag_err is not None:
            error = np.full(len(mag), self._options.mag_err)
        is_signed = bool(self._options.signed_magnitudes or self._layout.signed)
        size = np.abs(mag) if is_signed else mag
        none = np.zeros(len(mag), np.bool_)
        with np.errstate(invalid="ignore"):
            self.negative = none if is_signed else (mag < PLAUSIBLE_MAGNITUDES[0])
            self.implausible = ~self.negative & ((size <= PLAUSIBLE_MAGNITUDES[0]) | (size > PLAUSIBLE_MAGNITUDES[1]))
            self.implausible_error = none if is_signed else (error > PLAUSIBLE_ERROR) & ~self.is_limit
        flux, flux_err = njy_with_error(size + self._offset, error)
        if is_signed:
            flux = np.copysign(flux, mag)
        if sign is not None:
            flux = np.where(_is_negative(sign), -flux, flux)
        flux[self.negative | self.implausible] = np.nan
        flux_err[self.implausible_error] = np.nan
        self.flux, self.flux_err = flux, flux_err

    def _fluxes(self, column: Array, errors: Array | None, values: Any) -> None:
        flux, bad = numbers(column)
        error = np.full(len(flux), np.nan)
        if errors is not None:
            error = numbers(errors)[0]
        elif (snr := values("snr")) is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.abs(flux / numbers(snr)[0])
        scale = self._scale(values)
        flux, error = flux * scale, error * scale
        present = np.isfinite(flux) & np.isfinite(error)
        if values("mag") is None:
            self.flux, self.flux_err, self.unreadable = flux, error, bad
            return
        # A measured flux is better than the magnitude, and than the limit, of the same row.
        self.flux = np.where(present, flux, self.flux)
        self.flux_err = np.where(present, error, self.flux_err)
        self.is_limit = self.is_limit & ~present
        for mask in ("unreadable", "negative", "implausible", "implausible_error"):
            setattr(self, mask, getattr(self, mask) & ~present)

    def _scale(self, values: Any) -> Float64:
        """Return nJy of one unit of flux, for each row."""
        layout = self._layout
        count = len(self.flux)
        zero_points = values("zero_point")
        if zero_points is not None:
            return njy_of_magnitude(numbers(zero_points)[0])
        units = values("flux_unit")
        if units is not None:
            known = {name: NJY_PER_UNIT.get(unit_of(name), np.nan) for name in set(texts(units))}  # type: ignore[call-overload]  # any text
            return np.array([known[name] for name in texts(units)], np.float64)
        if layout.scales:
            scale = np.array([layout.scales.get(name, layout.scale) for name in self._filters], np.float64)
            return np.asarray(scale * 10 ** (-0.4 * self._offset))
        return np.full(count, layout.scale)


def _is_negative(sign: Array) -> Bool:
    if not is_text(sign):
        values = np.nan_to_num(sign.astype(np.float64), nan=1.0)
        return np.asarray(values < 0 if (values < 0).any() else values == 0, np.bool_)
    return np.array(
        [text.lower() in ("f", "false", "0", "-1", "-", "n", "negative", "-1.0") for text in texts(sign)], np.bool_
    )
