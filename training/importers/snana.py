"""SNANA simulations as FITS: the training sets of ELAsTiCC and PLAsTiCC (``*_HEAD.FITS[.gz]``, ``*_PHOT.FITS[.gz]``).

A HEAD file has a row for each object, whose points are rows PTROBS_MIN to PTROBS_MAX (from 1, both included) of the
PHOT file next to it; an end-of-event row (MJD = -777) separates objects. Fluxes are FLUXCAL (zero point 27.5).

Notable:

- PHOTFLAG bits: 4096 detection, 2048 the detection that triggered, 1024 saturated (left out);
- the training set has more points than an alert. ``window`` keeps those of the stream: from 30 days before the trigger
  to the last detection (ATAT, Cabrera-Vives+ 2024, A&A 689, A289);
- the model is the name of the folder (``ELASTICC_TRAIN_SNIa-SALT2``); the 32 models become the 20 classes of ATAT, in
  which SNIIb is SN-like/Other, while the survey's truth table has it as II;
- object numbers restart in every model, and those of Cepheid and d-Sct collide with others, so these two get a prefix,
  1000000 and 2000000, as in ATAT. The import drops and counts other collisions;
- ``z_final`` in the metadata is REDSHIFT_HELIO, the simulation's best redshift estimate; the true redshift
  (SIM_REDSHIFT_HELIO) is stored in a separate column.

The binary tables are read in blocks of rows, also from compressed files such as the training sets of ELAsTiCC. Scaled
columns and columns of variable length are not supported.
"""

import gzip
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from astropy.io import fits
from astropy.utils.exceptions import AstropyWarning
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import NJY_PER_UNIT, njy_of_magnitude
from nightjar_alerts.tables import TableError, TableObject
from nightjar_alerts.tables.columns import object_column

ROWS = 65_536
COLUMN_KINDS = "LBIJKEDA"  # of FITS: fixed types

Rows = NDArray[Any]


class BinaryTable(NamedTuple):
    """An open binary table: type and number of rows, and the file at the first row."""

    row: np.dtype[Any]
    length: int
    file: IO[bytes]
    path: Path

    def blocks(self, rows: int = ROWS) -> Iterator[Rows]:
        """Yield the rows in blocks of ``rows``. Raises TableError if the file ends too early."""
        remaining = self.length
        while remaining:
            take = min(rows, remaining)
            data = _read(self.file, take * self.row.itemsize, self.path)
            yield np.frombuffer(data, dtype=self.row)
            remaining -= take


