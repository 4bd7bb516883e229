"""Light curves of a table, one object at a time.

Notable:

- rows may be in any order. A table of up to :data:`HELD_POINTS` points is grouped in memory. Of a larger one the column
  of names is read first: if the rows of each object are together, objects are yielded as they end, and otherwise the
  points are distributed over temporary files, a share of the objects in each, and grouped file by file;
- memory holds :data:`HELD_POINTS` points, or one share, and the names of all objects. The number of objects, the points
  of one object and the size of the temporary files are bounded;
- rows that cannot be used are left out and counted by reason, in :class:`TableReport` and for each object.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.checks import PhotometryWarning, kind_of_source
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, is_position, without_reference
from nightjar_alerts.models.metadata import SENTINELS, clean_metadata, implausible_metadata
from nightjar_alerts.models.photometry import JD_MINUS_MJD, SECONDS_PER_DAY, Float64, mjd_tai_of_mjd
from nightjar_alerts.tables.bounds import FILE_BOUNDS, TRUSTED, Bounds, TableTooLarge
from nightjar_alerts.tables.brightness import CODES, REASONS, mark, measure
from nightjar_alerts.tables.columns import (
    Array,
    Bool,
    Column,
    Lists,
    TableColumns,
    flags,
    is_text,
    iso_times,
    numbers,
    object_column,
    texts,
)
from nightjar_alerts.tables.decide.kind import kind_of_light_curves
from nightjar_alerts.tables.decide.objects import are_contradictory
from nightjar_alerts.tables.files import Data, TableSource, is_file, open_source
from nightjar_alerts.tables.layout import HISTORIES, Layout, guess_layout, guess_object_columns
from nightjar_alerts.tables.options import NO_FILTER, Guess, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.roles import is_forced
from nightjar_alerts.tables.vocabulary import NO_OBJECT, Flag, last_part, plain

HELD_POINTS: Final = 1_000_000
SHARES: Final = 64
DETECTION_BIT: Final = 4096
"""Of SNANA's ``PHOTFLAG``."""
UNIX_EPOCH_MJD: Final = 40_587.0
MILLISECONDS_PER_DAY: Final = 86_400_000.0
DAYS_PER_YEAR: Final = 365.25
MJD_OF_2000: Final = 51_544.0
CHECKED_OBJECTS: Final = 500
"""Number of objects, spread over the table, that are checked to find out whether it has total flux."""
MIN_CHECKED_POINTS: Final = 5
"""Minimum number of points of such an object."""
SHOWN_NAMES: Final = 5
SHOWN_FILTERS: Final = 20
SHOWN_CHARACTERS: Final = 100
NAMELESS: Final = -1
NOT_STATED: Final = -1
MOVING_ARCSEC: Final = 5.0
"""Largest distance of a known Solar System object to which a row is attributed."""
MAX_NEW_POINTS: Final = 2
"""Largest number of points of an alert that a Solar System object may have caused."""
SAME_EXPOSURE_DAYS: Final = 10.0 / SECONDS_PER_DAY
"""Rows of one filter that are closer in time are one exposure, as in alerts."""
LARGE_NEGATIVE: Final = (-99_999.0, -999_999.0)
"""Fluxes that are no values in any table."""
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
_NO_POINTS: Final = np.zeros(0, _POINT)
Points = NDArray[Any]
"""Rows of :data:`_POINT`: numbers of the object and of the filter, and the code of :data:`REASONS`."""


@dataclass(frozen=True, slots=True, eq=False)
class TableObject:
    """One object of a table, its points in the order of the rows.

    Attributes
    ----------
    mjd : shape (n,), days. flux, flux_err: shape (n,), nJy; NaN where the table has no value.
    band : shape (n,); a name in :data:`models.photometry.FILTERS` if recognised, else the table's text.
    detected : shape (n,), or None if the table has no such column.
    rejected : masks of shape (n,) of the points that cannot be used, by reason.
    metadata : by the names of :data:`models.metadata.KNOWN_COLUMNS`; conflicts: the value that is used and another one
        of each column of metadata whose values differ.
    label, redshift, parent : as the table has them; empty and NaN where it has none.
    flux_kind : ``total`` where the flux is that of the whole source, of which :meth:`light_curve` subtracts the
        medians; empty if unknown.
    ra, dec : position, degrees; both None if the table has none.
    """

    object_id: str
    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: NDArray[np.object_]
    detected: Bool | None = None
    rejected: Mapping[str, Bool] = field(default_factory=dict)
    metadata: Mapping[str, float] = field(default_factory=dict)
    conflicts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    label: str = ""
    redshift: float = float("nan")
    parent: str = ""
    survey: str = ""
    flux_kind: str = ""
    ra: float | None = None
    dec: float | None = None

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
        keep: Any = self.usable() if self.rejected else slice(None)  # a slice copies nothing
        dropped = {reason.replace(" ", "_"): int(bad.sum()) for reason, bad in self.rejected.items()}
        unknown = (
            Counter(str(name) for name in self.band[self.rejected["unknown filter"]])
            if ("unknown filter" in self.rejected)
            else Counter()
        )
        dropped.pop("unknown_filter", None)
        if not len(self.mjd[keep]):
            listed = ", ".join(f"{count} {reason}" for reason, count in (dropped | dict(unknown)).items())
            raise LightCurveError("", "no_usable_points", f"no point can be used ({listed})" if listed else "no points")
        curve = self.columns(keep).light_curve()
        return self.completed(replace(curve, dropped=dropped, unknown_filters=dict(unknown)))

    def columns(self, keep: Any = slice(None)) -> Columns:
        """Return the points of a mask, or all, as columns from which a light curve is built."""
        bands = list(self.band[keep])
        is_total = self.flux_kind == "total"
        flux, levels = without_reference(self.flux[keep], bands) if is_total else (self.flux[keep], {})
        return Columns(
            self.mjd[keep],
            flux,
            self.flux_err[keep],
            bands,
            None if self.detected is None or is_total else self.detected[keep],
            clean_metadata(self.metadata),
            self.object_id,
            survey=self.survey,
            ra=self.ra,
            dec=self.dec,
            reference_flux=levels,
        )

    def completed(self, curve: LightCurve) -> LightCurve:
        """Return a light curve of the columns with the warnings of the object and its values."""
        ignored = [
            PhotometryWarning("implausible_metadata", f"{name} {detail}; it is not used")
            for name, detail in implausible_metadata(self.metadata).items()
        ]
        for name, (used, other) in self.conflicts.items():
            detail = f"rows have different values in column {name!r}: {used:g}, which is used, and {other:g}"
            ignored.append(PhotometryWarning("conflicting_metadata", detail))
        curve = replace(curve, warnings=tuple(ignored)) if ignored else curve
        return curve.with_warnings(check_total=not self.flux_kind)


