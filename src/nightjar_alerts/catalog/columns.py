"""Columns of a catalogue of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.results import Result

RowKind = Literal["rows", "objects", "packets"]
"""What a row of the input is: an object with its light curve in lists, or one observation, or a file of packets."""
PROBABILITY: Final = "p_"
POINTS: Final = "points_"
_EMPTY: Final[Mapping[str, Any]] = {}


def kept_type(kind: Any) -> Any:
    """Return the Arrow type in the output of a column of the input: decimals with a fraction are read as numbers."""
    return pa.float64() if pa.types.is_decimal(kind) and kind.scale else kind


@dataclass(slots=True)
class Row:
    """What is known of a row before it is classified.

    Attributes
    ----------
    observations : number of observations, including unusable ones.
    last_mjd : time of the last usable observation, MJD (TAI).
    kept : values of the columns of the input that the output has, too.
    reason, detail : why the row is not classified; empty if it is to be.
    joined : ids of the rows that were joined.
    source : file of a packet.
    unchanged : index of the row in an earlier catalogue, which is copied from there.
    """

    object_id: str
    observations: int | None = None
    last_mjd: float | None = None
    ra: float | None = None
    dec: float | None = None
    kept: tuple[Any, ...] = ()
    reason: str = ""
    detail: str = ""
    joined: Sequence[str] = ()
    source: str = ""
    unchanged: int | None = None


@dataclass(frozen=True)
class Columns:
    """Columns of the output.

    Attributes
    ----------
    kind : of the rows of the input.
    classes, bands : of the models.
    kept : Arrow type of each column of the input that the output has, too.
    """

    kind: RowKind
    classes: tuple[str, ...]
    bands: tuple[str, ...]
    kept: Mapping[str, Any] = field(default_factory=dict)
    embedding: bool = False
    joined: bool = False
    has_position: bool = False
    """Whether the position is among the kept columns."""

    def identity(self) -> dict[str, Any]:
        """Return the Arrow type of each column that says what was classified."""
        found: dict[str, Any] = {"object_id": pa.string()}
        if self.kind == "packets":
            found |= {"alert_id": pa.string(), "source": pa.string()}
        if self.joined:
            found["joined_ids"] = pa.list_(pa.string())
        if not self.has_position:
            found |= {"ra": pa.float64(), "dec": pa.float64()}
        return {**self.kept, **{name: kind for name, kind in found.items() if name not in self.kept}}

    def results(self) -> dict[str, Any]:
        """Return the Arrow type of each column of the classification."""
        return {
            "class": pa.string(),
            "confidence": pa.float32(),
            **{f"{PROBABILITY}{name}": pa.float32() for name in self.classes},
            "prediction_set": pa.list_(pa.string()),
            "novelty": pa.float32(),
            "unusual": pa.bool_(),
            "subtype": pa.string(),
            "status": pa.string(),
            "reason": pa.string(),
            "detail": pa.string(),
            "warnings": pa.list_(pa.string()),
            **{f"{POINTS}{name}": pa.int32() for name in self.bands},
            "observations": pa.int64(),
            "last_mjd": pa.float64(),
            "model": pa.string(),
            "model_sha256": pa.string(),
            **({"embedding": pa.list_(pa.float32())} if self.embedding else {}),
        }

    @property
    def schema(self) -> Any:
        """Arrow schema of the output."""
        return pa.schema(list((self.identity() | self.results()).items()))

    def table(self, rows: Sequence[tuple[Row, Result | None]]) -> Any:
        """Return the Arrow table of classified rows."""
        identity = self._identity([row for row, _ in rows], [result for _, result in rows])
        values = identity | self._results(rows)
        return pa.Table.from_arrays([values[name] for name in self.schema.names], schema=self.schema)

    def _identity(self, rows: Sequence[Row], results: Sequence[Result | None]) -> dict[str, Any]:
        kept = {
            name: pa.array([row.kept[number] for row in rows], kind, from_pandas=True)
            for number, (name, kind) in enumerate(self.kept.items())
        }
        alerts = [None if result is None else result.alert_id for result in results]
        found = {
            "object_id": _texts([row.object_id for row in rows]),
            "alert_id": _texts(alerts),
            "source": _texts([row.source for row in rows]),
            "joined_ids": pa.array([list(row.joined) for row in rows], pa.list_(pa.string())),
            "ra": pa.array([row.ra for row in rows], pa.float64()),
            "dec": pa.array([row.dec for row in rows], pa.float64()),
        }
        return found | kept

    def _results(self, rows: Sequence[tuple[Row, Result | None]]) -> dict[str, Any]:
        fields = [_NONE if result is None else result for _, result in rows]
        probabilities = np.full((len(rows), len(self.classes)), np.nan, np.float32)
        for index, each in enumerate(fields):
            if found := each.probabilities:
                if tuple(found) == self.classes:
                    probabilities[index] = tuple(found.values())
                else:  # of a model with classes of its own
                    probabilities[index] = [found.get(name, np.nan) for name in self.classes]
        points = np.zeros((len(rows), len(self.bands)), np.int32)
        for index, each in enumerate(fields):
            counts = each.points_per_band
            points[index] = [counts.get(name, 0) for name in self.bands]
        models = [None if result is None else result.model for _, result in rows]
        columns = {
            "class": _texts([each.class_name for each in fields]),
            "confidence": pa.array([each.confidence for each in fields], pa.float32()),
            "prediction_set": pa.array([each.prediction_set for each in fields], pa.list_(pa.string())),
            "novelty": pa.array([each.novelty for each in fields], pa.float32()),
            "unusual": pa.array([each.unusual for each in fields], pa.bool_()),
            "subtype": _texts([each.subtype.class_name if each.subtype else None for each in fields]),
            "status": _texts([_status(row, each.status) for (row, _), each in zip(rows, fields, strict=True)]),
            "reason": _texts([row.reason or each.reason or None for (row, _), each in zip(rows, fields, strict=True)]),
            "detail": _texts([row.detail or each.detail or None for (row, _), each in zip(rows, fields, strict=True)]),
            "warnings": pa.array([[one.reason for one in each.warnings] for each in fields], pa.list_(pa.string())),
            "observations": pa.array([row.observations for row, _ in rows], pa.int64()),
            "last_mjd": pa.array([row.last_mjd for row, _ in rows], pa.float64(), from_pandas=True),
            "model": _texts([f"{model.name} {model.version}" if model else None for model in models]),
            "model_sha256": _texts([model.sha256 if model else None for model in models]),
        }
        for number, name in enumerate(self.classes):
            columns[f"{PROBABILITY}{name}"] = pa.array(probabilities[:, number], from_pandas=True)
        for number, name in enumerate(self.bands):
            columns[f"{POINTS}{name}"] = pa.array(points[:, number])
        if self.embedding:
            columns["embedding"] = pa.array([each.embedding for each in fields], pa.list_(pa.float32()))
        return columns


UNREADABLE: Final = "unreadable"
"""Reason of a file, or a part of one, that could not be read."""


def _status(row: Row, status: str) -> str:
    if not row.reason:
        return status
    return "rejected" if row.reason == UNREADABLE else "abstained"


class _None:
    """A result without a classification, for rows that were not classified."""

    class_name = confidence = prediction_set = novelty = unusual = subtype = embedding = None
    status = reason = detail = ""
    warnings = ()
    probabilities = points_per_band = _EMPTY


_NONE: Final[Any] = _None()


def _texts(values: Sequence[str | None]) -> Any:
    return pa.array([None if value is None else without_surrogates(value) for value in values], pa.string())


def flat(table: Any) -> Any:
    """Return a table without lists: texts in a list are separated by ``;``, embeddings are left out."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_list(column.type):
            columns[name] = column
        elif pa.types.is_string(column.type.value_type):
            joined = [None if values is None else ";".join(values) for values in column.to_pylist()]
            columns[name] = pa.array(joined, pa.string())
    return pa.table(columns)