@contextmanager
def open_table(path: Path) -> Iterator[BinaryTable]:
    """Open the first binary table of a file. Raises TableError if it has none or is damaged.

    Only the headers are read by astropy, since it would load all rows of a compressed file.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        row, length, start = _layout(file, path)
    with opener(path, "rb") as file:
        file.seek(start)
        yield BinaryTable(row, length, file, path)


def _layout(file: IO[bytes], path: Path) -> tuple[np.dtype[Any], int, int]:
    """Return type and number of rows, and the position of the first row, of the first binary table of a file."""
    try:
        with warnings.catch_warnings(), fits.open(file, memmap=False, lazy_load_hdus=True) as parts:
            warnings.simplefilter("error", AstropyWarning)
            table = next((part for part in parts if isinstance(part, fits.BinTableHDU)), None)
            if table is None:
                raise TableError(f"{path} holds no binary table, or is truncated before it")
            row = np.dtype([_column(column, path) for column in table.columns])
            length, stated, start = table.header["NAXIS2"], table.header["NAXIS1"], table.fileinfo()["datLoc"]
    except TableError:
        raise
    except Exception as error:  # astropy raises many types of errors for invalid files
        raise TableError(f"{path} is truncated, damaged or no FITS file: {error}") from error
    if row.itemsize != stated or not 0 <= length < 1 << 40:
        raise TableError(f"{path}: {length} rows of {stated} bytes, the columns take {row.itemsize}")
    return row, length, start


def _column(column: Any, path: Path) -> Any:
    """Return name and big-endian type of a column; logical values are the letters T and F."""
    form = str(column.format)
    kind = form.lstrip("0123456789")[:1]
    scaled = column.bscale not in (None, "", 1) or column.bzero not in (None, "", 0)
    if scaled or kind not in COLUMN_KINDS:
        raise TableError(f"{path}: column {column.name} of form {form!r} is scaled or of a type that is not read")
    base, shape = column.dtype.subdtype or (column.dtype, ())
    return column.name, "S1" if kind == "L" else base.newbyteorder(">"), shape


def text(values: Rows) -> list[str]:
    """Return the values of a text column without padding."""
    return [value.decode("ascii", "replace").strip(" \0") for value in values.tolist()]


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        data = file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TableError(f"{path} is truncated or damaged: {error}") from error
    if len(data) < size:
        raise TableError(f"{path} is truncated: {size - len(data)} bytes are missing")
    return data


DETECTION: Final = 4096
TRIGGER: Final = 2048
SATURATED: Final = 1024
END_OF_EVENT: Final = -777.0
PRE_TRIGGER_DAYS: Final = 30.0

ID_PREFIX: Final = {"Cepheid": "1000000", "d-Sct": "2000000"}

ELASTICC_CLASSES: Final = {
    "AGN": "AGN",
    "CART": "CART",
    "Cepheid": "Cepheid",
    "d-Sct": "Delta Scuti",
    "dwarf-nova": "Dwarf Novae",
    "EB": "EB",
    "ILOT": "ILOT",
    "KN_B19": "KN",
    "KN_K17": "KN",
    "Mdwarf-flare": "M-dwarf Flare",
    "PISN": "PISN",
    "RRL": "RR Lyrae",
    "SLSN-I+host": "SLSN",
    "SLSN-I_no_host": "SLSN",
    "SNIa-91bg": "91bg",
    "SNIa-SALT2": "Ia",
    "SNIa-SALT3": "Ia",
    "SNIa": "Ia",
    "SNIax": "Iax",
    "SNIb+HostXT_V19": "Ib/c",
    "SNIb-Templates": "Ib/c",
    "SNIc+HostXT_V19": "Ib/c",
    "SNIc-Templates": "Ib/c",
    "SNIcBL+HostXT_V19": "Ib/c",
    "SNII+HostXT_V19": "II",
    "SNII-NMF": "II",
    "SNII-Templates": "II",
    "SNIIn+HostXT_V19": "II",
    "SNIIn-MOSFIT": "II",
    "SNIIb+HostXT_V19": "SN-like/Other",
    "TDE": "TDE",
    "uLens-Binary": "uLens",
    "uLens-Single-GenLens": "uLens",
    "uLens-Single_PyLIMA": "uLens",
    # Further names of PLAsTiCC and ELAsTiCC2.
    "EBE": "EB",
    "KN": "KN",
    "KN_Kasen": "KN",
    "Mdwarf": "M-dwarf Flare",
    "MIRA": "",  # no class of the taxonomy
    "Mira": "",
    "PISN-MOSFIT": "PISN",
    "PISN-STELLA_HECORE": "PISN",
    "PISN-STELLA_HYDROGENIC": "PISN",
    "SLSN-I": "SLSN",
    "SLSN-I-MOSFIT": "SLSN",
    "SNIbc-MOSFIT": "Ib/c",
    "SNIbc-Templates": "Ib/c",
    "SNII-MOSFIT": "II",
    "SNIIn": "II",
    "TDE-MOSFIT": "TDE",
    "uLens": "uLens",
    "uLens-Point": "uLens",
    "uLens-STRING": "uLens",
    "uLens-Single": "uLens",
}

_RENAMED = {"zphot": "PHOTOZ", "zphot_err": "PHOTOZ_ERR", "zspec": "SPECZ", "zspec_err": "SPECZ_ERR"}
_FINAL = {"z_final": "REDSHIFT_HELIO", "z_final_err": "REDSHIFT_HELIO_ERR"}


def snana_name(column: str) -> str:
    """Return SNANA's name of a metadata column, such as HOSTGAL2_PHOTOZ for ``hostgal2_zphot``."""
    if column in _FINAL:
        return _FINAL[column]
    host, _, quantity = column.partition("_")
    if quantity in _RENAMED:
        return f"{host.upper()}_{_RENAMED[quantity]}"
    band = re.fullmatch(r"(mag|magerr)_([ugrizY])", quantity)
    return f"{host.upper()}_{band[1].upper()}_{band[2]}" if band else column.upper()