class About(NamedTuple):
    """Label, redshift, parent and metadata of an object."""

    label: str = ""
    redshift: float = float("nan")
    parent: str = ""
    metadata: Mapping[str, float] = {}


_NOTHING_STATED: Final = About()


class _ObjectRead(NamedTuple):
    name: str
    about: About


@dataclass
class TableReport:
    """Counts of one reading.

    ``objects`` and ``points`` that were yielded, ``unused`` points by reason, ``repeated`` points with the time and
    filter of another one of their object, ``unknown_filters`` by name,
    ``malformed`` rows by reason and ``examples`` of those, ``without_metadata`` objects that ``object_metadata`` lacks,
    ``contradictory`` objects with other values of the same filter at the same time, ``without_position`` objects whose
    position is not used, ``assumptions`` of the reading.
    """

    objects: int = 0
    points: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    unknown_filters: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    without_metadata: list[str] = field(default_factory=list)
    contradictory: list[str] = field(default_factory=list)
    without_position: list[str] = field(default_factory=list)
    assumptions: int = 0

    def add(self, other: "TableReport", name_of: Callable[[str], str] = str) -> None:
        """Add the counts of another part of the same table, of which ``name_of`` returns the names of objects."""
        self.objects += other.objects
        self.points += other.points
        self.unused.update(other.unused)
        self.repeated += other.repeated
        self.unknown_filters.update(other.unknown_filters)
        self.malformed.update(other.malformed)
        self.examples += other.examples
        self.without_metadata += map(name_of, other.without_metadata)
        self.contradictory += map(name_of, other.contradictory)
        self.without_position += map(name_of, other.without_position)

    def lines(self) -> list[str]:
        """Describe unused data, one sentence each; empty if there is none."""
        lines = []
        if self.malformed:
            listed = ", ".join(f"{count} with {reason}" for reason, count in self.malformed.most_common())
            lines.append(f"malformed rows left out: {listed} (first: {'; '.join(self.examples[:3])})")
        if self.unused:
            listed = ", ".join(f"{count} {reason}" for reason, count in self.unused.most_common())
            hint = "; the option mag_err sets one for magnitudes" if self.unused["no error"] else ""
            lines.append(f"points left out: {listed}{hint}")
        if self.repeated:
            lines.append(
                f"repeated points left out: {self.repeated} with the time and filter of another one of their object, "
                "of which the most precise one is used"
            )
        if self.unknown_filters:
            shown = self.unknown_filters.most_common(SHOWN_FILTERS)
            listed = ", ".join(f"{name[:SHOWN_CHARACTERS]} ({count})" for name, count in shown)
            more = f", and {len(self.unknown_filters) - len(shown)} others" * (len(self.unknown_filters) > len(shown))
            lines.append(f"unknown filters: {listed}{more}; the option filters names them")
        if missing := self.without_metadata:
            listed = ", ".join(missing[:SHOWN_NAMES]) + (", ..." if len(missing) > SHOWN_NAMES else "")
            lines.append(f"objects without a row of metadata: {len(missing)} of {self.objects} ({listed})")
        if found := self.contradictory:
            listed = ", ".join(found[:SHOWN_NAMES]) + (", ..." if len(found) > SHOWN_NAMES else "")
            lines.append(
                f"objects with several values of one filter at one time that differ by more than their errors: "
                f"{len(found)} of {self.objects} ({listed}); they may be several objects"
            )
        if found := self.without_position:
            listed = ", ".join(found[:SHOWN_NAMES]) + (", ..." if len(found) > SHOWN_NAMES else "")
            lines.append(
                f"positions not used, because right ascension is outside 0 to 360 or declination outside -90 to 90 "
                f"degrees: {len(found)} of {self.objects} objects ({listed})"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "objects": self.objects,
            "points": self.points,
            "unused_points": dict(self.unused.most_common()),
            "repeated_points": self.repeated,
            "unknown_filters": dict(self.unknown_filters.most_common()),
            "malformed_rows": dict(self.malformed.most_common()),
            "examples": self.examples,
            "objects_without_metadata": len(self.without_metadata),
            "contradictory_objects": len(self.contradictory),
            "objects_without_position": len(self.without_position),
            "assumptions": self.assumptions,
        }


