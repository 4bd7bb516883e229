"""Classes for catalogues of LSDB, computed by Dask.

    import lsdb
    from nightjar_alerts.integrations.lsdb import classify

    catalog = lsdb.open_catalog("dia_object_collection")
    classes = classify(catalog)                    # lazy
    classes.query("unusual").compute()

Each partition is classified where Dask computes it. A worker process has one runtime, however many threads it has.
Needs ``pip install 'nightjar-alerts[onnxruntime,catalog]'``.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from nested_pandas import NestedFrame

from nightjar_alerts.catalog.columns import Columns, kept_type
from nightjar_alerts.catalog.partition import Model, Plan, check_prior, classifier_of, frame_of, models_of
from nightjar_alerts.catalog.reading import TableReading
from nightjar_alerts.inputs import call_options
from nightjar_alerts.tables import Table, TableError, TableOptions
from nightjar_alerts.tables.libraries import MemorySource, batch_of

if TYPE_CHECKING:
    from lsdb.catalog import Catalog

    from nightjar_alerts.core.serializer import RequestedPrior

SAMPLE: Final = 500
"""Rows that decide what the columns mean."""


def classify(
    catalog: "Catalog",
    *,
    model: str | None = None,
    embedding: bool = False,
    prior: "RequestedPrior" = None,
    coverage: float | None = None,
    threads: int = 1,
    **table_options: Any,
) -> "Catalog":
    """Return the catalogue of classes of a catalogue with nested light curves, lazily, with its margin.

    The first rows are read at once, to decide what the columns mean; the light curves of all partitions are then read
    in the same way.

    Parameters
    ----------
    model : name or path of the model that classifies everything; by default the models of each survey. Workers need the
        same path.
    embedding, prior, coverage : as for :meth:`nightjar_alerts.Classifier.classify`.
    threads : runs of the network at the same time in each worker process.
    table_options : of :class:`nightjar_alerts.TableOptions`.

    Returns
    -------
    A row for each row of ``catalog``, with its name, position and index and the columns of ``nightjar catalog``. A row
    that cannot be classified has the reason.

    Raises
    ------
    PriorError
        If no model can use the prior.
    TableError
        If the table cannot be read; :class:`nightjar_alerts.TableQuestion` if it can be read in two ways.

    When it is computed, an error names the partition and the object.
    """
    options = TableOptions(**table_options)
    sample = catalog.head(SAMPLE)
    if not len(sample):
        raise TableError("the catalogue has no rows")
    source = _source(sample, "the catalogue")
    reading = TableReading(Table(source, options).layout, options)
    if not reading.is_nested:
        raise TableError("the catalogue has a row for each observation; nest its light curves with LSDB's nest_lists")
    info = catalog.hc_structure.catalog_info
    names = [reading.id_column, info.ra_column, info.dec_column]
    kept = {name: kind for name, kind in _types(catalog.meta).items() if name in names}
    reading = TableReading(reading.layout, options, tuple(kept))
    classifier = classifier_of(Model(model, threads))
    check_prior(classifier, prior)
    classes, bands, models = models_of(classifier)
    wanted = call_options({}, embedding=embedding, prior=prior, coverage=coverage)
    columns = Columns("rows", classes, bands, kept, embedding, has_position=True)
    run = hashlib.sha256(repr((wanted, models, table_options)).encode()).hexdigest()[:16]
    plan = Plan(run, Model(model, threads), wanted, columns, reading, Path(), options)
    meta = _frame(columns.schema.empty_table(), catalog.meta.index)
    return catalog.map_partitions(_classified, plan, meta=meta, include_pixel=True)


def _classified(frame: Any, pixel: Any, plan: Plan) -> Any:
    """Return the classes of a partition, with its index."""
    if not len(frame):
        return _frame(plan.columns.schema.empty_table(), frame.index)
    name = f"Norder={pixel.order}/Npix={pixel.pixel}"
    return _frame(frame_of(plan, _source(frame, name), name), frame.index)


def _source(frame: Any, name: str) -> MemorySource:
    batch, units = batch_of(frame)
    return MemorySource(batch, name, units=units)


def _types(meta: Any) -> dict[str, Any]:
    """Return the Arrow types of the columns of a frame that are not nested."""
    names = [name for name in meta.columns if name not in meta.nested_columns]
    schema = pa.Table.from_pandas(meta[names], preserve_index=False).schema
    return {field.name: kept_type(field.type) for field in schema if not field.type.num_fields}


def _frame(table: Any, index: Any) -> Any:
    """Return an Arrow table as a frame of nested-pandas with an index."""
    return NestedFrame(table.to_pandas(types_mapper=pd.ArrowDtype).set_index(index))
