"""Light curves and alert packets of the contract, the same in every run."""

from typing import Any

import numpy as np

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from support import alerts

Curve = dict[str, Any]


def supernova(points: int = 24, object_id: str | int = "SN 2099zz", **changes: Any) -> Curve:
    """A rise and a decline in four bands, without noise, so that every machine makes the same numbers."""
    time = 60_300.0 + 2.5 * np.arange(points)
    phase = (time - 60_318.0) / 12.0
    flux = 4000.0 * np.exp(-np.where(phase < 0, 2.0 * phase**2, 0.6 * phase))
    return {
        "object_id": object_id,
        "mjd": np.round(time, 4).tolist(),
        "flux": np.round(flux, 3).astype(np.float32).tolist(),
        "flux_err": np.round(40.0 + 0.02 * flux, 3).astype(np.float32).tolist(),
        "band": ["griz"[place % 4] for place in range(points)],
    } | changes


def variable(points: int = 160, object_id: str = "RR Lyr", **changes: Any) -> Curve:
    """A sawtooth of half a day, longer than a network keeps."""
    time = 60_000.0 + 1.37 * np.arange(points)
    flux = 9000.0 * (1.0 - ((time / 0.5668) % 1.0))
    return {
        "object_id": object_id,
        "mjd": np.round(time, 4).tolist(),
        "flux": np.round(flux, 2).astype(np.float32).tolist(),
        "flux_err": [90.0] * points,
        "band": ["gr"[place % 2] for place in range(points)],
    } | changes


def faint(**changes: Any) -> Curve:
    """Three points, none of them detected."""
    return {
        "object_id": "faint",
        "mjd": [60_310.0, 60_311.0, 60_312.5],
        "flux": [20.0, -15.0, 33.0],
        "flux_err": [25.0, 25.0, 25.0],
        "band": ["r", "i", "y"],
    } | changes


METADATA = {name: round(0.1 * place, 3) for place, name in enumerate(METADATA_COLUMNS[:20])}


def moving() -> bytes:
    """An alert of the Solar System."""
    alert = alerts.lsst_alert()
    ids = {"diaObjectId": None, "ssObjectId": 21163624629350741}
    source = {**alert["diaSource"], **ids}
    return alerts.confluent(1000, {**alert, "diaSource": source, "diaObject": None, "prvDiaSources": None})


PACKETS: dict[str, bytes] = {
    **{
        f"lsst {number // 100}.{number % 100} framed": alerts.confluent(
            number, alerts.lsst_alert(f"lsst/{number // 100}.{number % 100}", points=12)
        )
        for number in (700, 704, 800, 900, 1000, 1101)
    },
    "elasticc 0.9.1 bare": alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()),
    "elasticc 0.9 container": alerts.container("elasticc/0.9", [alerts.elasticc_alert("elasticc/0.9")]),
    "ztf 4.02 container": alerts.container("ztf/4.02", [alerts.ztf_alert()]),
    "ztf 3.3 snappy container of two": alerts.container("ztf/3.3", [alerts.ztf_alert("ztf/3.3")] * 2, "snappy"),
    "solar system object": moving(),
    "cut short": alerts.confluent(1000, alerts.lsst_alert())[:60],
    "no alert at all": b"\x00nonsense",
    "a schema from the future": b"\x00\x00\x00\x26\xac" + b"\x02" * 40,
}


def multipart(packets: list[bytes], kind: str = "form-data") -> tuple[bytes, str]:
    """A body of several packets and its media type."""
    parts = (
        f'--XX\r\nContent-Disposition: form-data; name="packet"; filename="{place}.avro"\r\n\r\n'.encode() + data
        for place, data in enumerate(packets)
    )
    return b"\r\n".join([*parts, b"--XX--\r\n"]), f"multipart/{kind}; boundary=XX"
