"""Inputs of :class:`nightjar_alerts.Classifier` and :class:`nightjar_alerts.Client`. Accepted are

- a dictionary like the body of ``/v1/classify``, or the same as keyword arguments; columns may be lists or arrays;
- a :class:`nightjar_alerts.LightCurve`;
- alert packets as bytes;
- a table: ``pandas.DataFrame`` (also of nested_pandas), ``pyarrow.Table``, ``astropy.table.Table``;
- the path of a file or folder of any of these;
- a list of any of these.

:func:`read_request` converts them to a sequence of inputs.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.alerts.documents import is_alert
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.files import FileItem, read_file
from nightjar_alerts.alerts.packet import Packet, PacketError
from nightjar_alerts.core.decoding import OBJECT_READER, decode_fields, diagnose_light_curve
from nightjar_alerts.core.errors import FieldError, InvalidLightCurve, light_curve_error
from nightjar_alerts.core.items import Read, Skipped, item_of
from nightjar_alerts.core.request import CALL_OPTIONS, MAX_ID_LENGTH, Options
from nightjar_alerts.core.validation import table_light_curve, validate_light_curves
from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, is_position
from nightjar_alerts.models.metadata import clean_metadata
from nightjar_alerts.tables import (
    FILE_BOUNDS,
    Bounds,
    Guess,
    Table,
    TableError,
    TableObject,
    TableOptions,
    TableQuestion,
    read_object_metadata,
    read_table,
    sniff,
)
from nightjar_alerts.tables.columns import mjd_of_times
from nightjar_alerts.tables.documents import names_light_curves
from nightjar_alerts.tables.files import head_of, is_hats
from nightjar_alerts.tables.libraries import library_of, snana_pair

MAX_POINTS: Final = 1_000_000
"""Maximum number of observations in one light curve; the network sees the newest of them (``truncated``)."""
MAX_JSON_BYTES: Final = 1 << 20
"""Number of bytes at the beginning of a JSON file that are read to recognise its content."""
_BODY: Final = re.compile(rb'"(light_curves|mjd|flux|mag|band)"\s*:\s*\[')
_COLUMNS: Final = ("mjd", "flux", "flux_err", "mag", "mag_err", "band")
_ARRAYS: Final = ("mjd", "flux", "flux_err", "mag", "mag_err", "detected", "upper_limit")

T = TypeVar("T")
Body = Mapping[str, Any]
Input = LightCurve | InvalidLightCurve | Packet | PacketError | bytes | Body
"""A light curve or its errors, an alert or its error, an undecoded packet, or an undecoded body."""


class InMemoryTable(Protocol):
    """Table of pandas, pyarrow, astropy or polars."""

    @property
    def columns(self) -> Any:
        """Columns of the table, or their names."""


SeveralLightCurves = (
    str | PathLike[str] | bytes | bytearray | memoryview | Sequence[Any] | Iterator[Any] | NDArray[Any] | InMemoryTable
)
"""What `classify` accepts besides a single light curve; not a Mapping, which is one light curve."""


class CallInputs(NamedTuple):
    """Inputs of one call.

    Attributes
    ----------
    single : whether the caller passed one light curve and gets one result.
    indexed : whether it is a list, so that error pointers begin with ``/light_curves/INDEX``.
    options : options in the body.
    notes : sentences on how tables were read and what was left out; complete after the inputs have been read.
    names : file, or part of a file, of each input that has been read from a path; empty for other data.
    """

    inputs: Iterable[Input]
    single: bool = False
    indexed: bool = False
    options: Mapping[str, Any] = {}
    notes: Sequence[str] = ()
    names: Sequence[str] = ()


def read_request(data: Any, fields: Mapping[str, Any], strict: bool = False) -> CallInputs:
    """Return the inputs in the arguments of ``classify``.

    Parameters
    ----------
    fields : fields of a light curve if ``data`` is None; table options (:class:`TableOptions`) if it is a table or a
        path. A path also takes ``bounds`` (:class:`nightjar_alerts.tables.Bounds`).
    strict : whether a file of a folder or archive that cannot be read is an error instead of a note.

    Raises
    ------
    TypeError
        For data of another type, and for keyword arguments that do not apply to it.
    TableError
        For a table that cannot be read.
    """
    if data is None:
        _refuse_model(fields)
        return _request_of_body(fields)
    notes: list[str] = []
    names: list[str] = []
    if isinstance(data, str | PathLike):
        bounds = fields.get("bounds", FILE_BOUNDS)
        options = _table_options({name: value for name, value in fields.items() if name != "bounds"}, bounds)
        inputs = read_files(Path(data), options, notes, names, bounds, strict)
        return CallInputs(inputs, notes=notes, names=names)
    if is_table(data):
        return CallInputs(table_inputs(data, _table_options(fields), notes), notes=notes)
    _refuse_model(fields)
    if fields:
        hint = "; fields of a light curve go into the dictionary" if isinstance(data, Mapping) else ""
        raise TypeError(f"unexpected keyword arguments: {', '.join(fields)}{hint}")
    if hasattr(data, "to_dataframe"):  # of xarray; also a Mapping
        raise TypeError(f"cannot read light curves from {type(data).__name__}: pass its to_dataframe()")
    if isinstance(data, Mapping) and any(map(library_of, data.values())) and not data.keys() & {"mjd", "light_curves"}:
        raise TypeError("cannot read light curves from a dictionary of tables: pass one table, or a list of tables")
    if isinstance(data, Mapping):
        return _request_of_body(data)
    if isinstance(data, LightCurve | Packet):
        return CallInputs([data], single=True)
    if isinstance(data, bytes | bytearray | memoryview):
        return CallInputs([bytes(data)])
    if isinstance(data, Iterable) and not isinstance(data, np.ndarray) and not hasattr(data, "read"):
        return CallInputs(flatten(data, None if strict else notes), indexed=True, notes=notes)
    raise TypeError(
        f"cannot read light curves from {type(data).__name__}; give a dictionary of columns, a table, packets as "
        "bytes, a path, or a list of these"
    )


def _refuse_model(fields: Mapping[str, Any]) -> None:
    if "model" in fields:
        raise TypeError("model is an argument of Classifier(...) and Client(...), not of a call")


def _table_options(named: Mapping[str, Any], bounds: Bounds = FILE_BOUNDS) -> TableOptions:
    _refuse_model(named)
    if unknown := sorted(set(named) - set(TableOptions.option_names())):
        raise TypeError(f"no option of tables: {', '.join(unknown)}; they are {', '.join(TableOptions.option_names())}")
    if "object_metadata" in named:
        named = {**named, "object_metadata": read_object_metadata(named["object_metadata"], bounds)}
    return TableOptions(**named)


def _request_of_body(body: Body) -> CallInputs:
    options = {} if body.get("options") is None else body["options"]
    rest = {name: value for name, value in body.items() if name != "options"}
    if not isinstance(options, Mapping):
        raise TypeError("options must be a dictionary")
    if "light_curves" in rest:
        if len(rest) > 1:
            raise TypeError("a body with light_curves has no other field than options")
        if isinstance(rest["light_curves"], str | bytes) or not isinstance(rest["light_curves"], Iterable):
            raise TypeError("light_curves must be a list")
        return CallInputs(flatten(rest["light_curves"]), indexed=True, options=options)
    return CallInputs([_without_units(rest)], single=True, options=options)


_UNITS: Final = {"mjd": "d", "flux": "nJy", "flux_err": "nJy", "mag": "mag", "mag_err": "mag"}
_NUMBERS_IN_LISTS: Final = frozenset({float, int, np.float64, np.float32, type(None)})


def _without_units(body: Body) -> Body | InvalidLightCurve:
    """Convert quantities and times of a body to numbers in the units of the fields, and masked values to None."""
    changed: dict[str, Any] = {}
    for name in (*_UNITS, "band"):
        value = body.get(name)
        if type(value) is np.ndarray and value.dtype.kind in "fiu":
            continue
        first = value[0] if isinstance(value, list | tuple) and len(value) else None
        if type(value) is list and (type(first) in _NUMBERS_IN_LISTS or name == "band"):
            continue
        mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
        if name == "mjd" and (mjd := mjd_of_times(value)) is not None:
            changed[name] = mjd
        elif name in _UNITS and (hasattr(first, "unit") or getattr(value, "unit", None) is not None):
            value = value if first is None else type(first)(value)
            unit = body.get("flux_unit", "nJy") if name.startswith("flux") else _UNITS[name]
            quantity: Any = getattr(value, "quantity", value)  # astropy's table columns have this attribute
            try:
                is_ab = name == "mag" and str(quantity.unit) == "mag(AB)"
                changed[name] = np.asarray(quantity.value if is_ab else quantity.to_value(unit))
            except Exception:  # astropy's UnitConversionError; astropy is not imported here
                stated = str(quantity.unit) or "dimensionless"
                detail = f"the unit is {stated}, which is not converted to {unit}"
                error = FieldError(pointer=f"/{name}", reason="wrong_unit", detail=detail)
                return InvalidLightCurve([error], str(body.get("object_id", ""))[:MAX_ID_LENGTH])
        if mask is not None and mask.any():
            values = np.asarray(changed.get(name, value)).tolist()
            changed[name] = [None if missing else each for each, missing in zip(values, mask.tolist(), strict=True)]
    return {**body, **changed} if changed else body


_WRONG_TYPE: Final = frozenset({"not_a_boolean", "not_a_number", "not_a_string", "not_an_object", "prior_type"})


def call_options(named: Mapping[str, Any], **default: Any) -> Options:
    """Return the options of a body, with those of the call as defaults.

    Raises TypeError or ValueError for values that ``/v1/classify`` rejects.
    """
    if unknown := sorted(set(named) - set(CALL_OPTIONS)):
        raise TypeError(f"unknown options: {', '.join(unknown)}; they are {', '.join(CALL_OPTIONS)}")
    given = {name: _item(value) for name, value in (default | dict(named)).items()}
    given = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in given.items()}
    if isinstance(given.get("prior"), Mapping):
        given["prior"] = {name: _item(value) for name, value in given["prior"].items()}
    values, errors = decode_fields(given, Options, OBJECT_READER, "")
    if errors:
        text = f"{errors[0].pointer[1:]} {errors[0].detail}"
        raise TypeError(text) if errors[0].reason in _WRONG_TYPE else ValueError(text)
    return Options(**values)


def stream_inputs(items: Any) -> Iterable[Input]:
    """Return the inputs in the argument of ``stream``. A file that cannot be read is an error when it is reached."""
    return read_request(items, {}, strict=True).inputs


def flatten(items: Iterable[Any], notes: list[str] | None = None) -> Iterator[Input]:
    """Yield the inputs of a list or iterator, whose elements may be anything that ``classify`` accepts.

    Parameters
    ----------
    notes : list to which the notes of tables and folders are added; None if what cannot be read is an error.
    """
    for item in items:
        if isinstance(item, dict | Mapping):
            yield _without_units(item)
        elif isinstance(item, LightCurve | InvalidLightCurve | Packet | PacketError | bytes):
            yield item
        elif isinstance(item, tuple):
            raise TypeError("cannot read a light curve from a tuple; of pandas.groupby, give the groups without names")
        else:
            read = read_request(item, {}, strict=notes is None)
            yield from read.inputs
            if notes is not None:
                notes += read.notes


def batches(inputs: Iterable[T], sizes: Iterable[int]) -> Iterator[list[T]]:
    """Yield the inputs in lists of these sizes. If their iterator raises, what it yielded before comes first."""
    remaining = iter(inputs)
    for size in sizes:
        batch: list[T] = []
        try:
            batch.extend(islice(remaining, size))
        except Exception:
            if batch:
                yield batch
            raise
        if not batch:
            return
        yield batch


def decode_inputs(inputs: Sequence[Input], start: int | None = None) -> list[Read | bytes]:
    """Replace each body among inputs by its light curve, or its errors.

    Parameters
    ----------
    start : index of the first input in its list; None if error pointers are relative to each light curve.
    """
    # dict comes first, because isinstance is slow for abstract classes such as Mapping.
    numbered = [(index, each) for index, each in enumerate(inputs, start or 0) if isinstance(each, dict | Mapping)]
    parents = ["" if start is None else f"/light_curves/{index}" for index, _ in numbered]
    decoded: list[Any] = list(inputs)
    for (index, _), curve in zip(numbered, decode_bodies([body for _, body in numbered], parents), strict=True):
        decoded[index - (start or 0)] = curve
    return decoded


def read_inputs(inputs: Sequence[Input], start: int | None = None) -> list[Sequence[Read]]:
    """Decode inputs as :func:`decode_inputs` does, and also packets, to their alerts or errors."""
    return [read_packet(each) if isinstance(each, bytes) else [each] for each in decode_inputs(inputs, start)]


def evolution_input(inputs: Iterable[Input]) -> tuple[LightCurve, str]:
    """Return the only light curve among inputs, and the survey for routing.

    Raises
    ------
    LightCurveError
        If it is invalid, or the alert has none.
    ValueError
        If there are several inputs, or none.
    """
    reads = list(chain.from_iterable(read_inputs(list(inputs))))
    if len(reads) != 1:
        raise ValueError(f"evolution takes one light curve or alert, not {len(reads)}")
    item, survey = item_of(reads[0])
    if isinstance(item, Skipped):
        raise LightCurveError("", item.reason, item.detail or item.reason)
    if isinstance(item, InvalidLightCurve):
        raise light_curve_error(item.errors)
    if isinstance(item, LightCurveError):
        raise item
    return item, survey


def is_table(data: Any) -> bool:
    """Return True for a table in memory: a table of a library, a structured array, or a list of rows."""
    if isinstance(data, np.ndarray):
        return data.dtype.names is not None
    if isinstance(data, list) and data and isinstance(data[0], Mapping):
        values = [value for value in data[0].values() if not isinstance(value, str)]
        return any(map(np.isscalar, values)) and not any(hasattr(value, "__len__") for value in values)
    return bool(library_of(data))


def table_inputs(
    source: Any, options: TableOptions, notes: list[str], bounds: Bounds = FILE_BOUNDS
) -> Iterator[LightCurve | InvalidLightCurve]:
    """Yield the objects of a table or table file. Raises TableError.

    Parameters
    ----------
    notes : list to which sentences are added on how the table was read and what was left out.
    """
    table = read_table(source, options, bounds=bounds)
    notes += map(str, table.guesses)
    for item in table:
        yield table_light_curve(item)
    notes += table.report.lines()


def decode_bodies(bodies: Sequence[Body], parents: Sequence[str] = ()) -> list[LightCurve | InvalidLightCurve]:
    """Build the light curve of each body, or its errors, with the fields and validation of ``/v1/classify``.

    Parameters
    ----------
    parents : JSON pointer of each body; by default error pointers are relative to the body.
    """
    parents = parents or [""] * len(bodies)
    usual = [_usual_columns(body) for body in bodies]
    built = iter(light_curves([columns for columns in usual if columns is not None]))
    curves = [None if columns is None else next(built) for columns in usual]
    # Bodies with other fields or errors are decoded again field by field, which reports every error with its pointer.
    rest = [index for index, curve in enumerate(curves) if not isinstance(curve, LightCurve)]
    decoded = [diagnose_light_curve(_plain(bodies[index]), OBJECT_READER, parents[index]) for index in rest]
    checked = iter(validate_light_curves(decoded, MAX_POINTS, parents=[parents[index] for index in rest]))
    return [curve.with_warnings() if isinstance(curve, LightCurve) else next(checked) for curve in curves]


def _usual_columns(body: Body) -> Columns | None:
    """Return the columns of a body that has only the most frequent fields, of the right types; else None.

    This fast path takes a third of the time of validating each field. :func:`models.bulk.light_curves` checks the
    values.
    """
    if not body.keys() <= _USUAL or not all(name in body for name in _COLUMNS_OF_FLUX):
        return None
    columns = [_column(body[name]) for name in _NUMBERS]
    band, object_id, metadata = body["band"], body.get("object_id", ""), body.get("metadata") or {}
    if any(type(column) is not np.ndarray or column.dtype.kind not in "fiu" for column in columns):
        return None
    if type(band) is not list or len(band) > MAX_POINTS:
        return None
    if type(object_id) is not str or len(object_id) > MAX_ID_LENGTH or type(metadata) is not dict:
        return None
    if without_surrogates(object_id) != object_id:
        return None
    known = clean_metadata(metadata) if metadata and set(map(type, metadata.values())) <= {float, int} else {}
    if len(known) < len(metadata):  # unknown names, missing or implausible values
        return None
    ra, dec = body.get("ra"), body.get("dec")
    has_position = type(ra) is float and type(dec) is float and bool(is_position(ra, dec))
    if not has_position and not ra is dec is None:
        return None
    mjd, flux, flux_err = columns
    return Columns(mjd, flux, flux_err, band, None, known, object_id, ra=ra, dec=dec)


_NUMBERS: Final = ("mjd", "flux", "flux_err")
_COLUMNS_OF_FLUX: Final = (*_NUMBERS, "band")
_USUAL: Final = frozenset({*_COLUMNS_OF_FLUX, "object_id", "metadata", "ra", "dec"})


def _plain(body: Body) -> dict[str, Any]:
    """Convert numeric columns of a body to arrays and its other values to plain objects.

    A column that is not numeric becomes a list, so that validation can report the wrong value.
    """
    plain = dict(body)
    for name, value in plain.items():
        if name in _ARRAYS:
            plain[name] = _column(value)
        elif name == "band":
            plain[name] = value if type(value) is list else _listed(value)
        elif name == "object_id":
            plain[name] = _name(value)
        elif name == "metadata" and isinstance(value, Mapping):
            plain[name] = {key: None if each != each else _item(each) for key, each in value.items()}
        else:
            plain[name] = _item(value)
            if name in ("ra", "dec") and plain[name] != plain[name]:  # NaN is a missing value, as in metadata
                plain[name] = None
    return plain


def _column(values: Any) -> Any:
    """Return a column of numbers or flags as an array, other columns as a list of plain objects."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind == "f" and values.size:
        return values
    if values is None or isinstance(values, str | bytes | Mapping):
        return values
    array = None if isinstance(values, list) else np.asarray(values)
    if array is None or array.dtype.kind == "O":
        values = values if array is None else array.tolist()
        try:
            array = np.array(values)
        except ValueError:  # lists of different lengths
            return values
    if array.ndim == 1 and array.dtype.kind in "fiub" and array.size:
        return array
    return list(map(_item, values)) if isinstance(values, list) else array.tolist()