COLUMNS: Final = {name: snana_name(name) for name in METADATA_COLUMNS}


def head_files(source: Path) -> list[Path]:
    """Return the HEAD files of ``source``, a file or a folder. Raises TableError if there are none."""
    pattern = re.compile(r".*HEAD\.FITS(\.gz)?", re.IGNORECASE)
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if pattern.fullmatch(path.name))
    if not paths:
        raise TableError(f"{source} holds no HEAD.FITS files")
    return paths


def read_snana(source: Path, *, label_column: str | None = None, window: bool = True) -> Iterator[TableObject]:
    """Yield the objects of all HEAD and PHOT files of ``source``, in the order of their points.

    Parameters
    ----------
    label_column : HEAD column of the label, such as SIM_TYPE_INDEX; None: the name of the model.
    window : keep only the points of the alert history.

    Raises
    ------
    TableError
        If a file is missing or truncated, lacks a column, or its pointers do not fit its points.
    """
    for head in head_files(source):
        model = model_of(head.parent.name)
        rows = _head_rows(head, {"SNID", "PTROBS_MIN", "PTROBS_MAX"} | ({label_column} if label_column else set()))
        labels = text_of(rows[label_column]) if label_column else [model] * len(rows)
        names = [ID_PREFIX.get(model, "") + name for name in text_of(rows["SNID"])]
        metadata = [{name: float(rows[column][n]) for name, column in _present(rows).items()} for n in range(len(rows))]
        redshift = _redshift(rows)
        scales = _njy_per_fluxcal(rows)
        for at, points in _events(_phot_file(head), rows["PTROBS_MIN"].astype(int), rows["PTROBS_MAX"].astype(int)):
            yield _object(names[at], labels[at], metadata[at], float(redshift[at]), points, float(scales[at]), window)


def model_of(folder: str) -> str:
    """Return the longest known model name at the end of a folder's name, or else the folder's name."""
    models = [model for model in ELASTICC_CLASSES if re.search(rf"(^|[_.]){re.escape(model)}$", folder)]
    return max(models, key=len) if models else folder


def text_of(values: Rows) -> list[str]:
    """Return a column of names or integers as text."""
    return text(values) if values.dtype.kind == "S" else [str(value) for value in values.tolist()]


def _head_rows(head: Path, needed: set[str]) -> Rows:
    with open_table(head) as table:
        _require(table, needed)
        return np.concatenate([np.empty(0, dtype=table.row), *table.blocks()])


def _require(table: BinaryTable, needed: set[str]) -> None:
    if missing := sorted(needed - set(table.row.names or ())):
        raise TableError(f"{table.path} has no column {', '.join(missing)}")


def _present(rows: Rows) -> dict[str, str]:
    return {name: column for name, column in COLUMNS.items() if column in (rows.dtype.names or ())}


def _redshift(rows: Rows) -> NDArray[np.float64]:
    if "SIM_REDSHIFT_HELIO" not in (rows.dtype.names or ()):
        return np.full(len(rows), np.nan)
    redshift = rows["SIM_REDSHIFT_HELIO"].astype(np.float64)
    return np.where(redshift < 0, np.nan, redshift)


