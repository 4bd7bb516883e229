"""Tiny files in the layouts of surveys, written byte by byte or by pyarrow: a few objects with known values."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.tables import TableObject
from nightjar_alerts.training.importers.commands import ImportReport, ImportRules, clean

FORMS = {"S": "A", "i4": "J", "f4": "E", "f8": "D"}


def raw_object(**changes: Any) -> TableObject:
    """Four good points in g and r, the first two detected."""
    columns: dict[str, Any] = {
        "object_id": "a",
        "mjd": np.array([60_000.0, 60_001.0, 60_002.0, 60_003.0]),
        "flux": np.array([1000.0, 2000.0, 30.0, -40.0]),
        "flux_err": np.array([100.0, 100.0, 100.0, 100.0]),
        "band": ["g", "r", "g", "r"],
    }
    columns |= changes
    columns["band"] = np.array(columns["band"], np.object_)
    return TableObject(**columns)


def cleaned(raw: TableObject, **rules: Any) -> tuple[Any, ImportReport]:
    """Return the object that `clean` makes of a raw one, and the report."""
    report = ImportReport()
    return clean(raw, ImportRules(**rules), report), report


def fits_table(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """A FITS file of an empty primary part and one binary table."""
    first = next(iter(columns.values()))
    row = np.dtype([(name, values.dtype.newbyteorder(">")) for name, values in columns.items()])
    table = np.empty(len(first), dtype=row)
    for name, values in columns.items():
        table[name] = values
    cards: list[tuple[str, Any]] = [("XTENSION", "BINTABLE"), ("BITPIX", 8), ("NAXIS", 2), ("NAXIS1", row.itemsize)]
    cards += [("NAXIS2", len(first)), ("PCOUNT", 0), ("GCOUNT", 1), ("TFIELDS", len(columns))]
    for number, (name, values) in enumerate(columns.items(), start=1):
        cards += [(f"TTYPE{number}", name), (f"TFORM{number}", _form(values.dtype))]
    primary = [("SIMPLE", True), ("BITPIX", 8), ("NAXIS", 0), ("EXTEND", True)]
    return _padded(_header(primary)) + _padded(_header(cards)) + _padded(table.tobytes(), b"\0")


def _form(kind: np.dtype[Any]) -> str:
    return f"{kind.itemsize}A" if kind.kind == "S" else FORMS[kind.str[1:]]


def _header(cards: Sequence[tuple[str, Any]]) -> bytes:
    lines = [f"{key:<8}= {_card_value(value)}".ljust(80) for key, value in cards]
    return "".join([*lines, "END".ljust(80)]).encode()


def _card_value(value: Any) -> str:
    if isinstance(value, bool):
        return f"{'T' if value else 'F':>20}"
    return f"'{value:<8}' / text" if isinstance(value, str) else f"{value:>20} / a number"


def _padded(data: bytes, filler: bytes = b" ") -> bytes:
    return data + filler * (-len(data) % 2880)


def write_snana(folder: Path, *, objects: int = 3, packed: bool = True, first_id: int = 10) -> Path:
    """A model's folder: each object has six points, 40 d apart, 31 d before to beyond its detections, and an end row.

    PHOTFLAG: forced, forced, first detection, saturated, detection, forced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mjd, flag, bands, fluxes = [], [], [], []
    for number in range(objects):
        mjd += [60_000.0 + number + day for day in (0, 45, 50, 51, 60, 70)] + [-777.0]
        flag += [0, 0, 4096 + 2048, 4096 + 1024, 4096, 0, 0]
        bands += [b"LSST-u", b"LSST-g", b"LSST-r", b"LSST-i", b"LSST-z", b"LSST-Y", b"-"]
        fluxes += [1.0, 2.0, 100.0 + number, 1e6, 50.0, 3.0, -777.0]
    start = 7 * np.arange(objects) + 1
    head = {
        "SNID": np.array([str(first_id + number).encode() for number in range(objects)], dtype="S16"),
        "PTROBS_MIN": start.astype("i4"),
        "PTROBS_MAX": (start + 5).astype("i4"),
        "MWEBV": np.full(objects, 0.05, dtype="f4"),
        "REDSHIFT_HELIO": np.full(objects, -9.0, dtype="f4"),
        "HOSTGAL_PHOTOZ": np.full(objects, 0.3, dtype="f4"),
        "HOSTGAL2_MAG_u": np.full(objects, 999.0, dtype="f4"),
        "SIM_REDSHIFT_HELIO": np.full(objects, 0.25, dtype="f4"),
        "SIM_TYPE_INDEX": np.full(objects, 90, dtype="i4"),
    }
    phot = {
        "MJD": np.array(mjd, dtype="f8"),
        "BAND": np.array(bands, dtype="S8"),
        "PHOTFLAG": np.array(flag, dtype="i4"),
        "FLUXCAL": np.array(fluxes, dtype="f4"),
        "FLUXCALERR": np.full(len(mjd), 5.0, dtype="f4"),
    }
    for name, columns in (("MODEL_HEAD", head), ("MODEL_PHOT", phot)):
        data = fits_table(columns)
        path = folder / f"{name}.FITS{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder


