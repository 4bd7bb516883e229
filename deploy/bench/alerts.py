"""LSST packets to measure with: framed records of the newest schema, without images, lengths as on a night.

Of a hundred alerts, seventy are of new objects and hold their detection alone, twenty have 5 detections and 20 forced
points, eight have 20 and 80, and two, of the deep fields, 60 and 300: the lengths of the survey's design, as no public
night has been long enough to tell its own.
"""

import io
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import fastavro
import numpy as np

from deploy.bench.curves import Columns
from models.alerts import shipped
from models.alerts.avro import bare
from models.bands import BANDS
from models.lightcurve import LightCurve

SCHEMA: Final = "lsst/11.1"
SCHEMA_ID: Final = 1101
MIX: Final = ((0.70, 0, 0), (0.20, 5, 20), (0.08, 20, 80), (0.02, 60, 300))
LONGEST: Final = (60, 300)
_FILL: Final[Mapping[str, Any]] = {
    "float": 1.5, "double": 2.5, "int": 3, "long": 170_094_456_272_322_680, "boolean": False, "string": "g",
    "bytes": b"",
}  # fmt: skip


def visit(count: int, seed: int = 1, first: int = 0) -> list[bytes]:
    """Packets of a visit, in random order, numbered from ``first``."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(MIX), size=count, p=[share for share, *_ in MIX])
    return [packet(first + number, *MIX[kind][1:], rng) for number, kind in enumerate(kinds.tolist())]


def packet(number: int, detections: int, forced: int, rng: np.random.Generator) -> bytes:
    """One packet with earlier detections and forced points beside the detection that caused it."""
    rows = [_photometry(time, rng) for time in np.sort(rng.uniform(61_000, 61_300, detections + forced + 1)).tolist()]
    ids = {"diaSourceId": 10**17 + number, "diaObjectId": 2 * 10**17 + number, "ssObjectId": None}
    record = {
        **_record(""),
        "diaSourceId": ids["diaSourceId"],
        "diaSource": _record("diaSource") | ids | rows[-1],
        "prvDiaSources": [_record("prvDiaSources") | ids | row for row in rows[:detections]] or None,
        "prvDiaForcedSources": [_record("prvDiaForcedSources") | row for row in rows[detections:-1]] or None,
        "diaObject": _record("diaObject") | {"diaObjectId": ids["diaObjectId"]},
    }
    stream = io.BytesIO()
    stream.write(b"\0" + SCHEMA_ID.to_bytes(4, "big"))
    fastavro.schemaless_writer(stream, shipped.load(SCHEMA).parsed, record)
    return stream.getvalue()


def _photometry(time: float, rng: np.random.Generator) -> dict[str, Any]:
    values = {"midpointMjdTai": time, "band": "ugrizy"[rng.integers(6)], "timeWithdrawnMjdTai": None, "visit": 0}
    return values | {"psfFlux": float(rng.normal(3000, 2000)), "psfFluxErr": float(rng.lognormal(5.7, 0.4))}


@cache
def _record(path: str) -> dict[str, Any]:
    """Fill nearly every field of a record, as the survey sends them; lists and records are null."""
    schema = shipped.load(SCHEMA)
    root = schema.fields(schema.root)
    fields = schema.fields(root[path]) if path else root
    return {name: _FILL.get(str(bare(kind))) if isinstance(bare(kind), str) else None for name, kind in fields.items()}


def columns_of(curve: LightCurve) -> Columns:
    """Return a light curve as the other measurements have them."""
    return {
        "object_id": curve.object_id,
        "mjd": curve.mjd.tolist(),
        "flux": curve.flux.tolist(),
        "flux_err": curve.flux_err.tolist(),
        "band": [BANDS[index] for index in curve.band.tolist()],
        "metadata": dict(curve.metadata),
    }
