"""Alert records to the few values that are needed, several times faster than decoding them.

A record is walked in steps made once for its schema (:mod:`service.alerts.steps`): one regular expression for every
stretch of plain fields, another for the rows of each list of observations, a jump over each image. Where the bytes are
in any way unusual fastavro reads the record again, and says what is wrong with bytes that are wrong: the two ways give
the same values and refuse the same bytes.
"""

import io
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from service.alerts import avro
from service.alerts.avro import Schema
from service.alerts.steps import Step, Table, Unusual, Values, steps_of


class Decoder:
    """Reads records of one schema through a projection.

    Parameters
    ----------
    keep : for each record by full name, the fields wanted; others are skipped.

    Attributes
    ----------
    projection : the reader schema of the slow way.
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]]) -> None:
        self.schema = schema
        self.projection = avro.project(schema, keep)
        self._keep = keep
        self._tables = _tables(schema, keep)

    @cached_property
    def _steps(self) -> list[Step] | None:
        return steps_of(self.schema, self._keep)  # takes milliseconds, and not every plan is for bytes

    @property
    def fast(self) -> bool:
        """Whether the schema allows the fast way."""
        return self._steps is not None

    def read(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """Values of the record at ``start``, and where it ends.

        Returns
        -------
        The wanted fields, nested as the record is, its lists of records as :class:`Table`.

        Raises
        ------
        PacketError
            ``truncated_avro`` or ``malformed_avro``.
        """
        return self.read_fast(data, start) or self.read_slow(data, start)

    def read_fast(self, data: bytes, start: int = 0) -> tuple[Values, int] | None:
        """The same; None where only fastavro can tell."""
        if self._steps is None:
            return None
        values: Values = {}
        at = start
        try:
            for step in self._steps:
                at = step(data, at, values)
        except (Unusual, UnicodeDecodeError):
            return None
        return values, at

    def read_slow(self, data: bytes, start: int = 0) -> tuple[Values, int]:
        """The same, by fastavro."""
        stream = io.BytesIO(data)
        stream.seek(start)
        record: dict[str, Any] = avro.read_record(stream, self.schema, self.projection)
        for name, columns in self._tables.items():
            if record[name] is not None:
                record[name] = Table.of_rows(record[name], columns)
        return record, stream.tell()


def _tables(schema: Schema, keep: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Names of the wanted lists of records, each with the names of the columns wanted of it."""
    tables = {}
    for name, kind in schema.fields(schema.root).items():
        is_list = isinstance(bare := avro.bare(kind), dict) and bare["type"] == "array"
        if name in keep[schema.name] and is_list and (item := schema.definition(kind)) is not None:
            tables[name] = [field["name"] for field in item["fields"] if field["name"] in keep[item["name"]]]
    return tables