def _listed(values: Any) -> Any:
    """Return a column of names as a list of strings; integers stay an array."""
    if values is None or isinstance(values, str | bytes):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array
    array = np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array
    return [str(value) if isinstance(value, str) else value for value in array.tolist()] if array.ndim else values


def _item(value: Any) -> Any:
    """Convert a NumPy scalar to a Python one."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def _name(value: Any) -> Any:
    """Return an object id as a string; integers are accepted, because they are exact here, unlike in JSON."""
    value = _item(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """File, or part of one, that was not read: the reason, and whether it is a file of another kind.

    ``question`` is that of a table with two readings, which another interface words by its own options.
    """

    name: str
    detail: str
    is_other: bool = False
    question: TableQuestion | None = None


class NamedInput(NamedTuple):
    """Input with the name of its file or part of a file.

    Attributes
    ----------
    share : fraction of the file that this input makes up, as far as known; the inputs of a file sum to at most 1.
    """

    name: str
    input: Input
    share: float = 0.0


OnNotes = Callable[[str, Sequence[Guess | str], bool], None]
"""Called with the name of a table, and its guesses and True, or sentences on what was left out and False."""


def read_files(
    path: Path,
    options: TableOptions,
    notes: list[str],
    names: list[str],
    bounds: Bounds = FILE_BOUNDS,
    strict: bool = False,
) -> Iterator[Input]:
    """Yield the inputs of a file or folder, as ``nightjar classify`` reads them.

    A file of a folder, or a part of a file, that cannot be read is a note.

    Parameters
    ----------
    notes : list to which sentences are added on how tables were read, and what was left out or not read.
    names : list to which the name of each input is added.
    strict : whether what cannot be read is an error.

    Raises
    ------
    TableError
        If nothing can be read, or an option does not apply to any of the files.
    """

    def add_notes(name: str, lines: Sequence[Guess | str], are_guesses: bool) -> None:
        notes.extend(f"{name}: {line}" for line in lines)

    files = files_in(path)
    check_table_options(files, options)
    if not files:
        notes.append(f"no files in {path}")
    others, first_error = 0, ""
    for file in files:
        if file.named and is_table_file(file.path, options):  # raises the more specific error of the table
            for curve in table_inputs(file.path, options, notes, bounds):
                names.append(_part(file.name, curve.object_id))
                yield curve
            continue
        for item in inputs_of_file(file, options, add_notes, bounds):
            if isinstance(item, NamedInput):
                names.append(item.name)
                yield item.input
                continue
            if item.is_other:
                others += 1
                notes.append(f"no light curves in {item.name}")
                continue
            detail = f"{item.name}: {item.detail}"
            if strict:
                raise TableError(detail)
            first_error = first_error or detail
            notes.append(f"not read: {detail}")
    if first_error and not names:
        raise TableError(first_error)


def _part(name: str, object_id: str) -> str:
    """Return the name of an object of a table."""
    return f"{name}: {object_id}" if object_id else name


def check_table_options(files: Sequence["File"], options: TableOptions) -> None:
    """Raise TableError if options are given and no file can be a table."""
    default = TableOptions()
    given = [name for name in TableOptions.option_names() if getattr(options, name) != getattr(default, name)]
    if given and files and not any(_may_hold_table(file, options) for file in files):
        verb = "is given and changes" if len(given) == 1 else "are given and change"
        raise TableError(f"{' and '.join(given)} {verb} nothing, because no table is read: leave it out")


def _may_hold_table(file: "File", options: TableOptions) -> bool:
    if not file.path.exists() or is_table_file(file.path, options):
        return True
    head = head_of(file.path)
    return head[257:262] == b"ustar" or sniff.format_of(file.name, head) in sniff.ADVICE


class File(NamedTuple):
    """File to read.

    Attributes
    ----------
    name : path relative to its folder, for people.
    named : whether the user named it. Other files in a folder are read only if they look like light curves or alerts.
    """

    path: Path
    name: str
    named: bool


def files_in(path: Path) -> list[File]:
    """Return the files in a folder and its subfolders, sorted; or the file itself.

    A HATS catalogue, which is a folder, counts as a file. Raises FileNotFoundError if the path does not exist.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if not path.is_dir() or is_hats(path):
        return [File(path, path.name, named=True)]
    return [File(file, str(file.relative_to(path)), named=False) for file in sorted(_files_below(path))]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, a HATS catalogue as one, of SNANA's pairs of files the first."""
    for path in folder.iterdir():
        if path.is_file():
            pair = snana_pair(path)
            if pair is None or "HEAD" not in pair.name:
                yield path
        elif path.is_dir() and not path.is_symlink():
            if is_hats(path):
                yield path
            else:
                yield from _files_below(path)


