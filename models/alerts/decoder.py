"""Alert records to the few values that are needed, several times faster than decoding them.

A record is walked in steps made once for its schema (:mod:`models.alerts.steps`): one regular expression for every
stretch of plain fields, another for the rows of each list of observations, a jump over each image. Where the bytes are
in any way unusual fastavro reads the record again, and says what is wrong with bytes that are wrong: the two ways give
the same values and refuse the same bytes.
"""

import io
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from models.alerts import avro
from models.alerts.avro import Schema
from models.alerts.patterns import Unusual
from models.alerts.steps import Step, Table, Values, steps_of

READS_BEFORE_COMPILING: Final = 3
"""Records of a stranger's schema that fastavro reads. A survey sends thousands with one schema, and compiling it takes
tens of milliseconds; whoever sends a new schema with every packet would have all of them compiled for nothing."""


class Decoder:
    """Reads records of one schema through a projection.

    Parameters
    ----------
    keep : for each record by full name, the fields wanted; others are skipped.
    known : whether the schema is one of ours or of a registry, which is compiled for its first record.

    Attributes
    ----------
    projection : the reader schema of the slow way.
    """

    def __init__(self, schema: Schema, keep: Mapping[str, frozenset[str]], known: bool = True) -> None:
        self.schema = schema
        self.projection = avro.project(schema, keep)
        self._keep = keep
        self._tables = _tables(schema, keep)
        self._slow_reads = 0 if known else READS_BEFORE_COMPILING  # two threads that miscount cost one slow read more

    @cached_property
    def _steps(self) -> list[Step] | None:
        steps = steps_of(self.schema, self._keep)  # takes milliseconds, and not every plan is for bytes
        re.purge()  # else Python's own cache keeps these patterns, and strangers fill it
        return steps

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
        if self._slow_reads:
            self._slow_reads -= 1
            return self.read_slow(data, start)
        return self.read_fast(data, start) or self.read_slow(data, start)

    def read_fast(self, data: bytes, start: int = 0) -> tuple[Values, int] | None:
        """Decode by the compiled plan; None where only fastavro can tell."""
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
        """Decode with fastavro, the slow path for schemas that the plan cannot handle."""
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