def read_table(
    data: Data,
    options: TableOptions | None = None,
    *,
    name: str = "",
    bounds: Bounds = FILE_BOUNDS,
    checkpoint: Callable[[], None] = lambda: None,
) -> "Table":
    """Open a table and decide what its columns mean.

    Parameters
    ----------
    data : path of a file or of the folder of a HATS catalogue; its content as bytes or as a binary file; a data frame
        of pandas, a table of pyarrow or astropy, a structured array, a mapping of columns, or a list of rows.
    options : options of the reader; the defaults guess everything.
    name : name of content without a path; its ending gives the format, if the content does not.
    bounds : formats and sizes that are read. Tables in memory have no bounds.
    checkpoint : called after each portion of a text, before each look at a column, and before each object; may raise,
        which ends the reading.

    Raises
    ------
    TableQuestion
        When two readings are possible.
    TableError
        When the table cannot be read: :class:`MissingExtra` when a library is missing, :class:`UnsupportedFormat` and
        :class:`TableTooLarge` beyond the bounds.
    """
    return Table(data, options or TableOptions(), name, bounds, checkpoint)


def read_object_metadata(data: Data, bounds: Bounds = FILE_BOUNDS) -> Mapping[str, Mapping[str, float]]:
    """Read a table with one row per object, such as a catalogue of redshifts, for ``TableOptions.object_metadata``.

    Parameters
    ----------
    data : as for :func:`read_table`; a mapping of mappings (of metadata by object) is returned as it is.
    bounds : formats and sizes that are read.

    Raises
    ------
    TableError
        When there is no column of object names or of metadata, or an object has two rows.
    """
    if isinstance(data, Mapping) and all(isinstance(row, Mapping) for row in data.values()):
        return data
    source = open_source(data, bounds=bounds)
    found: dict[str, dict[str, float]] = {}
    object_id, columns = "", dict[str, str]()
    try:
        for batch in source.batches():
            if not object_id:
                object_id, columns = guess_object_columns(source.header, batch)
            values = {}
            for name, column in columns.items():
                stated = _flat(batch[column])
                values[name], bad = numbers(stated)
                if bad.any():
                    raise TableError(f"{stated[int(np.argmax(bad))]!r} in column {column!r} is no number")
            for row, name in enumerate(texts(_flat(batch[object_id]))):
                if name in found:
                    raise TableError(f"object {name!r} has two rows")
                found[name] = {key: float(column[row]) for key, column in values.items() if column[row] == column[row]}
            if is_file(data) and len(found) > bounds.max_objects:
                raise TableTooLarge(f"{source.name} has more than {bounds.max_objects} objects", bounds)
    except TableTooLarge:
        raise
    except TableError as error:
        raise TableError(f"{source.name}: {error}") from None
    return found