def inputs_of_file(
    file: File, options: TableOptions, on_notes: OnNotes = lambda *_: None, bounds: Bounds = FILE_BOUNDS
) -> Iterator[NamedInput | UnreadFile]:
    """Yield the content of a file: objects of a table, light curves as JSON, alert packets, or packets of an archive.

    Parts that cannot be read are yielded as :class:`UnreadFile`.
    """
    if not file.path.exists():
        yield UnreadFile(file.name, "does not exist")
        return
    if is_table_file(file.path, options):
        yield from _inputs_of_table(file.path, file.name, options, on_notes, bounds)
        return
    form = sniff.format_of(file.name, head_of(file.path))
    if form in sniff.ADVICE:
        yield UnreadFile(file.name, sniff.ADVICE[form], is_other=not file.named)
        return
    for item in read_file(file.path, file.name, file.named, bounds.always_bytes):
        yield from _inputs_of_item(item, options, on_notes, bounds)


def is_table_file(path: Path, options: TableOptions) -> bool:
    """Return True if a file is a table rather than packets: by the options, its content, then its name."""
    if path.is_dir() or options.format:
        return True
    form = sniff.format_of(path.name, head_of(path))
    return _is_table_in_json(path) if form in ("json", "jsonl") else form in sniff.TABLE_FORMATS


