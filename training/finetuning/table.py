"""Read a labelled table: light curves, classes, related objects, and what was left out.

Labels and groups are columns of a table like those that ``nightjar classify`` reads. An object is left out if it has no
label, several ones, no usable light curve, or a class of fewer than :data:`MIN_OBJECTS` objects; all are counted.

Legend: O objects.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from nightjar_alerts.models.lightcurve import Int64, LightCurve, LightCurveError
from nightjar_alerts.tables import Table, TableObject, TableOptions, read_table
from nightjar_alerts.tables.vocabulary import last_part, plain
from nightjar_alerts.training.importers.tables import (
    MAX_CLASSES,
    MISSING,
    LabelError,
    check_label,
    class_of_label,
    find_label,
    objects_with_several_labels,
    other_labels,
    without_label,
)

MIN_OBJECTS: Final = 10
"""Smallest number of independent objects of a class."""
SAME_PLACE_ARCSEC: Final = 1.0
HOSTS: Final = frozenset({"parent", "parentid", "host", "hostname", "hostid"})
"""Plain names of columns of what related objects share."""
SHOWN_VALUES: Final = 6
LONGEST_LABEL: Final = 100
"""Largest number of characters of a class, which every answer and metric repeats."""
LARGEST_GROUP: Final = 0.2
"""Largest share of the objects that may be related; more is a column that groups nothing."""


@dataclass(frozen=True, eq=False)
class LabelledCurves:
    """Labelled light curves.

    Attributes
    ----------
    label_O : class of each object, an index into ``classes``.
    group_O : related objects have the same number.
    flux_kind : ``total`` if the table has total fluxes.
    left_out : number of objects by reason.
    notes : guesses, and points that were left out, one sentence each.
    warnings : classes that were left out, and labels that look alike.
    label, group : names of the columns.
    """

    curves: Sequence[LightCurve]
    label_O: Int64
    group_O: Int64
    classes: tuple[str, ...]
    flux_kind: str
    label: str
    group: str
    left_out: Mapping[str, int]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.curves)

    @property
    def counts(self) -> dict[str, int]:
        """Number of objects of each class."""
        return dict(zip(self.classes, np.bincount(self.label_O, minlength=len(self.classes)).tolist(), strict=True))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of points, labels and groups."""
        digest = sha256()
        for curve in self.curves:
            metadata = np.array([value for _, value in sorted(curve.metadata.items())], dtype=np.float64)
            digest.update("\0".join((curve.object_id, curve.survey, *sorted(curve.metadata))).encode())
            for column in (curve.mjd, curve.flux, curve.flux_err, curve.band, curve.detected, metadata):
                digest.update(np.ascontiguousarray(column).tobytes())
        for numbers in (self.label_O, self.group_O):
            digest.update(numbers.astype(np.int64).tobytes())
        digest.update("\0".join(self.classes).encode())
        return digest.hexdigest()


@dataclass
class _Reading:
    """Objects read so far."""

    items: list[TableObject] = field(default_factory=list)
    curves: list[LightCurve] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def read_labelled(
    data: Any, *, label: str = "", group: str = "", options: TableOptions | None = None
) -> LabelledCurves:
    """Read a labelled table.

    Parameters
    ----------
    data : path of a table, or a table in memory, as :func:`tables.read_table` takes it.
    label, group : columns of the class and of what related objects share; empty: found by name.

    Raises
    ------
    LabelError
        If no column, or more than one, may be the label, or fewer than two classes have enough objects.
    TableError
        If the table cannot be read.
    """
    options, label = without_label(options or TableOptions(), label)
    table = read_table(data, options)
    found: list[str] = []
    check_label(data, table, options, label)
    if not label:
        label = find_label(data, table, options)
        found.append(f"the label is column {label!r} (--label {label})")
    if not (group := group or options.columns.get("parent", "")) and (group := _find_group(table)):
        found.append(f"related objects share column {group!r} (--group {group})")
    columns = {**options.columns, "label": label} | ({"parent": group} if group else {})
    table = read_table(data, replace(options, columns=columns))
    several = objects_with_several_labels(data, table, options, label)
    reading = _read(table, several)
    notes = [*map(str, table.guesses), *found, *table.report.lines()]
    return _chosen(reading, label, group, table, notes, partial(other_labels, data, table, options, label))


def _find_group(table: Table) -> str:
    found = [name for name in table.header if plain(last_part(name)) in HOSTS]
    return found[0] if len(found) == 1 else ""


def _read(table: Table, several: frozenset[str]) -> _Reading:
    reading = _Reading()
    for item in table:
        label = class_of_label(item.label)
        if item.object_id in several:
            reading.left_out["with several labels"] += 1
        elif label.lower() in MISSING:
            reading.left_out["without a label"] += 1
        else:
            try:
                reading.curves.append(item.light_curve())
            except LightCurveError as error:
                no_points = error.reason == "no_usable_points"
                reading.left_out["without a usable point" if no_points else f"not valid: {str(error)[:80]}"] += 1
                continue
            reading.labels.append(label)
            reading.items.append(item)
    return reading