class Table:
    """A table whose layout is known. Each iteration reads it from the beginning and yields its objects.

    Attributes
    ----------
    columns : column of each role.
    report : counts of the last iteration, complete when it has ended.
    header : names of the columns.
    """

    def __init__(
        self,
        data: Data,
        options: TableOptions,
        name: str = "",
        bounds: Bounds = FILE_BOUNDS,
        checkpoint: Callable[[], None] = lambda: None,
        layout: Layout | None = None,
    ) -> None:
        self._bounds = bounds if is_file(data) else TRUSTED
        self._checkpoint = checkpoint
        self._source: TableSource = open_source(data, options.format, name, bounds, checkpoint)
        self.options = options
        self.name = self._source.name
        self._lists_of_one = _lists_of_one(self._source.header)
        self.header = (*self._source.header, *sorted(self._lists_of_one))
        self._bands: dict[str, int] = {}
        self._band_names = object_column([])
        self._assumptions = 0
        self._held: tuple[Points, Counter[str]] | None = None
        self._restart()
        if layout is not None:
            self._use(layout)
            return
        sample = next(self._read(None), None)
        if sample is None or not any(len(column) for column in sample.values()):
            examples = "".join(f" ({example})" for example in self._source.problems.examples[:1])
            raise TableError(f"{self.name} is empty: it holds no rows{examples}")
        try:
            self._layout = guess_layout(self.header, self._source.units, sample, options, name or self.name, checkpoint)
        except TableQuestion:
            raise
        except TableError as error:
            raise TableError(f"{self.name}: {error}") from None
        self.columns = dict(self._layout.roles.columns)
        self._note_blocks(self._source.problems.blocks, len(next(iter(sample.values()))))
        if not self._layout.flux_kind:
            self._decide_kind()
        self._assumptions = sum(guess.is_assumption for guess in self.guesses)

    def _use(self, layout: Layout) -> None:
        """Read the table as another one. Raises TableError if it lacks a column."""
        self._layout = layout
        self.columns = dict(layout.roles.columns)
        if missing := sorted({*self._names()} - {*self.header}):
            raise TableError(f"{self.name} has no column {missing[0]!r}, unlike the table before it")

    def _note_blocks(self, blocks: int, rows: int) -> None:
        """Say that blocks of rows between empty lines are one object, unless the table or the options name objects."""
        is_stated = "object_id" in self.columns or "object_id" in self.options.columns or self.options.object_id
        if is_stated or self._layout.roles.nested or not 1 < blocks <= rows / 2:  # every second line may be empty
            return
        text = f"assumed: the {blocks} blocks of rows between empty lines are one object; name objects in a column"
        self._layout = replace(self._layout, guesses=(*self._layout.guesses, Guess("columns.object_id", "", text)))

    @property
    def layout(self) -> Layout:
        """Meaning of the columns, with which other parts of the same table are read."""
        return self._layout

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """Decisions of the reader that the options did not make."""
        return self._layout.guesses

    @property
    def progress(self) -> float:
        """Fraction of the table that the iteration has read."""
        return self._source.progress

    def __iter__(self) -> Iterator[TableObject]:
        seen: set[str] = set()
        for item in self._grouped():
            seen.add(item.object_id)
            yield item
        for name, number in self._numbers.items():
            if name not in seen:  # an object whose lists are empty
                yield self._object(number, _NO_POINTS)
        self.report.malformed.update(self._source.problems.counts)
        self.report.examples.extend(self._source.problems.examples)

    def _restart(self) -> None:
        self.report = TableReport(assumptions=self._assumptions)
        self._numbers: dict[str, int] = {}
        self._objects_read: list[_ObjectRead] = []
        self._metadata_read: dict[int, dict[str, list[float]]] = {}
        self._positions: dict[int, tuple[float, float]] = {}
        self._misplaced: set[int] = set()

    def _decide_kind(self) -> None:
        """Find out from the values of up to :data:`CHECKED_OBJECTS` objects whether the flux is total.

        Raises
        ------
        TableQuestion
            When some are clearly whole sources and others clearly transients.
        """
        layout = self._layout
        points, is_whole = self._first_points()
        if is_whole:  # the first iteration yields them
            self._held = points, self.report.unused.copy()
        keys = np.unique(points["key"])
        checked = points[np.isin(points["key"], keys[:: len(keys) // CHECKED_OBJECTS + 1])]
        kinds: Counter[str] = Counter(
            kind_of_source(item.mjd[keep], item.flux[keep], item.flux_err[keep], item.band[keep])
            for item in self._objects(checked)
            if (keep := item.usable()).sum() >= MIN_CHECKED_POINTS
        )
        decision = kind_of_light_curves(
            {str(kind): count for kind, count in kinds.items()}, layout.usual_kind, layout.roles.survey.name
        )
        # Each light curve of a table of difference fluxes is checked.
        kind: Literal["total", ""] = "total" if decision.value == "total" else ""
        self._layout = replace(layout, flux_kind=kind, guesses=(*layout.guesses, *decision.guesses))

    def _read(self, names: Sequence[str] | None) -> Iterator[TableColumns]:
        """Yield batches of the source; in a table of alerts the history of an alert ends with its own detection."""
        wanted = names or self.header
        own = self._own(wanted)
        read = self.stored(wanted)
        for batch in self._source.batches(None if names is None else read):
            self._checkpoint()
            for name, column in batch.items():
                if own and isinstance(column, Lists) and _of_alert(name):
                    batch[name] = _appended(column, batch.get(own.get(name, "")))
            for name in self._lists_of_one & set(wanted):
                values = batch[own[name]]
                if not isinstance(values, Lists):
                    batch[name] = Lists(np.arange(len(values) + 1), values)
            yield batch

    def _own(self, names: Iterable[str]) -> dict[str, str]:
        """Return the field of the alert's own detection for each column of a history."""
        return {name: own for name in names if (own := _of_alert(name)) in self.header}

    def stored(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the columns of the source that the named columns need, by default those of light curves."""
        wanted = self._names() if names is None else names
        read = dict.fromkeys([*wanted, *self._own(wanted).values()])
        return [name for name in read if name not in self._lists_of_one]

    # Grouping

    def _grouped(self) -> Iterator[TableObject]:
        """Yield the objects that have points."""
        if self._held is not None:
            points, unused = self._held
            self._held, self.report = None, TableReport(unused=unused, assumptions=self._assumptions)
            yield from self._objects(points)
            return
        points, is_whole = self._first_points()
        if is_whole:
            yield from self._objects(points)
            return
        self._restart()
        batches = map(self._points_of, self._read(self._names()))
        yield from self._streamed(batches) if self._is_together() else self._distributed(batches)

    def _names(self) -> list[str]:
        return [*dict.fromkeys([*self._layout.names(), *self.options.minimum])]

    def _first_points(self) -> tuple[Points, bool]:
        """Return the first points, about :data:`HELD_POINTS` at most, and whether these are all."""
        self._restart()
        held, count = [_NO_POINTS], 0
        for points in map(self._points_of, self._read(self._names())):
            held.append(points)
            count += len(points)
            if count > HELD_POINTS:
                return np.concatenate(held), False
        return np.concatenate(held), True

    def _is_together(self) -> bool:
        """Return True when the rows of each object follow each other."""
        column = self._layout.roles.columns.get("object_id")
        ended: set[str] = set()
        current = None
        for batch in self._source.batches([column]) if column else ():
            self._checkpoint()
            for name, _ in groupby(texts(_flat(batch[column or ""]))):
                if name == current:
                    continue
                if name in ended:
                    return False
                ended.add(name)
                current = name
        return True

    def _streamed(self, batches: Iterable[Points]) -> Iterator[TableObject]:
        """Yield each object when the next one begins."""
        rest: list[Points] = []
        for batch in batches:
            if not len(batch):
                continue
            last = int(np.argmax(batch["key"] == batch["key"][-1]))
            if last or (rest and rest[-1]["key"][-1] != batch["key"][-1]):
                yield from self._objects(np.concatenate([*rest, batch[:last]]))
                rest = []
            rest.append(batch[last:].copy())  # without the points before it
            self._check_points(sum(map(len, rest)), batch["key"][-1])
        yield from self._objects(np.concatenate([_NO_POINTS, *rest]))

    def _check_points(self, count: int, key: int) -> None:
        """Raise TableTooLarge for the points of one object."""
        if count > self._bounds.max_points:
            name = self._objects_read[key].name
            raise TableTooLarge(
                f"{self.name}: object {name!r} has more than {self._bounds.max_points} points", self._bounds
            )

    def _distributed(self, batches: Iterable[Points]) -> Iterator[TableObject]:
        """Distribute the points over temporary files by object, and yield the objects of one file after the other."""
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            paths = [Path(folder) / str(share) for share in range(SHARES)]
            with ExitStack() as stack:
                files = [stack.enter_context(path.open("wb")) for path in paths]
                written = 0
                for batch in batches:
                    written += batch.nbytes
                    if written > (bound := self._bounds.temporary_bytes):
                        raise TableTooLarge(
                            f"{self.name} needs temporary files of more than {bound} bytes", self._bounds
                        )
                    share = batch["key"] % SHARES
                    for number in np.unique(share):
                        batch[share == number].tofile(files[int(number)])
            for path in paths:
                points = np.fromfile(path, _POINT)
                keys, counts = np.unique(points["key"], return_counts=True)
                if len(counts):
                    self._check_points(int(counts.max()), int(keys[np.argmax(counts)]))
                yield from self._objects(points)

    def _objects(self, points: Points) -> Iterator[TableObject]:
        """Yield the objects of points in any order, by their numbers."""
        points = points[np.argsort(points["key"], kind="stable")]
        starts = np.flatnonzero(np.diff(points["key"], prepend=NAMELESS))
        for start, end in pairwise([*starts, len(points)]):
            self._checkpoint()
            yield self._object(int(points["key"][start]), points[start:end])

    def _object(self, number: int, points: Points) -> TableObject:
        name, about = self._objects_read[number]
        stated = self._metadata_read.get(number, {})
        if self._layout.others or "detection_id" in self.columns:
            points = _once(points)
        codes, detected = points["code"], points["detected"]
        if len(self._band_names) < len(self._bands):
            self._band_names = object_column(list(self._bands))
        band = self._band_names[points["band"]]
        rejected = {REASONS[code]: codes == code for code in np.unique(codes) if code} if codes.any() else {}
        report, rows = self.report, self.options.object_metadata
        own, columns = dict(rows.get(name, {})), self._layout.metadata
        if rows and name not in rows:
            report.without_metadata.append(name)
        report.objects += 1
        report.points += len(points)
        repeated, are_different = _repeated(points)
        report.repeated += repeated
        if are_different:
            report.contradictory.append(name)
        if number in self._misplaced and number not in self._positions:
            report.without_position.append(name)
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
            {known: values[0] for known, values in stated.items()} | own,
            {columns[known]: values for known, values in stated.items() if len(values) > 1 and known not in own},
            about.label,
            about.redshift,
            about.parent,
            self._layout.survey,
            self._layout.flux_kind,
            *self._positions.get(number, (None, None)),
        )

    # Values

    def _points_of(self, batch: TableColumns) -> Points:
        """Return the points of a batch of rows that have an object; new objects are registered."""
        keys = self._keys_of(batch)
        moving = self._moving(batch, keys)
        pieces = []
        for layout in self._layout.parts:
            for band, columns in layout.roles.sets():
                piece = self._measured(batch, layout, columns, band, keys, moving)
                if layout.roles.wide:
                    piece = piece[piece["code"] != CODES["no brightness"]]
                pieces.append(piece)
        points: Points = np.concatenate(pieces)
        is_named = points["key"] != NAMELESS
        if not is_named.all():
            is_moving = ~is_named & (points["code"] == CODES["Solar System object"])
            self.report.unused["Solar System object"] += int(is_moving.sum())
            self.report.unused["without the name of an object"] += int((~is_named & ~is_moving).sum())
            self.report.unused += Counter()  # without zeros
        return np.compress(is_named, points)

    def _moving(self, batch: TableColumns, keys: NDArray[np.int64]) -> Bool:
        """Return which rows belong to Solar System objects; those with another object's name do not."""
        found = np.zeros(len(keys), np.bool_)
        time = batch[self._layout.roles.all("time")[0]]
        # An alert with a history is not caused by the Solar System object that happens to be near its last detection.
        is_new = np.diff(time.offsets) <= MAX_NEW_POINTS if isinstance(time, Lists) else np.True_
        for name, rule in self._layout.moving.items():
            column = batch[name]
            if isinstance(column, Lists):
                continue
            if rule == "nonzero":
                has_name = "object_id" in self._layout.roles.columns
                found |= is_object_id(column) & ((keys == NAMELESS) | (not has_name))
            else:
                found |= _is_moving(column, rule) & is_new
        return found

    def _keys_of(self, batch: TableColumns) -> NDArray[np.int64]:
        """Return the number of each row's object."""
        rows = len(next(iter(batch.values())))
        column = self._layout.roles.columns.get("object_id")
        only = self.options.object_id or self._source.stem
        if column is not None:
            names = texts(_flat(batch[column]))
            if plain(last_part(column)) in NO_OBJECT:
                names[names == "0"] = ""
        elif self._layout.roles.nested and (self._numbers or rows > 1 or not only):
            first = len(self._numbers) + 1
            names = object_column([f"{only} {row}".strip() for row in range(first, first + rows)])
        else:
            names = object_column([only] * rows)
        first_rows = dict(zip(names[::-1], range(rows - 1, -1, -1), strict=True))
        numbers_of = {"": NAMELESS} if column is not None else {}
        for name in dict.fromkeys(names):
            if name not in numbers_of:
                numbers_of[name] = self._numbers.setdefault(name, len(self._numbers))
            if numbers_of[name] == len(self._objects_read):
                self._objects_read.append(_ObjectRead(name, self._about(batch, first_rows[name])))
        if len(self._objects_read) > self._bounds.max_objects:
            raise TableTooLarge(f"{self.name} has more than {self._bounds.max_objects} objects", self._bounds)
        keys = np.fromiter(map(numbers_of.__getitem__, names), np.int64, rows)
        self._read_metadata(batch, keys)
        if self._layout.position:
            self._read_positions(batch, keys)
        return keys

    def _read_metadata(self, batch: TableColumns, keys: NDArray[np.int64]) -> None:
        """Add the metadata of rows to their objects: the first value that is not missing, and one that differs."""
        for known, name in self._layout.metadata.items():
            values = _first_numbers(batch[name])
            rows = np.flatnonzero((keys != NAMELESS) & np.isfinite(values) & ~np.isin(values, list(SENTINELS)))
            objects, first, index = np.unique(keys[rows], return_index=True, return_inverse=True)
            stated = [
                self._metadata_read.setdefault(int(key), {}).setdefault(known, [value])
                for key, value in zip(objects, values[rows[first]].tolist(), strict=True)
            ]
            used = np.array([found[0] for found in stated])
            for row in np.flatnonzero(values[rows] != used[index]):
                if len(found := stated[index[row]]) == 1:
                    found.append(float(values[rows[row]]))

    def _read_positions(self, batch: TableColumns, keys: NDArray[np.int64]) -> None:
        """Add the positions of new objects: right ascension and declination in the middle of those of their rows.

        A middle value is one of a row, also where right ascensions are on both sides of 0. Only the rows of the first
        batch with the object count.
        """
        ra, dec = (_first_numbers(batch[name]) for name in self._layout.position)
        is_valid = is_position(ra, dec)
        rows = np.flatnonzero((keys != NAMELESS) & is_valid)
        is_stated = np.isfinite(ra) & np.isfinite(dec) & ~np.isin(dec, list(SENTINELS))
        self._misplaced.update(np.unique(keys[(keys != NAMELESS) & is_stated & ~is_valid]).tolist())
        objects, starts, counts = np.unique(np.sort(keys[rows]), return_index=True, return_counts=True)
        middle = starts + (counts - 1) // 2
        middles = [each[rows][np.lexsort((each[rows], keys[rows]))][middle].tolist() for each in (ra, dec)]
        for key, *position in zip(objects.tolist(), *middles, strict=True):
            self._positions.setdefault(key, (position[0], position[1]))

    def _about(self, batch: TableColumns, row: int) -> About:
        layout = self._layout

        def text(role: str) -> str:
            if role not in layout.roles.columns:
                return ""
            column = batch[layout.roles.columns[role]][row : row + 1]
            return next(map(str, texts(column.values[:1] if isinstance(column, Lists) else column)), "")

        if layout.roles.columns.keys().isdisjoint(("label", "redshift", "parent")):
            return _NOTHING_STATED
        column = layout.roles.columns.get("redshift")
        redshift = np.nan if column is None else float(_first_numbers(batch[column][row : row + 1])[0])
        return About(text("label"), redshift, text("parent"))

    def _measured(
        self,
        batch: TableColumns,
        layout: Layout,
        columns: Mapping[str, str],
        band: str,
        keys: NDArray[np.int64],
        moving: Bool,
    ) -> Points:
        """Return the points of one set of columns."""
        time = batch[columns["time"]]
        rows = np.repeat(np.arange(len(keys)), np.diff(time.offsets) if isinstance(time, Lists) else 1)

        def column(name: str) -> Array:
            values = batch[name]
            if not isinstance(values, Lists):
                return values[rows] if isinstance(time, Lists) else values
            if len(values.values) != len(rows):
                raise TableError(
                    f"{self.name}: lists of {name!r} have another length than those of {columns['time']!r}"
                )
            return values.values

        def values(role: str) -> Array | None:
            if role not in columns:
                return None
            found = column(columns[role])
            sentinels = layout.sentinels.get(columns[role], LARGE_NEGATIVE if role in ("flux", "flux_err") else ())
            return _without(found, sentinels) if sentinels else found

        points = np.zeros(len(rows), _POINT)
        code = points["code"]
        points["key"] = keys[rows]
        filters = self._filters(layout, None if layout.roles.wide else values("band"), band, points)
        measured = measure(values, columns, filters, layout, self.options)
        points["flux"], points["flux_err"] = measured.flux, measured.flux_err
        is_detected = NOT_STATED if layout.detected is None else int(layout.detected)
        if (ids := values("detection_id")) is not None:
            points["detected"] = is_object_id(ids)
        else:
            points["detected"] = self._detected(values("detected"), columns.get("detected", ""), is_detected)
        if layout.detected and "mag" in columns:  # rows of a list of detections without a magnitude are limits
            points["detected"][measured.is_limit | ~np.isfinite(measured.flux)] = 0
        if moving.any():
            mark(code, moving[rows], "Solar System object")
        for name, rule in layout.flags.items():
            if name in batch:
                mark(code, _is_flagged(column(name), rule), "flagged by the survey")
        for name, rule in layout.moving.items():
            if isinstance(batch[name], Lists) and rule != "nonzero":
                mark(code, _is_moving(column(name), rule), "Solar System object")
        for name, least in self.options.minimum.items():
            mark(code, ~(_numbers_or_flags(column(name)) >= least), "quality is too low")
        points["mjd"], bad_time = self._mjd(layout, column(columns["time"]))
        mark(code, bad_time, "time is not readable")
        mark(code, ~np.isfinite(points["mjd"]), "no time")
        if self.options.upper_limits == "use":
            points["detected"][measured.is_limit] = 0
        code[code == 0] = measured.code[code == 0]
        return points

    def _mjd(self, layout: Layout, column: Array) -> tuple[Float64, Bool]:
        form = layout.time.format
        mjd, bad = iso_times(texts(column)) if form == "iso" and column.dtype.kind != "M" else numbers(column)
        if form == "jd":
            mjd = mjd - JD_MINUS_MJD
        elif form == "unix":
            mjd = mjd / 86_400.0 + UNIX_EPOCH_MJD
        elif form == "unix_ms":
            mjd = mjd / MILLISECONDS_PER_DAY + UNIX_EPOCH_MJD
        elif form == "year":
            mjd = (mjd - 2000.0) * DAYS_PER_YEAR + MJD_OF_2000
        mjd = mjd + layout.time.offset  # in days, whatever the format
        mjd[(mjd <= -1e5) | (np.abs(mjd) > 1e7)] = np.nan
        if layout.time.is_utc:
            mjd = mjd_tai_of_mjd(mjd, layout.time.shift_seconds)
        return mjd, bad

    def _filters(self, layout: Layout, column: Array | None, band: str, points: Points) -> NDArray[np.object_]:
        """Set the filter of each point; returns their names, empty where they are not known."""
        stated = object_column([band] * len(points)) if column is None else texts(column)
        index_of = {name: index for index, name in enumerate(dict.fromkeys(stated))}
        index = np.fromiter(map(index_of.__getitem__, stated), np.int64, len(points))
        found = [band if column is None else layout.filter(name) for name in index_of]
        bands, codes = np.zeros(len(found), np.int32), np.zeros(len(found), np.int8)
        for here, (name, known) in enumerate(zip(index_of, found, strict=True)):
            reason = "" if known else "filter left out" if known == NO_FILTER else "unknown filter"
            bands[here] = self._bands.setdefault(known or name, len(self._bands))
            codes[here] = CODES[reason if name else "no filter"]
        points["band"], points["code"] = bands[index], codes[index]
        names: NDArray[np.object_] = object_column([known or "" for known in found])[index]
        return names

    def _detected(self, column: Array | None, name: str, known: int) -> NDArray[np.int8] | int:
        if column is None:
            return known
        if name.rpartition(".")[2].lower() == "photflag":
            return np.asarray((_bits(column) & DETECTION_BIT) != 0, np.int8)
        return flags(column).astype(np.int8)


def _of_alert(name: str) -> str:
    """Return the field of an alert's detection for one of its history, empty for other columns."""
    prefix, _, field_name = name.rpartition(".")
    return f"{HISTORIES[prefix]}.{field_name}" if prefix in HISTORIES and not is_forced([prefix]) else ""


def _lists_of_one(header: Sequence[str]) -> set[str]:
    """Return the columns of a history of detections that a table lacks, next to one of forced photometry.

    They hold the alert's own detection.
    """
    prefixes = {name.rpartition(".")[0] for name in header}
    found: set[str] = set()
    for history, own in HISTORIES.items():
        others = [other for other, same in HISTORIES.items() if same == own and is_forced([other])]
        if not is_forced([history]) and history not in prefixes and prefixes & set(others):
            found |= {f"{history}.{name.rpartition('.')[2]}" for name in header if name.rpartition(".")[0] == own}
    return found


def _appended(lists: Lists, last: Column | None) -> Lists:
    """Return lists with one more value at the end of each, missing where ``last`` is None."""
    values = object_column([None] * len(lists)) if last is None or isinstance(last, Lists) else last
    held = lists.values
    if is_text(held) or is_text(values):
        held, values = held.astype(np.object_), values.astype(np.object_)
    return Lists(lists.offsets + np.arange(len(lists) + 1), np.insert(held, lists.offsets[1:], values))


def _flat(column: Column) -> Array:
    if isinstance(column, Lists):
        raise TableError("the column of object names holds lists")
    return column


def _first_numbers(column: Column) -> Float64:
    """Return a column as numbers, of lists their first ones."""
    if not isinstance(column, Lists):
        return numbers(column)[0]
    starts = np.where(np.diff(column.offsets) > 0, column.offsets[:-1], -1)
    return np.append(numbers(column.values)[0], np.nan)[starts]


def _numbers_or_flags(column: Array) -> Float64:
    """Return a column as numbers; of texts that are no numbers, such as ``true``, 1 for yes and 0 for no."""
    values, bad = numbers(column)
    values[bad] = flags(column[bad])
    return values


def _is_flagged(column: Array, rule: Flag) -> Bool:
    """Return which values are bad by a rule."""
    if isinstance(rule, int):
        return np.asarray((_bits(column) & rule) != 0, np.bool_)
    if rule == "true":
        return flags(column)
    if rule == "nonzero":
        return np.asarray(_bits(column) != 0, np.bool_)
    if rule == "date":
        return np.asarray(numbers(column)[0] > EARLIEST_MJD, np.bool_)
    stated = texts(column)
    if rule == "present":
        return np.array([text.lower() not in _ABSENT for text in stated], np.bool_)
    good = {text.lower() for text in rule}
    return np.array([bool(text) and text.lower().removesuffix(".0") not in good for text in stated], np.bool_)


EARLIEST_MJD: Final = 15_020.0
"""MJD of 1900; smaller numbers are no dates of observations."""
_ABSENT: Final = frozenset({"", "false", "0", "none", "null", "nan", "no", "n", "f"})


def is_object_id(column: Array) -> Bool:
    """Return which values are ids, rather than 0 or missing."""
    return np.array([text.lower() not in _ABSENT for text in texts(column)], np.bool_)


def _is_moving(column: Array, rule: str) -> Bool:
    """Return which values mark a Solar System object."""
    if rule == "true":
        return flags(column)
    values = numbers(column)[0]
    if rule == "near":
        return np.asarray((values >= 0) & (values <= MOVING_ARCSEC), np.bool_)
    return np.asarray(values == float(rule), np.bool_)


def _without(column: Array, sentinels: Sequence[float]) -> Array:
    """Return a column with sentinels as missing values."""
    if is_text(column):
        are_negative = max(sentinels) < 0  # most are, and only texts with a sign need to be read
        found = [text for text in set(column) if isinstance(text, str)]
        known = {text for text in found if (not are_negative or "-" in text) and _number(text) in sentinels}
        return object_column([None if text in known else text for text in column]) if known else column
    if column.dtype.kind not in "fiu":
        return column
    bad = np.isin(column, sentinels)
    return np.where(bad, np.nan, column) if bad.any() else column


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _once(points: Points) -> Points:
    """Return points without the detections of exposures that have a usable point of forced photometry, which stands
    for them and becomes a detection.
    """
    order = np.lexsort((points["mjd"], points["band"]))
    ordered = points[order]
    is_new = (np.diff(ordered["band"]) != 0) | ~(np.diff(ordered["mjd"]) < SAME_EXPOSURE_DAYS)
    exposure = np.empty(len(points), np.int64)
    exposure[order] = np.cumsum(np.concatenate(([False], is_new)))
    is_forced_point = (points["detected"] == 0) & (points["code"] == 0)
    is_detection = points["detected"] == 1
    repeated = is_detection & np.isin(exposure, exposure[is_forced_point])
    if not repeated.any():
        return points
    found = np.isin(exposure, exposure[repeated])
    result: Points = points.copy()
    result["detected"][is_forced_point & found] = 1
    kept: Points = result[~repeated]
    return kept


def _repeated(points: Points) -> tuple[int, bool]:
    """Return the number of usable points with the filter and time of another one, and whether values of one filter and
    time differ by more than their errors.
    """
    times = np.sort(points["mjd"])
    if not (times[1:] == times[:-1]).any():
        return 0, False
    good = points[points["code"] == 0]
    order = np.lexsort((good["mjd"], good["band"]))
    ordered = good[order]
    is_same = (np.diff(ordered["mjd"]) == 0) & (np.diff(ordered["band"]) == 0)
    if not is_same.any():
        return 0, False
    starts = np.flatnonzero(np.concatenate(([True], ~is_same)))
    return int(is_same.sum()), any(
        are_contradictory(ordered["flux"][start:end], ordered["flux_err"][start:end])
        for start, end in pairwise([*starts, len(ordered)])
        if end - start > 1
    )


def _bits(column: Array) -> NDArray[np.int64]:
    """Return a column of flags as integers; missing values and what is beyond 53 bits have no flags."""
    values = _numbers_or_flags(column)
    return np.where(np.abs(values) < 2.0**53, values, 0.0).astype(np.int64)