ZTF_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "alert",
        "fields": [
            {"name": "objectId", "type": "string"},
            {
                "name": "candidate",
                "type": {
                    "type": "record",
                    "name": "point",
                    "fields": [
                        {"name": "jd", "type": "double"},
                        {"name": "fid", "type": "int"},
                        *({"name": n, "type": ["null", "float"], "default": None} for n in ("magpsf", "sigmapsf")),
                        {"name": "isdiffpos", "type": ["null", "string"], "default": None},
                        {"name": "exptime", "type": ["null", "float"], "default": None},
                    ],
                },
            },
            {"name": "prv_candidates", "type": ["null", {"type": "array", "items": "point"}], "default": None},
            {
                "name": "fp_hists",
                "type": [
                    "null",
                    {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "forced",
                            "fields": [
                                {"name": "jd", "type": "double"},
                                {"name": "fid", "type": "int"},
                                *(
                                    {"name": n, "type": ["null", "float"], "default": None}
                                    for n in ("forcediffimflux", "forcediffimfluxunc", "magzpsci")
                                ),
                                {"name": "procstatus", "type": "string"},
                            ],
                        },
                    },
                ],
                "default": None,
            },
        ],
    }
)


def ztf_alert(name: str, jd: float, history: Sequence[Mapping[str, Any]] = (), **point: Any) -> dict[str, Any]:
    """An alert of a 20 mag detection in g, its point changed by ``point``."""
    candidate = {"jd": jd, "fid": 1, "magpsf": 20.0, "sigmapsf": 0.1, "isdiffpos": "t"} | point
    return {"objectId": name, "candidate": candidate, "prv_candidates": list(history) or None}


def avro(alert: Mapping[str, Any]) -> bytes:
    """An alert in its container."""
    stream = io.BytesIO()
    fastavro.writer(stream, ZTF_SCHEMA, [alert])
    return stream.getvalue()


def write_alerts(path: Path, alerts: Sequence[Mapping[str, Any]]) -> Path:
    """A tar.gz, or a folder of Avro files, by the name of ``path``."""
    if not path.name.endswith(".tar.gz"):
        path.mkdir(parents=True)
        for number, alert in enumerate(alerts):
            (path / f"{number}.avro").write_bytes(avro(alert))
        return path
    with tarfile.open(path, "w:gz") as archive:
        for number, alert in enumerate(alerts):
            data = avro(alert)
            member = tarfile.TarInfo(f"night/{number}.avro")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_text(path: Path, text: str) -> Path:
    """A text file, gzipped by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def nested_table(ids: Sequence[int], *, of_structs: bool = False) -> pa.Table:
    """Objects of 3 points each in a nested column ``lc``: a struct of lists, or a list of structs."""
    points = [
        [{"t": 60_000.0 + i + n, "f": 100.0 * n, "e": 10.0, "b": "gri"[n]} for n in range(3)] for i, _ in enumerate(ids)
    ]
    kind = pa.struct([("t", pa.float64()), ("f", pa.float32()), ("e", pa.float32()), ("b", pa.string())])
    lists = pa.array(points, type=pa.list_(kind))
    if not of_structs:
        fields = [pa.array([[p[key] for p in row] for row in points]) for key in "tfeb"]
        lists = pa.StructArray.from_arrays(fields, names=list("tfeb"))
    return pa.table({"id": pa.array(ids, type=pa.int64()), "lc": lists, "kind": ["x"] * len(ids)})


def write_hats(folder: Path, *, collection: bool = False) -> Path:
    """A HATS catalogue of two pixels, or a collection that also holds a margin repeating an object."""
    catalogue = folder / "main" if collection else folder
    pixels = {"Norder=1/Dir=0/Npix=3.parquet": [2**60 + 1, 7], "Norder=2/Dir=0/Npix=9/part.parquet": [8]}
    for name, ids in pixels.items():
        path = catalogue / "dataset" / name
        path.parent.mkdir(parents=True)
        pq.write_table(nested_table(ids), path)
    pq.write_table(nested_table([99]), catalogue / "dataset" / "_metadata")
    write_text(catalogue / "partition_info.csv", "Norder,Npix\n1,3\n")
    if collection:
        margin = folder / "margin" / "dataset" / "Norder=1" / "Dir=0"
        margin.mkdir(parents=True)
        pq.write_table(nested_table([7]), margin / "Npix=4.parquet")
        write_text(folder / "collection.properties", "obs_collection=x\nhats_primary_table_url = main\n")
    return folder