def _chosen(
    reading: _Reading, label: str, group: str, table: Table, notes: list[str], others: Callable[[], str]
) -> LabelledCurves:
    """Leave out small classes, and check what is left.

    Parameters
    ----------
    others : returns the end of a sentence that lists other columns that may be the label.
    """
    objects, left_out, warnings = len(reading.curves), reading.left_out, list[str]()
    if not objects:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "it has no objects"
        detail = f" ({'; '.join(table.report.lines())})" if table.report.lines() else ""
        raise LabelError(f"{table.name} has no labelled light curve that can be used: {reasons}{detail}")
    values = Counter(reading.labels)
    for value in values:
        if len(value) > LONGEST_LABEL or not value.isprintable():
            raise LabelError(
                f"column {label!r} has the value {value[:30]!r} of {len(value)} characters; a class is at most "
                f"{LONGEST_LABEL} printable characters: shorten it, or name another column with --label"
            )
    if len(values) > MAX_CLASSES or (len(values) > 2 and len(values) > objects // 2):
        why = "every object has its own value" if len(values) == objects else "it names objects rather than classes"
        raise LabelError(
            f"column {label!r} has {len(values)} values for {objects} objects: {why}; name another column with "
            f"--label{others()}"
        )
    if same := _alike(values):
        warnings.append(f"labels that differ only in case or blanks are different classes: {same}")
    group_O = related(reading.items)
    how = f"column {group!r}" if group else "positions within an arcsecond"
    independent = {value: len({int(group_O[row]) for row in rows}) for value, rows in _rows_of(reading.labels).items()}
    small = {value: values[value] for value, number in independent.items() if number < MIN_OBJECTS}
    classes = tuple(sorted(values.keys() - small.keys()))

    def counted(value: str) -> str:
        count, number = values[value], independent[value]
        return str(count) if number == count else f"{count}, of which {number} independent by {how}"

    if small:
        listed = ", ".join(f"{value} ({counted(value)})" for value in sorted(small))
        warnings.append(
            f"classes of fewer than {MIN_OBJECTS} independent objects are left out: {listed}; give them the label of a "
            "class that they can join, or more objects"
        )
        left_out["of a class of fewer than ten independent objects"] += sum(small.values())
    if len(classes) < 2:
        found = ", ".join(f"{value} ({counted(value)})" for value, _ in values.most_common(SHOWN_VALUES))
        reasons = "".join(f"; {count} {reason}" for reason, count in left_out.items())
        raise LabelError(
            f"a classifier needs two classes of {MIN_OBJECTS} independent objects each; column {label!r} has {found}"
            f"{reasons}"
        )
    rows = np.array([row for row, value in enumerate(reading.labels) if value in classes])
    if (largest := int(np.bincount(group_O[rows]).max())) > LARGEST_GROUP * len(rows):
        raise LabelError(
            f"{largest} of {len(rows)} objects are related by {how}, so no part is left to test on; "
            "name another column with --group"
        )
    number = {value: index for index, value in enumerate(classes)}
    return LabelledCurves(
        curves=[reading.curves[row] for row in rows],
        label_O=np.array([number[reading.labels[row]] for row in rows], dtype=np.int64),
        group_O=np.unique(group_O[rows], return_inverse=True)[1].astype(np.int64),
        classes=classes,
        flux_kind=reading.items[0].flux_kind,
        label=label,
        group=group,
        left_out=dict(left_out.most_common()),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _alike(values: Iterable[str]) -> str:
    """List the labels that differ only in case or blanks; empty if there are none."""
    groups: dict[str, list[str]] = {}
    for value in values:
        groups.setdefault("".join(normalize("NFKC", value).casefold().split()), []).append(repr(value))
    return "; ".join(" and ".join(same) for same in groups.values() if len(same) > 1)


def _rows_of(labels: Sequence[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(labels):
        rows.setdefault(value, []).append(row)
    return rows


def related(items: Sequence[TableObject]) -> Int64:
    """Return a number for each object that related ones share: of one parent, or within an arcsecond."""
    first: dict[str, int] = {}
    pairs = [(row, first.setdefault(item.parent, row)) for row, item in enumerate(items) if item.parent]
    placed = [row for row, item in enumerate(items) if item.ra is not None and item.dec is not None]
    if placed:
        place: NDArray[np.float64] = np.array([(items[row].ra, items[row].dec) for row in placed], dtype=np.float64)
        # Equal positions, such as 0, 0 of many objects, would be pairs of each with each.
        place, first_row, number = np.unique(place, axis=0, return_index=True, return_inverse=True)
        pairs += [(row, placed[first_row[same]]) for row, same in zip(placed, number.ravel(), strict=True)]
        ra, dec = np.radians(place.T)
        points = np.column_stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)])
        near = cKDTree(points).query_pairs(np.radians(SAME_PLACE_ARCSEC / 3600), output_type="ndarray")
        pairs += [(placed[first_row[one]], placed[first_row[other]]) for one, other in near]
    one, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(len(items), len(items)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
