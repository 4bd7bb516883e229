"""Reader of tables of light curves: CSV, JSON, ECSV, FITS, VOTable, Parquet, HATS, and tables in memory.

:func:`read_table` opens a table, decides what its columns mean, and yields one :class:`TableObject` per object::

    table = read_table("photometry.csv")
    for guess in table.guesses:
        print(guess)
    for item in table:
        curve = item.light_curve()

CSV, text and JSON need numpy only. The other formats need pandas, pyarrow or astropy (the ``tables`` extra), which are
imported when such a table is opened.

``sniff`` tells formats apart, ``files`` opens a source of columns: ``text``, ``documents`` (JSON) or ``libraries``.
``layout`` runs the deciders in ``decide`` in order; they see the facts of ``evidence``, the columns of ``roles``, and
the names in ``vocabulary.toml`` and ``layouts``, a file for each survey. ``reader`` groups rows into objects, whose
fluxes ``brightness`` computes.
"""

from nightjar_alerts.tables.bounds import (
    FILE_BOUNDS,
    TEXT_FORMATS,
    Bounds,
    TableTooLarge,
    UnsupportedFormat,
)
from nightjar_alerts.tables.options import (
    Choice,
    Guess,
    MissingExtra,
    TableError,
    TableOptions,
    TableQuestion,
)
from nightjar_alerts.tables.reader import About, Table, TableObject, read_object_metadata, read_table

__all__ = [
    "FILE_BOUNDS",
    "TEXT_FORMATS",
    "About",
    "Bounds",
    "Choice",
    "Guess",
    "MissingExtra",
    "Table",
    "TableError",
    "TableObject",
    "TableOptions",
    "TableQuestion",
    "TableTooLarge",
    "UnsupportedFormat",
    "read_object_metadata",
    "read_table",
]
