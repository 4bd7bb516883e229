"""Objects of the tables that :mod:`tables` reads, with labels and metadata from a table of objects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from nightjar_alerts.tables import About, Table, TableError, TableObject, TableOptions, read_table
from nightjar_alerts.tables.columns import Lists, numbers, texts
from nightjar_alerts.tables.files import TableSource, is_table, open_source
from nightjar_alerts.tables.vocabulary import last_part, plain


def tables_in(source: Path) -> list[Path]:
    """Return the tables of ``source``, a file or a folder. Raises TableError if there are none."""
    if not source.exists():
        raise TableError(f"{source} does not exist")
    if source.is_file():
        return [source]
    paths = [
        path
        for path in sorted(source.rglob("*"))
        if path.is_file() and not path.name.startswith(("_", ".")) and is_table(path)
    ]
    if not paths:
        raise TableError(f"{source} holds no tables")
    return paths


LABELS: Final = (
    *("label", "class", "type", "sntype", "classname", "spectype", "spectroscopictype", "claimedtype", "trueclass"),
    *("classification", "tnstype", "objtype", "objecttype", "vartype", "variabletype", "truetarget", "target"),
)
"""Plain names of columns of labels, the usual ones first."""


def guess_label(header: Sequence[str]) -> str:
    """Return the column of labels by its name, empty if there is none."""
    found = [(LABELS.index(key), name) for name in header if (key := plain(last_part(name))) in LABELS]
    return min(found)[1] if found else ""


MISSING: Final = frozenset(
    {"", "nan", "inf", "-inf", "none", "null", "na", "n/a", "-", "--", "?", "unknown", "unlabelled", "unlabeled"}
)
"""Texts that stand for no label."""
SHOWN_VALUES: Final = 6
MAX_CLASSES: Final = 100


class LabelError(ValueError):
    """The table has no labels that can be used."""


_NUMBER: Final = re.compile(r"[-+]?\d{1,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_EXACT: Final = 2**53
"""Integers below this are exact as floats."""


def is_number(label: str) -> bool:
    """Return whether a label is a number in digits."""
    return _NUMBER.fullmatch(label.strip()) is not None


def class_of_label(label: str) -> str:
    """Return the class of a label: its text without blanks around it, a whole number as an integer.

    Formats of tables write the same number differently: ``1``, ``1.0``, ``1.000e+00``.
    """
    text = label.strip()
    if not is_number(text):
        return text
    value = float(text)
    return str(int(value)) if value.is_integer() and abs(value) < _EXACT else text


def without_label(options: TableOptions, label: str) -> tuple[TableOptions, str]:
    """Return options without the column of labels, and this column, empty if it is to be found by its name."""
    columns = dict(options.columns)
    given = columns.pop("label", "")
    return replace(options, columns=columns), label or given


def check_label(data: Any, table: Table, options: TableOptions, label: str) -> None:
    """Raise LabelError if the named column is that of the objects."""
    if label == table.columns.get("object_id"):
        raise LabelError(
            f"column {label!r} names the objects, so every object has its own value; name another column with "
            f"--label{other_labels(data, table, options, label)}"
        )


def other_labels(data: Any, table: Table, options: TableOptions, label: str) -> str:
    """Return the end of a sentence that lists the other columns that may be the label, empty if there is none."""
    used = {label, *(name for role, name in table.columns.items() if role != "label")}
    listed = _listed(data, options, [name for name in table.header if name not in used], every=False)
    return f"; it may be {listed}" if listed else ""


def find_label(data: Any, table: Table, options: TableOptions) -> str:
    """Return the one column whose name is that of labels. Raises LabelError with the candidates otherwise."""
    used = set(table.columns.values())
    known = [name for name in table.header if plain(last_part(name)) in LABELS and name not in used]
    if len(known) == 1:
        return known[0]
    if known:
        listed = _listed(data, options, known, every=True)
        raise LabelError(f"{len(known)} columns may be the label; name one with --label: {listed}")
    named = other_labels(data, table, options, "")
    raise LabelError(f"{table.name} has no column with a usual name of labels; name one with --label{named}")


def _listed(data: Any, options: TableOptions, names: Sequence[str], *, every: bool) -> str:
    """Describe columns by some of their values; without ``every`` only those that repeat their values."""
    batch = next(iter(open_source(data, options.format).batches(list(names))), {}) if names else {}
    described = []
    for name in names:
        column = batch.get(name)
        if column is None or isinstance(column, Lists):
            continue
        values, rows = list(dict.fromkeys(map(class_of_label, map(str, texts(column))))), len(column)
        if not every and not 2 <= len(values) <= max(2, min(MAX_CLASSES, rows // 2)):
            continue
        more = ", ..." if len(values) > SHOWN_VALUES else ""
        described.append(f"{name} ({', '.join(value[:30] for value in values[:SHOWN_VALUES])}{more})")
    return "; ".join(described)


def objects_with_several_labels(data: Any, table: Table, options: TableOptions, label: str) -> frozenset[str]:
    """Return the objects whose rows have different labels."""
    name = table.columns.get("object_id", "")
    if not name:
        return frozenset()
    seen: dict[str, str] = {}
    several = set()
    for batch in open_source(data, options.format).batches([name, label]):
        objects, labels = batch[name], batch[label]
        if isinstance(objects, Lists):
            return frozenset()
        names = texts(objects)
        if isinstance(labels, Lists):
            names, labels = np.repeat(names, np.diff(labels.offsets)), labels.values
        for one, value in zip(map(str, names), map(str, texts(labels)), strict=True):
            found = class_of_label(value)
            if found.lower() not in MISSING and seen.setdefault(one, found) != found:
                several.add(one)
    return frozenset(several)


def read_tables(
    paths: Sequence[Path], options: TableOptions, about: Mapping[str, About] | None = None
) -> Iterator[TableObject]:
    """Yield the objects of all files in turn; all points of an object must be in one file.

    Parameters
    ----------
    about : properties by object id, instead of those in the files.

    Raises
    ------
    TableError
        If a file is damaged, empty or ambiguous, or lacks a column.
    """
    for path in paths:
        for item in read_table(path, options):
            if about is None:
                yield item
            else:
                facts = about.get(item.object_id, About())
                yield replace(item, **facts._asdict())


def read_about(path: Path, key: str, columns: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, About]:
    """Read a table of objects, by id.

    Parameters
    ----------
    key : column of the id. columns : columns of ``label``, ``redshift`` and ``parent``, if it has them.
    metadata : column of each metadata name.
    """
    source = open_source(path)
    names = list(dict.fromkeys([key, *columns.values(), *metadata.values()]))
    if missing := [name for name in names if name not in source.header]:
        raise TableError(f"{path} has no column {', '.join(missing)}; it has {', '.join(source.header)}")
    about: dict[str, About] = {}
    several: dict[str, None] = {}
    for name, facts in _facts(source, names, key, columns, metadata):
        if about.get(name, facts).label != facts.label:
            several[name] = None
        about[name] = facts
    if several:
        some = ", ".join(islice(several, SHOWN_VALUES)) + (", ..." if len(several) > SHOWN_VALUES else "")
        raise TableError(
            f"{path}: {len(several)} objects have rows with different labels ({some}); keep one row of each"
        )
    return about


def _facts(
    source: TableSource, names: Sequence[str], key: str, columns: Mapping[str, str], metadata: Mapping[str, str]
) -> Iterator[tuple[str, About]]:
    for batch in source.batches(names):
        arrays = {name: column for name, column in batch.items() if not isinstance(column, Lists)}
        if lists := sorted(batch.keys() - arrays.keys()):
            raise TableError(f"{source.name}: {lists[0]!r} is a column of lists")
        text = {part: texts(arrays[columns[part]]) for part in ("label", "parent") if part in columns}
        redshift = numbers(arrays[columns["redshift"]])[0] if "redshift" in columns else None
        values = {name: numbers(arrays[column])[0] for name, column in metadata.items()}
        for row, name in enumerate(texts(arrays[key])):
            yield (
                str(name),
                About(
                    label=text["label"][row] if "label" in text else "",
                    redshift=float("nan") if redshift is None else float(redshift[row]),
                    parent=text["parent"][row] if "parent" in text else "",
                    metadata={known: float(column[row]) for known, column in values.items()},
                ),
            )