def _is_table_in_json(path: Path) -> bool:
    """Return True if the first document of a JSON file holds a light curve, and is neither alert nor request."""
    data = head_of(path, MAX_JSON_BYTES)
    text = data.removeprefix(BOM_UTF8).lstrip()
    document = _load(text) if len(data) < MAX_JSON_BYTES else None
    if document is None:
        document = _load(text.partition(b"\n")[0])
    first = document[0] if isinstance(document, list) and document else document
    if first is None:  # a document that is longer
        return not _BODY.search(text) and names_light_curves(text)
    if not isinstance(first, dict) or is_alert(first) or _is_body(first) or "light_curves" in first:
        return False
    return names_light_curves(text)


def _inputs_of_table(
    source: Path | bytes, name: str, options: TableOptions, on_notes: OnNotes, bounds: Bounds
) -> Iterator[NamedInput | UnreadFile]:
    try:
        table = read_table(source, options, name="" if isinstance(source, Path) else name, bounds=bounds)
        if table.guesses:
            on_notes(name, table.guesses, True)
        for item, share in _with_share(table):
            yield NamedInput(_part(name, item.object_id), table_light_curve(item), share)
        if lines := table.report.lines():
            on_notes(name, lines, False)
    except TableQuestion as question:
        yield UnreadFile(name, str(question), question=question)
    except (TableError, OSError) as error:
        yield UnreadFile(name, _without_name(str(error), str(source) if isinstance(source, Path) else name))


