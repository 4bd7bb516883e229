"""A Parquet file in the layout of the Catalina table."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_catalina(path: Path, curves: list[tuple[str, list[float]]], step: float = 0.01) -> Path:
    """One object per (class, times); magnitude 15 + class number + ``step`` x place."""
    classes = sorted({name for name, _ in curves})
    table = {
        "object_id": [str(number) for number in range(len(curves))],
        "class": [name for name, _ in curves],
        "mjd": [times for _, times in curves],
        "mag": [[15.0 + classes.index(name) + step * i for i in range(len(times))] for name, times in curves],
        "magerr": [[0.1] * len(times) for _, times in curves],
    }
    pq.write_table(pa.table(table), path)
    return path


def days(count: int, start: float = 55_000.0, step: float = 1.0) -> list[float]:
    """Times of ``count`` observations, every ``step`` days."""
    return [start + step * number for number in range(count)]