def _njy_per_fluxcal(rows: Rows) -> NDArray[np.float64]:
    """Return nJy of one unit of FLUXCAL by event: of the zero point ZP_FLUXCAL (since April 2026), or else of 27.5."""
    if "ZP_FLUXCAL" not in (rows.dtype.names or ()):
        return np.full(len(rows), NJY_PER_UNIT["FLUXCAL"])
    return njy_of_magnitude(rows["ZP_FLUXCAL"].astype(np.float64))


def _phot_file(head: Path) -> Path:
    stem = re.sub(r"HEAD(\.FITS(?:\.gz)?)$", r"PHOT\1", head.name, flags=re.IGNORECASE)
    for name in (stem, stem.removesuffix(".gz"), f"{stem}.gz"):
        if (head.parent / name).is_file() and name != head.name:
            return head.parent / name
    raise TableError(f"{head.parent / stem} is missing next to {head.name}")


def _events(path: Path, first: Int64, last: Int64) -> Iterator[tuple[int, Rows]]:
    """Yield each row of the HEAD with its points, in the order of the points; rows between events are skipped."""
    order = [int(at) for at in np.argsort(first, kind="stable")]
    with open_table(path) as table:
        _require(table, {"MJD", "FLUXCAL", "FLUXCALERR", "PHOTFLAG"})
        _check_pointers(path, first[order], last[order], table.length)
        blocks, pending, start = table.blocks(), np.empty(0, dtype=table.row), 0  # pending starts at row ``start``
        for at in order:
            begin, end = int(first[at]) - 1, int(last[at])
            while start + len(pending) < end:
                pending, start = pending[max(begin - start, 0) :], max(start, min(begin, start + len(pending)))
                pending = np.concatenate([pending, next(blocks)])
            yield at, pending[begin - start : end - start]


def _check_pointers(path: Path, first: Int64, last: Int64, length: int) -> None:
    if len(first) and (first[0] < 1 or last.max() > length or (first[1:] <= last[:-1]).any() or (last < first).any()):
        raise TableError(f"{path}: PTROBS_MIN and PTROBS_MAX of its HEAD do not fit its {length} rows")


def _object(
    name: str, label: str, metadata: Mapping[str, float], redshift: float, points: Rows, scale: float, window: bool
) -> TableObject:
    flag, mjd = points["PHOTFLAG"].astype(np.int64), points["MJD"].astype(np.float64)
    detected = (flag & DETECTION) != 0
    rejected: dict[str, Any] = {
        "end-of-event row (-777)": mjd == END_OF_EVENT,
        "saturated": (flag & SATURATED) != 0,
    }
    if window:
        rejected["outside the alert window"] = ~in_window(mjd, flag)
    return TableObject(
        object_id=name,
        mjd=mjd,
        flux=points["FLUXCAL"].astype(np.float64) * scale,
        flux_err=points["FLUXCALERR"].astype(np.float64) * scale,
        band=_bands(points),
        detected=detected,
        label=label,
        metadata=metadata,
        redshift=redshift,
        rejected=rejected,
    )


def in_window(mjd: NDArray[np.float64], flag: Int64) -> NDArray[np.bool_]:
    """Select the points from 30 days before the trigger to the last detection; none without a detection."""
    detected = (flag & DETECTION) != 0
    if not detected.any():
        return np.zeros(len(mjd), dtype=np.bool_)
    triggers = (flag & TRIGGER) != 0
    trigger = mjd[triggers if triggers.any() else detected].min()
    return np.asarray((mjd >= trigger - PRE_TRIGGER_DAYS) & (mjd <= mjd[detected].max()))


def _bands(points: Rows) -> NDArray[np.object_]:
    """Return the band letters without the survey prefix (``LSST-u``)."""
    name = "BAND" if "BAND" in (points.dtype.names or ()) else "FLT"
    if name not in (points.dtype.names or ()):
        raise TableError("the PHOT file has neither a BAND nor a FLT column")
    return object_column([band.rpartition("-")[2] for band in text(points[name])])