def _without_name(text: str, name: str) -> str:
    """Return a sentence about a file without its name, with which ``x.csv: no rows`` and ``x.csv is empty`` begin."""
    return text.removeprefix(f"{name}: ").removeprefix(f"{name} ")


def _with_share(table: Table) -> Iterator[tuple[TableObject, float]]:
    """Yield the objects of a table, each with the fraction of the table that it makes up."""
    objects = iter(table)
    read = 0.0
    for item in objects:
        if not read and table.progress >= 1.0:  # the whole table is in memory, so objects can be counted
            every = [item, *objects]
            for each in every:
                yield each, 1.0 / len(every)
            return
        yield item, table.progress - read
        read = table.progress


def _inputs_of_item(
    item: FileItem, options: TableOptions, on_notes: OnNotes, bounds: Bounds
) -> Iterator[NamedInput | UnreadFile]:
    if item.kind == "unreadable":
        yield UnreadFile(item.name, item.detail)
    elif item.kind == "other" and sniff.format_of_name(item.name) in sniff.TABLE_FORMATS:  # in an archive
        yield from _inputs_of_table(item.data, item.name, options, on_notes, bounds)
    elif bodies := _bodies_in(item.data):
        for index, body in enumerate(bodies):
            name = item.name if len(bodies) == 1 else f"{item.name}[{index}]"
            yield NamedInput(name, {key: value for key, value in body.items() if key != "options"})
    elif item.kind == "other":
        yield UnreadFile(item.name, item.detail, is_other=True)
    else:
        yield NamedInput(item.name, item.data)


def _bodies_in(data: bytes) -> list[dict[str, Any]]:
    """Return the light curves of JSON that is a body of ``/v1/classify`` or a list of bodies; else an empty list."""
    if data[:64].removeprefix(BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        return []
    document = _load(data)
    if isinstance(document, dict) and not is_alert(document):
        several = document.get("light_curves", [document])
    else:
        several = document
    if not isinstance(several, list) or not all(isinstance(each, dict) for each in several):
        return []
    return several if any(map(_is_body, several)) else []


def _load(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_body(document: Mapping[str, Any]) -> bool:
    """Return True if a document has columns of a light curve."""
    return sum(isinstance(document.get(name), list) for name in _COLUMNS) > 1
