"""Small archives of light curves in the layouts of surveys, as Parquet and HATS."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = [sys.executable, "-c", "from nightjar_alerts.cli import main; main()", "catalog"]
QUIET = ("--quiet",)


def rubin_rows(count: int, seed: int = 1, points: tuple[int, int] = (5, 30)) -> list[dict[str, Any]]:
    """Return rows like those of Rubin's nested archive: an object with the list of its sources."""
    rng = np.random.default_rng(seed)
    return [_object(10**17 + number, rng, points) for number in range(count)]


def _object(object_id: int, rng: np.random.Generator, points: tuple[int, int]) -> dict[str, Any]:
    count = int(rng.integers(*points))
    mjd = np.sort(rng.uniform(61_000.0, 61_120.0, count))
    width = rng.uniform(10.0, 30.0)
    flux = 3_000.0 * np.exp(-(((mjd - 61_050.0) / width) ** 2)) + rng.normal(0.0, 100.0, count)
    sources = {
        "midpointMjdTai": mjd.tolist(),
        "psfFlux": flux.tolist(),
        "psfFluxErr": [100.0] * count,
        "band": rng.choice(list("gri"), count).tolist(),
        "timeWithdrawnMjdTai": [None] * count,
    }
    place = {"ra": rng.uniform(0.0, 4.0), "dec": rng.uniform(-2.0, 2.0)}
    return {"diaObjectId": object_id, **place, "ssObjectId": 0, "diaSource": sources}


def write_nested(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with nested light curves as one Parquet file."""
    pa, pq = _arrow()
    lists = {
        name: pa.list_(pa.float64()) for name in ("midpointMjdTai", "psfFlux", "psfFluxErr", "timeWithdrawnMjdTai")
    }
    kinds = {
        "diaObjectId": pa.int64(), "ra": pa.float64(), "dec": pa.float64(), "ssObjectId": pa.int64(),
        "diaSource": pa.struct({**lists, "band": pa.list_(pa.string())}),
    }  # fmt: skip
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if name in rows[0]])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    return path


def nested_folder(folder: Path, sizes: Sequence[int], points: tuple[int, int] = (5, 30)) -> Path:
    """Write a folder of nested Parquet files with as many objects as the sizes say; return it."""
    rows = rubin_rows(sum(sizes), points=points)
    start = 0
    for number, size in enumerate(sizes):
        write_nested(folder / f"night-{number:02d}.parquet", rows[start : start + size])
        start += size
    return folder


def write_observations(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as a table with one observation in a row."""
    pa, pq = _arrow()
    columns = {
        "diaObjectId": [row["diaObjectId"] for row in rows for _ in row["diaSource"]["band"]],
        "ra": [row["ra"] for row in rows for _ in row["diaSource"]["band"]],
        "dec": [row["dec"] for row in rows for _ in row["diaSource"]["band"]],
        "ssObjectId": [row["ssObjectId"] for row in rows for _ in row["diaSource"]["band"]],
    }
    for name in ("midpointMjdTai", "psfFlux", "psfFluxErr", "band"):
        columns[name] = [value for row in rows for value in row["diaSource"][name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def ztf_rows(places: Sequence[tuple[float, float]], bands: Sequence[int] = (1, 2, 3)) -> list[dict[str, Any]]:
    """Return rows like those of ZTF's data releases: a periodic star in one band, 0.3 arcseconds from the others."""
    rng = np.random.default_rng(2)
    rows = []
    for number, (ra, dec) in enumerate(places):
        for band in bands:
            mjd = np.sort(rng.uniform(58_500.0, 59_500.0, 20))
            curve = {
                "hmjd": mjd.tolist(),
                "mag": (16.0 + 0.4 * np.sin(mjd / 0.1)).tolist(),
                "magerr": [0.02] * 20,
                "catflags": [0] * 20,
            }
            angle = 2.0 * np.pi * band / 3.0
            ra_band = (ra + 0.15 / 3600.0 * np.cos(angle) / np.cos(np.radians(dec))) % 360.0
            dec_band = dec + 0.15 / 3600.0 * np.sin(angle)
            own = {"objectid": 10 * number + band, "objra": ra_band, "objdec": dec_band, "filterid": band}
            rows.append({**own, "lightcurve": curve})
    return rows


def write_hats(
    folder: Path, rows: Sequence[Mapping[str, Any]], place: tuple[str, str], partition_rows: int, margin: float
) -> Path:
    """Write rows as a collection of HATS with a margin, by LSDB."""
    import lsdb
    import pandas as pd

    pa, _ = _arrow()
    from nested_pandas import NestedFrame

    frame = NestedFrame(pa.Table.from_pylist(list(rows)).to_pandas(types_mapper=pd.ArrowDtype))
    catalog = lsdb.from_dataframe(
        frame, ra_column=place[0], dec_column=place[1], catalog_name=folder.name, partition_rows=partition_rows,
        margin_threshold=margin,
    )  # fmt: skip
    catalog.write_catalog(folder, progress_bar=False)
    return folder


def content(output: Path, *without: str) -> Any:
    """Return the rows of all partitions of an output, by the names of their files, as an Arrow table."""
    pa, pq = _arrow()
    files = sorted(path for path in output.rglob("*.parquet") if "dataset" in path.parts or "Npix" not in path.name)
    names = [path for path in files if path.name != "per_partition_statistics.parquet"]
    tables = [pq.ParquetFile(path).read() for path in names]
    return pa.concat_tables([table.replace_schema_metadata().drop_columns(list(without)) for table in tables])


def _arrow() -> tuple[Any, Any]:
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
